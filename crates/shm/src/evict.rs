//! Owns eviction: a hand passes the records in the order of their chunks, and frees a run of them that is as long as needed.

use std::collections::VecDeque;

use tierkv_core::limits::{SHM_EVICT_LOOKS_MAX, SHM_YOUNG_SHARE};

use crate::chunks::Extent;
use crate::layout::{EVICTED_AT, HAND_AT, entry};
use crate::manager::doubt;
use crate::table::Table;
use crate::visibility::Fabric;

/// Outcome of a search for room.
pub(crate) enum Room {
    /// First of the free chunks.
    Found(u64),
    /// No room among the records that one turn may look at; the next turn looks further.
    Later,
    /// No room in the whole region.
    None,
}

/// Content that begins at a chunk.
#[derive(Clone, Copy)]
enum Piece {
    Free(u64),
    /// A record that may be evicted: its entry, its chunks, and whether it was requested since the hand passed.
    Record(u64, u64, bool),
    /// A record that is filled or read: its chunks.
    Kept(u64),
    /// A taken chunk that no entry names.
    Unknown,
}

impl Piece {
    fn count(self) -> u64 {
        match self {
            Self::Free(count) | Self::Record(_, count, _) | Self::Kept(count) => count,
            Self::Unknown => 1,
        }
    }

    fn requested(self) -> u64 {
        if let Self::Record(_, count, true) = self { count } else { 0 }
    }
}

/// The shortest run of evictable pieces that ends where the hand is and has enough chunks.
struct Run {
    wanted: u64,
    pieces: VecDeque<Piece>,
    start: u64,
    count: u64,
    /// Chunks of requested records.
    requested: u64,
}

impl Run {
    fn begin(&mut self, at: u64) {
        self.pieces.clear();
        (self.start, self.count, self.requested) = (at, 0, 0);
    }

    fn add(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
        self.count += piece.count();
        self.requested += piece.requested();
        while let Some(first) = self.pieces.front().copied()
            && self.count - first.count() >= self.wanted
        {
            self.pieces.pop_front();
            self.start += first.count();
            self.count -= first.count();
            self.requested -= first.requested();
        }
    }
}

impl<F: Fabric> Table<'_, F> {
    fn piece_at(&self, chunk: u64) -> Piece {
        let free = self.free_at(chunk);
        if free > 0 {
            return Piece::Free(free);
        }
        let Some(index) = self.owner(chunk) else { return Piece::Unknown };
        let state = self.state(index);
        let Some(extent) = self.extent(index).filter(|extent| extent.chunk == chunk) else {
            return Piece::Unknown;
        };
        match state {
            entry::READY if self.beside(index, entry::PINS) == 0 => {
                let is_requested = self.beside(index, entry::VISITED) == entry::ASKED;
                Piece::Record(index, extent.count, is_requested)
            }
            entry::READY | entry::FILLING | entry::DOOMED => Piece::Kept(extent.count),
            _ => Piece::Unknown,
        }
    }

    /// Frees `count` adjacent chunks at the hand. Of the runs that it passes it takes the first without a record that was requested
    /// since the hand passed it, otherwise the run with the fewest. A run is no longer than needed, so that of records
    /// that are no larger it evicts at most twice the room. Records lie in the order in which they came, so that the youngest,
    /// behind the hand, are passed last. A pass ends before it reaches them, if it has found any run: nobody can have requested
    /// them yet, and another engine may be about to.
    pub fn evict_for(&self, count: u64) -> Room {
        let chunks = self.layout.chunks;
        let mut at = Some(self.seen.word(HAND_AT)).filter(|at| *at < chunks).unwrap_or_default();
        let mut run =
            Run { wanted: count, pieces: VecDeque::new(), start: at, count: 0, requested: 0 };
        let (mut best, mut is_aligned, mut passed) = (None::<(u64, u64, u64)>, false, 0);
        let old = chunks - chunks / SHM_YOUNG_SHARE;
        let looks = SHM_EVICT_LOOKS_MAX.max(2 * count);
        for _ in 0..looks {
            // Once around, and as far again as a run is long.
            if passed >= chunks + count {
                break;
            }
            let piece = self.piece_at(at);
            (at, passed) = (at + piece.count(), passed + piece.count());
            match piece {
                Piece::Free(_) | Piece::Record(..) => run.add(piece),
                Piece::Kept(_) => run.begin(at),
                Piece::Unknown => {
                    run.begin(at);
                    // The hand itself may point into a record; later chunks are damaged, and the next owner repairs.
                    if is_aligned {
                        doubt(&self.seen);
                    }
                }
            }
            is_aligned |= !matches!(piece, Piece::Unknown);
            if let Piece::Record(index, _, true) = piece {
                self.set_field(index, entry::VISITED, 0);
            }
            if run.count >= count && best.is_none_or(|(requested, ..)| run.requested < requested) {
                best = Some((run.requested, run.start, run.count));
            }
            if best.is_some_and(|(requested, ..)| requested == 0 || passed >= old) {
                break;
            }
            if at >= chunks {
                at = 0;
                run.begin(at);
            }
        }
        let Some((_, start, length)) = best else {
            self.seen.set(HAND_AT, at);
            return if passed < chunks { Room::Later } else { Room::None };
        };
        self.evict(start, start + length);
        self.seen.set(HAND_AT, start + count);
        let is_free = self.is_free(Extent { chunk: start, count, bytes: 0 });
        if is_free { Room::Found(start) } else { Room::Later }
    }

    /// Evicts the records from one chunk to another.
    fn evict(&self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let piece = self.piece_at(at);
            if let Piece::Record(index, ..) = piece {
                self.drop_entry(index);
                self.count(EVICTED_AT, 1, true);
            }
            at += piece.count();
        }
    }
}
