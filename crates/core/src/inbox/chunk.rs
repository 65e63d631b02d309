//! Owns one arriving chunk of a record: a small window that stays in the cache and is moved to the page step by step.

use std::ops::Range;
use std::sync::Arc;

use super::reassembly::{Arrived, Placement, Reassembly};
use crate::codec::int8::{BadScale, Spans};
use crate::codec::raw;
use crate::crc32c;
use crate::error::Result;
use crate::limits::LANE_STEP_BYTES;
use crate::pool::PooledBuffer;
use crate::record::{HEADER_BYTES, Header};

/// Part of a group that spans two chunks; `at` is its payload offset.
#[derive(Debug)]
pub(super) struct Split {
    pub at: usize,
    pub bytes: Vec<u8>,
}

/// Consecutive bytes of a record while they arrive, received by one thread.
#[derive(Debug)]
pub struct Chunk {
    reassembly: Arc<Reassembly>,
    header: [u8; HEADER_BYTES],
    range: Range<usize>,
    at: usize,
    /// `None` where bytes are received in the slot itself.
    window: Option<PooledBuffer>,
    /// Payload offset of the window's start; earlier bytes have left the window.
    base: usize,
    /// Payload offset at which the first whole group of this chunk may start.
    head_end: usize,
    splits: Vec<Split>,
    checksum: u32,
    is_bad: bool,
}

impl Chunk {
    pub(super) fn new(reassembly: &Arc<Reassembly>, range: Range<usize>) -> Result<Self> {
        let base = range.start.saturating_sub(HEADER_BYTES);
        let end = range.end.saturating_sub(HEADER_BYTES);
        let window = match reassembly.window_bytes(end - base) {
            0 => None,
            bytes => Some(reassembly.pool.take(bytes)?),
        };
        let head_end = match reassembly.placement {
            Placement::Decoded(spans, _) => spans
                .group_around(reassembly.page().0, base)
                .map_or(base, |group| if group.start == base { base } else { group.end.min(end) }),
            _ => base,
        };
        Ok(Self {
            reassembly: Arc::clone(reassembly),
            header: [0; HEADER_BYTES],
            at: range.start,
            range,
            window,
            base,
            head_end,
            splits: Vec::new(),
            checksum: 0,
            is_bad: false,
        })
    }

    /// Bytes still to arrive.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.range.end - self.at
    }

    /// Memory for the next bytes, at most `bytes`.
    pub fn spare(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(self.rest()).min(LANE_STEP_BYTES);
        let Some(at) = self.at.checked_sub(HEADER_BYTES) else {
            let end = HEADER_BYTES.min(self.at + bytes);
            return &mut self.header[self.at..end];
        };
        if let Some(window) = &mut self.window {
            let from = at - self.base;
            return &mut window[from..from + bytes];
        }
        let place = self.reassembly.page().1.wrapping_add(at);
        // SAFETY: the range lies within the page, which the slot holds (checked at opening). This chunk alone has claimed
        // it, and an engine does not touch a slot that is being filled.
        unsafe { std::slice::from_raw_parts_mut(place, bytes) }
    }

    /// Counts the first `bytes` bytes of the memory from `spare` as received; checksums them and moves them to the page if possible.
    ///
    /// # Panics
    /// If `bytes` is more than `spare` gave.
    pub fn advance(&mut self, bytes: usize) {
        let (in_header, before) = (self.at < HEADER_BYTES, self.checksum);
        let filled = &*self.spare(bytes);
        assert_eq!(filled.len(), bytes, "no more than there was room for");
        if in_header {
            self.at += bytes;
            return;
        }
        self.checksum = crc32c::append(before, filled);
        self.at += bytes;
        match self.reassembly.placement {
            Placement::InPlace | Placement::Kept => {}
            Placement::Scattered => self.scatter(),
            Placement::Decoded(spans, _) => self.decode(spans),
        }
    }

    /// Takes bytes that have already arrived.
    pub(super) fn fill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let place = self.spare(bytes.len());
            let count = place.len();
            place.copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
    }

    fn scatter(&mut self) {
        let Some(window) = &self.window else { return };
        let end = self.at - HEADER_BYTES;
        let (geometry, page) = self.reassembly.page();
        // SAFETY: the slot holds the page (checked at opening) while the reassembly lives; the window is our own memory.
        unsafe { raw::scatter_part(geometry, &window[..end - self.base], self.base, page) };
        self.base = end;
    }

    /// Decodes the complete groups, and moves the part of an incomplete one to the window's start.
    fn decode(&mut self, spans: Spans) {
        let end = self.at - HEADER_BYTES;
        let Some(window) = self.window.as_mut().filter(|_| end >= self.head_end) else { return };
        if self.base < self.head_end {
            let bytes = window[..self.head_end - self.base].to_vec();
            self.splits.push(Split { at: self.base, bytes });
        }
        let payload = window.as_ptr().wrapping_sub(self.base);
        let span = self.head_end..end;
        let (geometry, page) = self.reassembly.page();
        let decoded = if self.is_bad {
            Err(BadScale)
        } else {
            // SAFETY: the slot holds the page (checked at opening) while the reassembly lives; the span stands in the
            // window, which is our own memory.
            unsafe { spans.decode(geometry, payload, span, page) }
        };
        // Bytes that cannot be decoded are dropped, so that the window has room for the rest.
        let kept_from = decoded.unwrap_or(end);
        self.is_bad |= decoded.is_err();
        window.copy_within(kept_from - self.base..end - self.base, 0);
        self.base = kept_from;
        self.head_end = kept_from;
    }

    /// Ends the complete chunk. With the record's last chunk, returns the header if the record is sound and its page in the slot.
    ///
    /// # Errors
    /// `BAD_RECORD` with the reason; the slot's bytes are then unusable.
    pub fn finish(mut self) -> Result<Option<Header>> {
        debug_assert_eq!(self.rest(), 0, "the chunk is whole");
        let end = self.range.end.saturating_sub(HEADER_BYTES);
        if let (Placement::Decoded(..), Some(window)) = (self.reassembly.placement, &self.window)
            && self.base < end
        {
            self.splits.push(Split { at: self.base, bytes: window[..end - self.base].to_vec() });
        }
        let is_kept = matches!(self.reassembly.placement, Placement::Kept);
        self.reassembly.arrived(Arrived {
            kept: self.window.take_if(|_| is_kept).map(|window| (self.base, window)),
            range: self.range.clone(),
            header: &self.header,
            checksum: self.checksum,
            splits: std::mem::take(&mut self.splits),
            is_bad: self.is_bad,
        })
    }
}
