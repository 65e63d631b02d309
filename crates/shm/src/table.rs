//! Owns the index of a region, under its lock: linear probing, and what an entry says. Every number in it may have been written by
//! anybody who maps the region, so that it is read once and checked before it is used.

use tierkv_core::key::RecordKey;
use tierkv_core::limits::SHM_PROBES_MAX;

use crate::chunks::Extent;
use crate::evict::Room;
use crate::layout::{CAME_AT, ENTRY_BYTES, Layout, NEXT_AT, RECORDS_AT, USED_AT, entry};
use crate::visibility::{Fabric, Seen};

/// Multiplier that spreads hashes, also uneven ones (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key in the words of an entry.
pub(crate) struct Words {
    place: u64,
    hashes: [u64; 8],
}

impl Words {
    pub fn of(key: &RecordKey) -> Self {
        let mut hashes = [0; 8];
        let bytes =
            key.namespace.as_chunks::<8>().0.iter().chain(key.block_hash.as_chunks::<8>().0);
        for (word, bytes) in hashes.iter_mut().zip(bytes) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { place: u64::from(key.group) | u64::from(key.shard) << 32, hashes }
    }

    fn home(&self, entries: u64) -> u64 {
        let mixed = self.hashes[0] ^ self.hashes[4].rotate_left(17) ^ self.place;
        (mixed.wrapping_mul(SPREAD) >> 32) & (entries - 1)
    }
}

/// Entry with a key, or the first one free for it.
pub(crate) struct Probe {
    pub found: Option<u64>,
    free: Option<u64>,
}

/// Outcome of an insertion.
pub(crate) enum Insert {
    /// The entry, and its chunks.
    Done(u64, Extent),
    /// No room was found yet; the next turn with the lock looks further.
    Later,
    /// There is no room.
    Full,
}

/// Says that an entry names chunks that do not exist.
pub(crate) struct Damaged;

/// Index and bitmap of a region, while the lock is held.
pub(crate) struct Table<'a, F: Fabric> {
    pub fabric: &'a F,
    pub seen: Seen<'a, F>,
    pub layout: &'a Layout,
}

impl<'a, F: Fabric> Table<'a, F> {
    pub fn new(fabric: &'a F, layout: &'a Layout) -> Self {
        Self { fabric, seen: Seen(fabric), layout }
    }

    pub fn field(&self, index: u64, field: u64) -> u64 {
        self.seen.word(self.layout.entry_at(index) + field)
    }

    /// Reads a field of a line that was just invalidated.
    pub fn beside(&self, index: u64, field: u64) -> u64 {
        self.seen.beside(self.layout.entry_at(index) + field)
    }

    pub fn set_field(&self, index: u64, field: u64, word: u64) {
        self.seen.set(self.layout.entry_at(index) + field, word);
    }

    pub fn state(&self, index: u64) -> u64 {
        self.field(index, entry::STATE)
    }

    /// Reads the state of an entry and invalidates its lines, so that `beside` can read the rest.
    pub fn whole(&self, index: u64) -> u64 {
        self.seen.first_of(self.layout.entry_at(index), ENTRY_BYTES)
    }

    /// Whether an entry is neither empty nor free; of a damaged one, the state may be none.
    pub fn is_used(&self, index: u64) -> bool {
        !matches!(self.state(index), entry::EMPTY | entry::GONE)
    }

    fn has_key(&self, index: u64, key: &Words) -> bool {
        self.beside(index, entry::PLACE) == key.place
            && (0..)
                .zip(&key.hashes)
                .all(|(at, word): (u64, _)| self.beside(index, entry::HASHES + at * 8) == *word)
    }

    fn next(&self, index: u64) -> u64 {
        (index + 1) & (self.layout.entries - 1)
    }

    fn back(&self, index: u64, by: u64) -> u64 {
        index.wrapping_sub(by) & (self.layout.entries - 1)
    }

    pub fn probe(&self, key: &Words) -> Probe {
        let mut probe = Probe { found: None, free: None };
        let mut index = key.home(self.layout.entries);
        for _ in 0..self.layout.entries.min(SHM_PROBES_MAX) {
            let state = self.whole(index);
            if matches!(state, entry::EMPTY | entry::GONE) {
                probe.free = probe.free.or(Some(index));
            } else if self.has_key(index, key) {
                probe.found = Some(index);
            }
            if state == entry::EMPTY || probe.found.is_some() {
                break;
            }
            index = self.next(index);
        }
        probe
    }

    /// Whether a look-up of an entry's key finds it.
    pub fn is_reachable(&self, index: u64) -> bool {
        let _ = self.whole(index);
        self.probe(&self.key(index)).found == Some(index)
    }

    /// Entry and extent of a readable record, for member `me`, after a repair if one is needed; counts as a request for it.
    pub fn ready(&self, me: u64, key: &Words) -> Option<(u64, Extent)> {
        self.ready_now(key).unwrap_or_else(|Damaged| {
            self.repair(me);
            None
        })
    }

    /// The same without a repair, because that goes through the whole index.
    pub fn ready_now(&self, key: &Words) -> Result<Option<(u64, Extent)>, Damaged> {
        let Some(index) = self.probe(key).found.filter(|at| self.state(*at) == entry::READY) else {
            return Ok(None);
        };
        let extent = self.extent(index).ok_or(Damaged)?;
        if self.beside(index, entry::VISITED) != entry::ASKED {
            self.set_field(index, entry::VISITED, entry::ASKED);
        }
        Ok(Some((index, extent)))
    }

    /// Allocates chunks for an absent key, evicting others as needed; returns its entry.
    pub fn insert(&self, key: &Words, bytes: u64, label: u64, owner: u64) -> Insert {
        let count = self.chunks_of(bytes);
        let chunk = match self.find(count).map_or_else(|| self.evict_for(count), Room::Found) {
            Room::Found(chunk) => chunk,
            Room::Later => return Insert::Later,
            Room::None => return Insert::Full,
        };
        // Probed again, because an eviction changes where probes end.
        let Some(index) = self.probe(key).free else { return Insert::Full };
        let extent = Extent { chunk, count, bytes };
        for (field, word) in [
            (entry::PINS, 0),
            (entry::CHUNK, chunk),
            (entry::BYTES, bytes),
            (entry::OWNER, owner),
            (entry::VISITED, 0),
            (entry::PLACE, key.place),
            (entry::LABEL, label),
        ] {
            self.set_field(index, field, word);
        }
        for (at, word) in (0..).zip(&key.hashes) {
            self.set_field(index, entry::HASHES + at * 8, *word);
        }
        self.mark(extent, true);
        self.set_owner(chunk, index);
        self.count(RECORDS_AT, 1, true);
        self.count(CAME_AT, 1, true);
        self.count(USED_AT, count, true);
        self.seen.set(NEXT_AT, chunk + count);
        self.set_field(index, entry::STATE, entry::FILLING);
        Insert::Done(index, extent)
    }

    /// Whether an entry is still what this process made of it, because others may have written it.
    pub fn is_held(&self, index: u64, owner: u64, extent: Extent) -> bool {
        self.state(index) == entry::FILLING
            && self.beside(index, entry::OWNER) == owner
            && self.extent(index) == Some(extent)
    }

    /// Removes an entry, then frees its chunks; a death in between leaves only marked chunks, which a repair finds.
    pub fn drop_entry(&self, index: u64) {
        let extent = self.extent(index);
        self.set_field(index, entry::STATE, entry::GONE);
        if let Some(extent) = extent {
            self.mark(extent, false);
            self.count(USED_AT, extent.count, false);
        }
        self.count(RECORDS_AT, 1, false);
        self.empty(index);
    }

    /// Removes an entry whose chunks are not its own.
    pub fn drop_damaged(&self, index: u64) {
        self.set_field(index, entry::STATE, entry::GONE);
        self.empty(index);
    }

    /// Turns freed entries into empty ones, at this place and before it, unless a probe must cross them. Otherwise freed
    /// entries would fill the table, and each look-up would read all of it.
    fn empty(&self, index: u64) {
        let (mut at, mut left) = (self.next(index), SHM_PROBES_MAX);
        while at != index && self.state(at) != entry::EMPTY {
            at = self.next(at);
            left -= 1;
            // The place stays free: probes end without it.
            if left == 0 {
                return;
            }
        }
        // Number of places back from here that a probe crosses to an entry behind.
        let (mut crossed, mut is_behind) = (0_u64, true);
        for _ in 0..self.layout.entries.min(2 * SHM_PROBES_MAX) {
            at = self.back(at, 1);
            is_behind &= at != index;
            // The read brings the line to memory before another one changes.
            match self.whole(at) {
                entry::EMPTY => return,
                entry::GONE => {
                    if !is_behind && crossed == 0 {
                        self.set_field(at, entry::STATE, entry::EMPTY);
                    }
                    crossed = crossed.saturating_sub(1);
                }
                _ => {
                    let home = self.key(at).home(self.layout.entries);
                    crossed = crossed.saturating_sub(1).max(self.back(at, home));
                }
            }
        }
    }

    /// Adjusts a counter. Counters only report the fill and decide nothing; a repair recounts them.
    pub fn count(&self, at: u64, by: u64, more: bool) {
        let before = self.seen.word(at);
        self.seen.set(at, if more { before.wrapping_add(by) } else { before.saturating_sub(by) });
    }

    /// Hides an entry from look-ups; its last reader frees it.
    pub fn doom(&self, index: u64) {
        if self.field(index, entry::PINS) == 0 {
            self.drop_entry(index);
        } else {
            self.set_field(index, entry::STATE, entry::DOOMED);
        }
    }

    /// Key of an entry whose lines were just invalidated.
    pub fn key(&self, index: u64) -> Words {
        let word = |at: u64| self.beside(index, entry::HASHES + at * 8);
        let hashes = [0, 1, 2, 3, 4, 5, 6, 7].map(word);
        Words { place: self.beside(index, entry::PLACE), hashes }
    }
}
