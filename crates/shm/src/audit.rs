//! Owns the comparison of a region's index with its bitmap and with the owners of its chunks.

use crate::chunks::Extent;
use crate::layout::entry;
use crate::table::Table;
use crate::visibility::Fabric;

/// Contents of a region, and counters that must be 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audit {
    /// Records that can be looked up.
    pub ready: u64,
    /// Records being filled.
    pub filling: u64,
    /// Records being read.
    pub pinned: u64,
    /// Chunks of all these records.
    pub used_chunks: u64,
    /// Chunks marked as taken without a record.
    pub leaked: u64,
    /// Chunks of a record marked as free.
    pub unmarked: u64,
    /// Chunks of two records.
    pub shared: u64,
    /// Records that no probe finds.
    pub hidden: u64,
    /// Records that the first of their chunks does not name.
    pub unowned: u64,
}

impl Audit {
    /// Whether all counters that must be 0 are.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        [self.leaked, self.unmarked, self.shared, self.hidden, self.unowned] == [0; 5]
    }
}

impl<F: Fabric> Table<'_, F> {
    /// Counts, and compares the bitmap with the entries.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        let mut marked = vec![false; usize::try_from(self.layout.chunks).unwrap_or_default()];
        for index in (0..self.layout.entries).filter(|index| self.is_used(*index)) {
            let state = self.whole(index);
            audit.ready += u64::from(state == entry::READY);
            audit.filling += u64::from(state == entry::FILLING);
            audit.pinned += u64::from(self.field(index, entry::PINS) != 0);
            audit.hidden += u64::from(!self.is_reachable(index));
            let Some(Extent { chunk, count, .. }) = self.extent(index) else { continue };
            audit.unowned += u64::from(self.owner(chunk) != Some(index));
            for chunk in chunk..chunk + count {
                let mark = &mut marked[usize::try_from(chunk).unwrap_or_default()];
                audit.shared += u64::from(std::mem::replace(mark, true));
            }
        }
        for (chunk, marked) in (0..).zip(marked) {
            let taken = self.is_taken(chunk);
            audit.used_chunks += u64::from(marked);
            audit.leaked += u64::from(taken && !marked);
            audit.unmarked += u64::from(!taken && marked);
        }
        audit
    }
}
