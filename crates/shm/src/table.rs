//! Owns index and bitmap of a region, under its lock: linear probing, free chunks, and eviction with a second chance.

use tierkv_core::key::RecordKey;

use crate::layout::{
    BITMAP_AT, CAME_AT, ENTRY_BYTES, EVICTED_AT, HAND_AT, Layout, NEXT_AT, RECORDS_AT, USED_AT,
    entry,
};
use crate::visibility::{Fabric, Seen};

const WORD_BITS: u64 = u64::BITS as u64;
/// Divisor of the records: that share, the youngest, is evicted only if all others are in use.
const YOUNG_SHARE: u64 = 4;
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
    fn beside(&self, index: u64, field: u64) -> u64 {
        self.seen.beside(self.layout.entry_at(index) + field)
    }

    pub fn set_field(&self, index: u64, field: u64, word: u64) {
        self.seen.set(self.layout.entry_at(index) + field, word);
    }

    pub fn state(&self, index: u64) -> u64 {
        self.field(index, entry::STATE)
    }

    /// Reads the state of an entry and invalidates its lines, so that `beside` can read the rest.
    fn whole(&self, index: u64) -> u64 {
        self.seen.first_of(self.layout.entry_at(index), ENTRY_BYTES)
    }

    pub fn is_used(&self, index: u64) -> bool {
        matches!(self.state(index), entry::FILLING | entry::READY | entry::DOOMED)
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
        for _ in 0..self.layout.entries {
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

    /// Entry of a readable record, for member `me`, after a repair if one is needed; counts as a request for it.
    pub fn ready(&self, me: u64, key: &Words) -> Option<u64> {
        self.ready_now(key).unwrap_or_else(|Damaged| {
            self.repair(me);
            None
        })
    }

    /// The same without a repair, because that goes through the whole index.
    pub fn ready_now(&self, key: &Words) -> Result<Option<u64>, Damaged> {
        let Some(index) = self.probe(key).found.filter(|at| self.state(*at) == entry::READY) else {
            return Ok(None);
        };
        if !self.is_possible(index) {
            return Err(Damaged);
        }
        let visited = self.beside(index, entry::VISITED);
        if visited & entry::ASKED == 0 {
            self.set_field(index, entry::VISITED, visited | entry::ASKED);
        }
        Ok(Some(index))
    }

    /// Allocates chunks for an absent key, evicting others as needed; `None` if no more can be evicted.
    pub fn insert(&self, key: &Words, bytes: u64, label: u64, owner: u64) -> Option<u64> {
        let count = self.chunks_of(bytes);
        let chunk = self.find(count).or_else(|| self.evict_for(count))?;
        // Probed again, because an eviction changes where probes end.
        let index = self.probe(key).free?;
        for (field, word) in [
            (entry::PINS, 0),
            (entry::CHUNK, chunk),
            (entry::BYTES, bytes),
            (entry::OWNER, owner),
            (entry::VISITED, self.seen.word(CAME_AT) << 1),
            (entry::PLACE, key.place),
            (entry::LABEL, label),
        ] {
            self.set_field(index, field, word);
        }
        for (at, word) in (0..).zip(&key.hashes) {
            self.set_field(index, entry::HASHES + at * 8, *word);
        }
        self.mark(index, true);
        self.count(RECORDS_AT, 1, true);
        self.count(CAME_AT, 1, true);
        self.count(USED_AT, count, true);
        self.seen.set(NEXT_AT, chunk + count);
        self.set_field(index, entry::STATE, entry::FILLING);
        Some(index)
    }

    /// Removes an entry, then frees its chunks; a death in between leaves only marked chunks, which a repair finds.
    pub fn drop_entry(&self, index: u64) {
        self.set_field(index, entry::STATE, entry::GONE);
        self.mark(index, false);
        self.count(RECORDS_AT, 1, false);
        self.count(USED_AT, self.chunks(index).1, false);
        self.empty(index);
    }

    /// Turns freed entries into empty ones, at this place and before it, unless a probe must cross them. Otherwise freed
    /// entries would fill the table, and each look-up would read all of it.
    fn empty(&self, index: u64) {
        let mut at = self.next(index);
        while at != index && self.state(at) != entry::EMPTY {
            at = self.next(at);
        }
        // Number of places back from here that a probe crosses to an entry behind.
        let (mut crossed, mut is_behind) = (0_u64, true);
        for _ in 0..self.layout.entries {
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

    fn chunks_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.layout.chunk_bytes)
    }

    /// First chunk and number of chunks of an entry; (0, 0) if damage names chunks outside the region, because writes by
    /// such numbers would spread it.
    pub fn chunks(&self, index: u64) -> (u64, u64) {
        let count = self.chunks_of(self.field(index, entry::BYTES));
        let chunk = self.beside(index, entry::CHUNK);
        let end = chunk.checked_add(count);
        if end.is_some_and(|end| end <= self.layout.chunks) { (chunk, count) } else { (0, 0) }
    }

    /// Whether an entry's chunks lie in the region.
    pub fn is_possible(&self, index: u64) -> bool {
        self.chunks(index).1 > 0
    }

    pub fn bitmap_words(&self) -> u64 {
        self.layout.chunks.div_ceil(WORD_BITS)
    }

    pub fn bitmap_word(&self, word: u64) -> u64 {
        self.seen.word(BITMAP_AT + word * 8)
    }

    pub fn set_bitmap_word(&self, word: u64, bits: u64) {
        self.seen.set(BITMAP_AT + word * 8, bits);
    }

    /// Marks an entry's chunks as taken or free.
    pub fn mark(&self, index: u64, taken: bool) {
        let (mut chunk, count) = self.chunks(index);
        let end = chunk + count;
        while chunk < end {
            let (word, bit) = (chunk / WORD_BITS, chunk % WORD_BITS);
            let span = (end - chunk).min(WORD_BITS - bit);
            let bits = (u64::MAX >> (WORD_BITS - span)) << bit;
            let before = self.bitmap_word(word);
            self.set_bitmap_word(word, if taken { before | bits } else { before & !bits });
            chunk += span;
        }
    }

    /// Finds free adjacent chunks, from the end of the last search on, then from the start.
    fn find(&self, count: u64) -> Option<u64> {
        let next = self.seen.word(NEXT_AT).min(self.layout.chunks);
        self.find_in(next, self.layout.chunks, count)
            .or_else(|| self.find_in(0, (next + count).min(self.layout.chunks), count))
    }

    fn find_in(&self, from: u64, to: u64, count: u64) -> Option<u64> {
        let (mut run, mut chunk) = (0, from);
        while chunk < to {
            let bits = self.bitmap_word(chunk / WORD_BITS) >> (chunk % WORD_BITS);
            let left = (WORD_BITS - chunk % WORD_BITS).min(to - chunk);
            let taken = u64::from(bits.trailing_ones()).min(left);
            if taken > 0 {
                run = 0;
                chunk += taken;
                continue;
            }
            let free = u64::from(bits.trailing_zeros()).min(left);
            if run + free >= count {
                return Some(chunk - run);
            }
            run += free;
            chunk += free;
        }
        None
    }

    fn evict_for(&self, count: u64) -> Option<u64> {
        loop {
            let (chunk, freed) = self.evict()?;
            let from = chunk.saturating_sub(count);
            let to = (chunk + freed + count).min(self.layout.chunks);
            if let Some(found) = self.find_in(from, to, count) {
                return Some(found);
            }
        }
    }

    /// Evicts the first entry after the hand that is not read, not requested since the hand passed, and not among the youngest; returns its
    /// chunks. The young are spared because entries are not in order of time, and a prompt would evict its own first blocks.
    fn evict(&self) -> Option<(u64, u64)> {
        let mut hand = self.seen.word(HAND_AT) & (self.layout.entries - 1);
        let came = self.seen.word(CAME_AT);
        let young = self.seen.word(RECORDS_AT) / YOUNG_SHARE;
        for step in 0..3 * self.layout.entries {
            let index = hand;
            hand = self.next(hand);
            if self.state(index) != entry::READY || self.beside(index, entry::PINS) != 0 {
                continue;
            }
            let visited = self.beside(index, entry::VISITED);
            let age = came.saturating_sub(visited >> 1);
            if age < young && step < 2 * self.layout.entries {
                continue;
            }
            if visited & entry::ASKED != 0 {
                self.set_field(index, entry::VISITED, visited & !entry::ASKED);
                continue;
            }
            self.seen.set(HAND_AT, hand);
            let chunks = self.chunks(index);
            self.drop_entry(index);
            self.count(EVICTED_AT, 1, true);
            return Some(chunks);
        }
        None
    }

    /// Counts, and compares the bitmap with the entries.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        let mut marked = vec![false; usize::try_from(self.layout.chunks).unwrap_or_default()];
        for index in (0..self.layout.entries).filter(|index| self.is_used(*index)) {
            let state = self.whole(index);
            audit.ready += u64::from(state == entry::READY);
            audit.filling += u64::from(state == entry::FILLING);
            audit.pinned += u64::from(self.field(index, entry::PINS) != 0);
            audit.hidden += u64::from(self.probe(&self.key(index)).found != Some(index));
            let (chunk, count) = self.chunks(index);
            for chunk in chunk..chunk + count {
                let mark = &mut marked[usize::try_from(chunk).unwrap_or_default()];
                audit.shared += u64::from(std::mem::replace(mark, true));
            }
        }
        for (chunk, marked) in (0..).zip(marked) {
            let taken = self.bitmap_word(chunk / WORD_BITS) >> (chunk % WORD_BITS) & 1 == 1;
            audit.used_chunks += u64::from(marked);
            audit.leaked += u64::from(taken && !marked);
            audit.unmarked += u64::from(!taken && marked);
        }
        audit
    }

    /// Key of an entry whose lines were just invalidated.
    fn key(&self, index: u64) -> Words {
        let word = |at: u64| self.beside(index, entry::HASHES + at * 8);
        let hashes = [0, 1, 2, 3, 4, 5, 6, 7].map(word);
        Words { place: self.beside(index, entry::PLACE), hashes }
    }
}

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
}

impl Audit {
    /// Whether all counters that must be 0 are.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        [self.leaked, self.unmarked, self.shared, self.hidden] == [0; 4]
    }
}
