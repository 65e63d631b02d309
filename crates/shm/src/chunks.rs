//! Owns the chunks of a region, under its lock: which are taken, by which entry, and where free ones lie side by side.

use crate::layout::{BITMAP_AT, LINE_BYTES, NEXT_AT, USED_AT, entry};
use crate::table::Table;
use crate::visibility::Fabric;

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS_OF_LINE: u64 = LINE_BYTES / 8;

/// Chunks of an entry, read once and found to lie in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First chunk.
    pub chunk: u64,
    /// Number of chunks.
    pub count: u64,
    /// Length of the record in bytes.
    pub bytes: u64,
}

impl<F: Fabric> Table<'_, F> {
    pub fn chunks_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.layout.chunk_bytes)
    }

    /// Extent of an entry; `None` if damage names chunks outside the region, because writes by such numbers would spread it.
    pub fn extent(&self, index: u64) -> Option<Extent> {
        let bytes = self.field(index, entry::BYTES);
        let chunk = self.beside(index, entry::CHUNK);
        let count = self.chunks_of(bytes);
        let end = chunk.checked_add(count).filter(|_| count > 0)?;
        (end <= self.layout.chunks).then_some(Extent { chunk, count, bytes })
    }

    pub fn bitmap_words(&self) -> u64 {
        self.layout.chunks.div_ceil(WORD_BITS)
    }

    /// Reads a word of the bitmap; with `is_fresh`, its line was just invalidated.
    fn bitmap_word(&self, word: u64, is_fresh: bool) -> u64 {
        let at = BITMAP_AT + word * 8;
        if is_fresh { self.seen.beside(at) } else { self.seen.word(at) }
    }

    pub fn clear_bitmap_word(&self, word: u64) {
        self.seen.set(BITMAP_AT + word * 8, 0);
    }

    /// Whether a chunk is taken.
    pub fn is_taken(&self, chunk: u64) -> bool {
        self.bitmap_word(chunk / WORD_BITS, false) >> (chunk % WORD_BITS) & 1 == 1
    }

    /// Number of free chunks from here on, up to the end of a word of the bitmap.
    pub fn free_at(&self, chunk: u64) -> u64 {
        let bits = self.bitmap_word(chunk / WORD_BITS, false) >> (chunk % WORD_BITS);
        let left = (WORD_BITS - chunk % WORD_BITS).min(self.layout.chunks - chunk);
        u64::from(bits.trailing_zeros()).min(left)
    }

    /// Words of the bitmap with an extent's bits in each.
    fn spans(extent: Extent) -> impl Iterator<Item = (u64, u64)> {
        let (mut chunk, end) = (extent.chunk, extent.chunk + extent.count);
        std::iter::from_fn(move || {
            let (word, bit) = (chunk / WORD_BITS, chunk % WORD_BITS);
            let span = (end - chunk).min(WORD_BITS - bit);
            let bits = (u64::MAX >> (WORD_BITS - span.max(1))) << bit;
            chunk += span;
            (span > 0).then_some((word, bits))
        })
    }

    /// Marks an entry's chunks as taken or free.
    pub fn mark(&self, extent: Extent, taken: bool) {
        for (word, bits) in Self::spans(extent) {
            let before = self.bitmap_word(word, false);
            let after = if taken { before | bits } else { before & !bits };
            self.seen.set(BITMAP_AT + word * 8, after);
        }
    }

    /// Whether all chunks of an extent are free.
    pub fn is_free(&self, extent: Extent) -> bool {
        Self::spans(extent).all(|(word, bits)| self.bitmap_word(word, false) & bits == 0)
    }

    /// Entry whose record begins at a chunk, as its owner's word says; the caller compares it with the entry.
    pub fn owner(&self, chunk: u64) -> Option<u64> {
        let index = self.seen.word(self.layout.owner_at(chunk)).checked_sub(1)?;
        (index < self.layout.entries).then_some(index)
    }

    pub fn set_owner(&self, chunk: u64, index: u64) {
        // The read brings the line to memory before it is written.
        if self.owner(chunk) != Some(index) {
            self.seen.set(self.layout.owner_at(chunk), index + 1);
        }
    }

    /// Finds free adjacent chunks, from the end of the last search on, then from the start.
    pub fn find(&self, count: u64) -> Option<u64> {
        let chunks = self.layout.chunks;
        // The counter only saves a search in vain.
        if chunks.saturating_sub(self.seen.word(USED_AT)) < count {
            return None;
        }
        let next = self.seen.word(NEXT_AT).min(chunks);
        self.find_in(next, chunks, count)
            .or_else(|| self.find_in(0, (next + count).min(chunks), count))
    }

    fn find_in(&self, from: u64, to: u64, count: u64) -> Option<u64> {
        let (mut run, mut chunk, mut fresh) = (0, from, None);
        while chunk < to {
            let (word, line) = (chunk / WORD_BITS, chunk / WORD_BITS / WORDS_OF_LINE);
            if fresh != Some(line) {
                // The bitmap begins at a line and ends before the next owner's.
                let first = BITMAP_AT + line * LINE_BYTES;
                let _ = self.seen.first_of(first, LINE_BYTES);
                fresh = Some(line);
            }
            let bits = self.bitmap_word(word, true) >> (chunk % WORD_BITS);
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
}
