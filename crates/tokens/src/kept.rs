//! Owns the token ids of recent pieces, so that the beginning of a conversation is not tokenized again with every turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most ids kept (16 MiB); each piece counts for [`PIECE_COST`] ids more.
pub const KEPT_MAX: usize = 4 << 20;
/// Further memory of a kept piece, in ids.
const PIECE_COST: usize = 64;

/// SHA-256 over a piece and all text before it.
pub type Name = [u8; 32];

struct Piece {
    ids: Arc<[u32]>,
    used: u64,
}

/// The most recently used pieces.
#[derive(Default)]
pub struct Kept {
    pieces: HashMap<Name, Piece>,
    by_use: BTreeMap<u64, Name>,
    uses: u64,
    cost: usize,
}

impl Kept {
    /// Returns the ids of a piece, if kept.
    pub fn find(&mut self, name: &Name) -> Option<Arc<[u32]>> {
        let piece = self.pieces.get_mut(name)?;
        self.by_use.remove(&piece.used);
        self.uses += 1;
        piece.used = self.uses;
        self.by_use.insert(self.uses, *name);
        Some(Arc::clone(&piece.ids))
    }

    /// Keeps a piece; drops the least recently used ones above the limit.
    pub fn keep(&mut self, name: Name, ids: Arc<[u32]>) {
        if self.pieces.contains_key(&name) {
            return;
        }
        self.uses += 1;
        self.cost += ids.len() + PIECE_COST;
        self.by_use.insert(self.uses, name);
        self.pieces.insert(name, Piece { ids, used: self.uses });
        while self.cost > KEPT_MAX {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            if let Some(piece) = self.pieces.remove(&oldest) {
                self.cost -= piece.ids.len() + PIECE_COST;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&number.to_le_bytes());
        name
    }

    #[test]
    fn what_was_not_used_for_the_longest_time_gives_way() {
        let ids: Arc<[u32]> = vec![7; (KEPT_MAX >> 2) - PIECE_COST].into();
        let mut kept = Kept::default();
        for number in 0..4 {
            kept.keep(name(number), Arc::clone(&ids));
        }
        assert!(kept.find(&name(0)).is_some());
        kept.keep(name(4), Arc::clone(&ids));
        assert!(kept.find(&name(1)).is_none(), "it was used before all others");
        for number in [0, 2, 3, 4] {
            assert!(kept.find(&name(number)).is_some(), "{number}");
        }
        assert_eq!(kept.cost, KEPT_MAX);
        assert_eq!(kept.by_use.len(), 4);
    }

    #[test]
    fn a_piece_above_the_limit_is_not_kept() {
        let mut kept = Kept::default();
        kept.keep(name(1), vec![7; KEPT_MAX].into());
        assert!(kept.find(&name(1)).is_none());
        assert_eq!(kept.cost, 0);
    }
}
