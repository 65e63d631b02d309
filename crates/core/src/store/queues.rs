//! Owns the entries of the index of records in memory: one cache line each, found by number, in one of the tenant's four queues.

use super::Stored;
use super::tenants::Tenants;
use crate::limits::STORE_SCAN_PIECES;
use crate::record::Hash;
use crate::table::NONE;

/// Entries per allocation; growth in fixed pieces neither copies entries nor leaves half of them unused.
const PIECE_ENTRIES: usize = 1024;

/// Which queue an entry stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Queue {
    /// New records.
    Small,
    /// Records that were used again, or came back soon after eviction.
    Main,
    /// Demoted records, which no request can use now; evicted before all others.
    Last,
    /// Records of kept sessions, which are not evicted.
    Kept,
}

/// A record with its key, in one cache line, so that comparing a key waits for memory once.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) block_hash: Hash,
    pub(super) namespace: u32,
    pub(super) group: u16,
    pub(super) shard: u16,
    /// Half of the key's hash; its lowest bits select the table.
    pub(super) tag: u32,
    pub(super) before: u32,
    pub(super) after: u32,
    pub(super) tenant: u16,
    pub(super) queue: Queue,
    /// Uses since the eviction last looked at the entry.
    pub(super) uses: u8,
    /// `None` in a free entry; free entries are chained by `after`.
    pub(super) record: Option<Stored>,
}

impl Entry {
    pub(super) const FREE: Self = Self {
        block_hash: [0; 32],
        namespace: 0,
        group: 0,
        shard: 0,
        tag: 0,
        before: NONE,
        after: NONE,
        tenant: 0,
        queue: Queue::Small,
        uses: 0,
        record: None,
    };

    fn charge(&self) -> u64 {
        self.record.as_ref().map_or(0, Stored::charge)
    }
}

/// Entries by number; freed numbers are reused.
#[derive(Debug)]
pub(super) struct Queues {
    pieces: Vec<Box<[Entry]>>,
    free: u32,
    len: usize,
    bytes: u64,
    kept_bytes: u64,
    pub(super) tenants: Tenants,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self {
            pieces: Vec::new(),
            free: NONE,
            len: 0,
            bytes: 0,
            kept_bytes: 0,
            tenants: Tenants::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory of all records, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of kept records, in bytes.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Number of the oldest entry in a tenant's queue.
    pub(super) fn oldest(&self, tenant: u16, queue: Queue) -> Option<u32> {
        let oldest = self.tenants.get(tenant).ends[queue as usize].oldest;
        Some(oldest).filter(|number| *number != NONE)
    }

    pub(super) fn entry(&self, number: u32) -> &Entry {
        &self.pieces[number as usize / PIECE_ENTRIES][number as usize % PIECE_ENTRIES]
    }

    pub(super) fn entry_mut(&mut self, number: u32) -> &mut Entry {
        &mut self.pieces[number as usize / PIECE_ENTRIES][number as usize % PIECE_ENTRIES]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.pieces.iter().flatten().filter(|entry| entry.record.is_some())
    }

    /// Entries of `STORE_SCAN_PIECES` pieces from piece `from` on; `None` behind the last piece.
    pub(super) fn some(&self, from: usize) -> Option<impl Iterator<Item = &Entry>> {
        let last = self.pieces.len().min(from.saturating_add(STORE_SCAN_PIECES));
        let pieces = self.pieces.get(from..last).filter(|pieces| !pieces.is_empty())?;
        Some(pieces.iter().flatten().filter(|entry| entry.record.is_some()))
    }

    /// Memory of all entries, free ones included.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.pieces.len() * PIECE_ENTRIES * size_of::<Entry>()
    }

    /// Inserts an entry as the newest of its queue; returns its number.
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        if self.free == NONE {
            self.add_piece();
        }
        let number = self.free;
        self.free = self.entry(number).after;
        let (tenant, queue) = (entry.tenant, entry.queue);
        self.bytes += entry.charge();
        *self.entry_mut(number) = entry;
        self.len += 1;
        self.tenants.get_mut(tenant).records += 1;
        self.link(number, queue);
        number
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, number: u32) -> Entry {
        self.unlink(number);
        self.len -= 1;
        let free = Entry { after: self.free, ..Entry::FREE };
        self.free = number;
        let entry = std::mem::replace(self.entry_mut(number), free);
        self.bytes -= entry.charge();
        self.tenants.get_mut(entry.tenant).records -= 1;
        self.tenants.leave(entry.tenant);
        entry
    }

    /// Makes an entry the newest of `queue`.
    pub(super) fn move_to(&mut self, number: u32, queue: Queue) {
        self.unlink(number);
        self.link(number, queue);
    }

    fn add_piece(&mut self) {
        let first = self.pieces.len() * PIECE_ENTRIES;
        let chained = |place: usize| {
            let after = u32::try_from(first + place + 1).ok();
            Entry {
                after: after.filter(|_| place + 1 < PIECE_ENTRIES).unwrap_or(NONE),
                ..Entry::FREE
            }
        };
        self.pieces.push((0..PIECE_ENTRIES).map(chained).collect());
        self.free = u32::try_from(first).unwrap_or(NONE);
    }

    fn link(&mut self, number: u32, queue: Queue) {
        let (tenant, charge) = (self.entry(number).tenant, self.entry(number).charge());
        self.kept_bytes += if queue == Queue::Kept { charge } else { 0 };
        let ends = &mut self.tenants.get_mut(tenant).ends[queue as usize];
        let after = std::mem::replace(&mut ends.newest, number);
        ends.bytes += charge;
        if after == NONE {
            ends.oldest = number;
        } else {
            self.entry_mut(after).before = number;
        }
        let entry = self.entry_mut(number);
        (entry.queue, entry.before, entry.after) = (queue, NONE, after);
    }

    fn unlink(&mut self, number: u32) {
        let entry = self.entry(number);
        let (tenant, queue, charge) = (entry.tenant, entry.queue, entry.charge());
        let (before, after) = (entry.before, entry.after);
        self.kept_bytes -= if queue == Queue::Kept { charge } else { 0 };
        let ends = &mut self.tenants.get_mut(tenant).ends[queue as usize];
        ends.bytes -= charge;
        if before == NONE {
            ends.newest = after;
        }
        if after == NONE {
            ends.oldest = before;
        }
        if before != NONE {
            self.entry_mut(before).after = after;
        }
        if after != NONE {
            self.entry_mut(after).before = before;
        }
    }
}
