//! Owns the way in for records whose pieces arrive in any order, several at a time: checked and decoded while still in the cache.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Inbox, Wanted, bad_scale, check_identity};
use crate::arena::{Arena, SlotAccess};
use crate::codec::Codec;
use crate::codec::int8::{self, Isa, Spans};
use crate::crc32c;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::outbox::check_fits;
use crate::pool::PooledBuffer;
use crate::record::{self, HEADER_BYTES, Header};
use crate::slots::Lease;

/// One record on its way into a slot. Nothing may use the slot's bytes before the last piece has said that
/// the record is sound.
#[derive(Debug)]
pub struct Landing {
    slot: SlotAccess,
    geometry: Arc<Geometry>,
    wanted: Wanted,
    codec: Codec,
    record_bytes: usize,
    /// Where payload bytes are received: in the slot itself, or in `buffer`.
    payload: *mut u8,
    buffer: Option<PooledBuffer>,
    /// For codecs that are decoded while the record arrives.
    spans: Option<Spans>,
    pieces: Mutex<Pieces>,
}

// SAFETY: memory behind `payload` is the buffer's or the slot's, which live as long as this does; pieces write
// disjoint ranges of it, because each range is claimed once.
unsafe impl Send for Landing {}
// SAFETY: as above.
unsafe impl Sync for Landing {}

#[derive(Debug)]
struct Pieces {
    header: [u8; HEADER_BYTES],
    claimed: Vec<Range<usize>>,
    done: Vec<Done>,
    done_bytes: usize,
    is_bad: bool,
}

/// A piece that has arrived: its place in the record, and the checksum of its part of the payload.
#[derive(Debug)]
struct Done {
    range: Range<usize>,
    checksum: u32,
}

impl Inbox {
    /// Opens the way for one record of `record_bytes` into a leased slot. Where the page is its own canonical
    /// form, a raw record is received in the slot itself.
    ///
    /// # Errors
    /// As `open`.
    pub fn land(
        &self,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Arc<Geometry>,
        wanted: Wanted,
        record_bytes: u64,
    ) -> Result<Landing> {
        let payload_bytes =
            usize::try_from(record_bytes).ok().and_then(|bytes| bytes.checked_sub(HEADER_BYTES));
        let codec = Codec::ALL.into_iter().find(|codec| {
            payload_bytes.is_some() && geometry.payload_bytes(*codec) == payload_bytes
        });
        let Some((codec, payload_bytes)) = codec.zip(payload_bytes) else {
            let text = format!(
                "a record of {record_bytes} bytes: no codec makes such a one of this geometry"
            );
            return Err(Error::bad_record(text));
        };
        let slot = arena.access(lease)?;
        check_fits(geometry, slot.bytes())?;
        let (payload, buffer) = if codec == Codec::Raw && geometry.is_canonical() {
            (slot.as_ptr(), None)
        } else {
            let mut buffer = self.pool.take(payload_bytes)?;
            (buffer.as_mut_ptr(), Some(buffer))
        };
        let spans =
            (codec == Codec::Int8).then(|| Spans::new(Isa::best(), geometry, slot.as_ptr()));
        Ok(Landing {
            slot,
            geometry: Arc::clone(geometry),
            wanted,
            codec,
            record_bytes: HEADER_BYTES + payload_bytes,
            payload,
            buffer,
            spans,
            pieces: Mutex::new(Pieces {
                header: [0; HEADER_BYTES],
                claimed: Vec::new(),
                done: Vec::new(),
                done_bytes: 0,
                is_bad: false,
            }),
        })
    }
}

impl Landing {
    /// Length of the record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The place of `bytes` bytes at `offset`, for one receiver alone.
    ///
    /// # Errors
    /// `BAD_RECORD` for bytes that came before, or that the record does not have.
    pub fn piece(self: &Arc<Self>, offset: u64, bytes: usize) -> Result<Piece> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes);
        if end > self.record_bytes || bytes == 0 {
            let text = format!("{bytes} bytes at {offset} of a record of {}", self.record_bytes);
            return Err(Error::bad_record(text));
        }
        let mut pieces = self.pieces();
        if pieces.claimed.iter().any(|range| range.start < end && start < range.end) {
            return Err(Error::bad_record(format!("bytes at {offset} came twice")));
        }
        pieces.claimed.push(start..end);
        Ok(Piece {
            landing: Arc::clone(self),
            header: [0; HEADER_BYTES],
            range: start..end,
            at: start,
            decoded: start.saturating_sub(HEADER_BYTES),
            checksum: 0,
            is_bad: false,
        })
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every byte is here: the verdict, and what is left to decode.
    fn finish(&self) -> Result<Header> {
        let mut pieces = self.pieces();
        pieces.done.sort_unstable_by_key(|done| done.range.start);
        let in_payload =
            |done: &Done| done.range.end.saturating_sub(done.range.start.max(HEADER_BYTES));
        let checksum = pieces.done.iter().fold(0, |checksum, done| match in_payload(done) {
            0 => checksum,
            bytes => crc32c::combine(checksum, done.checksum, bytes),
        });
        let header = record::check(&pieces.header, self.record_bytes as u64, checksum)?;
        check_identity(&self.wanted, &self.geometry, &header)?;
        if header.codec != self.codec.id() {
            return Err(Error::bad_record("its length is not one of its codec"));
        }
        if pieces.is_bad {
            return Err(bad_scale(int8::BadScale));
        }
        self.decode_rest(&pieces.done)?;
        Ok(header)
    }

    fn decode_rest(&self, done: &[Done]) -> Result<()> {
        let Some(spans) = self.spans else {
            if self.buffer.is_some() {
                // SAFETY: the buffer holds the payload, and nobody writes it any more.
                let payload = unsafe {
                    std::slice::from_raw_parts(self.payload, self.record_bytes - HEADER_BYTES)
                };
                // SAFETY: the slot holds the page (checked at opening) while `self.slot` lives.
                unsafe { self.codec.decode(&self.geometry, payload, self.slot.as_ptr()) }
                    .map_err(bad_scale)?;
            }
            return Ok(());
        };
        // Pieces decode the groups that lie whole within them; those across two are left.
        for end in done.iter().map(|done| done.range.end) {
            let at = end.saturating_sub(HEADER_BYTES);
            let Some(group) =
                int8::group_around(&self.geometry, at).filter(|group| group.start < at)
            else {
                continue;
            };
            // SAFETY: as above.
            unsafe { spans.decode(&self.geometry, self.payload, group, self.slot.as_ptr()) }
                .map_err(bad_scale)?;
        }
        Ok(())
    }
}

/// Consecutive bytes of a record, in the middle of arriving; nobody else receives them.
#[derive(Debug)]
pub struct Piece {
    landing: Arc<Landing>,
    header: [u8; HEADER_BYTES],
    range: Range<usize>,
    at: usize,
    /// Of the payload: the groups before are decoded, or are not this piece's.
    decoded: usize,
    checksum: u32,
    is_bad: bool,
}

impl Piece {
    /// Bytes still to come.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.range.end - self.at
    }

    /// Where the next bytes belong, at most `bytes` of them.
    pub fn spare(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.range.end.min(self.at.saturating_add(bytes));
        if self.at < HEADER_BYTES {
            return &mut self.header[self.at..end.min(HEADER_BYTES)];
        }
        let place = self.landing.payload.wrapping_add(self.at - HEADER_BYTES);
        // SAFETY: the range lies within the payload's memory, was claimed by this piece alone, and an engine
        // does not touch a slot that is being filled.
        unsafe { std::slice::from_raw_parts_mut(place, end - self.at) }
    }

    /// The first `bytes` bytes of what `spare` gave are there: they are checked, and decoded as far as they go.
    ///
    /// # Panics
    /// If they are more than `spare` gave.
    pub fn advance(&mut self, bytes: usize) {
        let in_header = self.at < HEADER_BYTES;
        let before = self.checksum;
        let filled = &*self.spare(bytes);
        assert_eq!(filled.len(), bytes, "no more than there was room for");
        let checksum = if in_header { before } else { crc32c::append(before, filled) };
        self.checksum = checksum;
        self.at += bytes;
        let Some(spans) = self.landing.spans.filter(|_| !in_header && !self.is_bad) else { return };
        let span = self.decoded..self.at - HEADER_BYTES;
        let (geometry, page) = (&self.landing.geometry, self.landing.slot.as_ptr());
        // SAFETY: the slot holds the page (checked at opening) while the landing lives; the span belongs to this
        // piece, has arrived, and is not written again.
        match unsafe { spans.decode(geometry, self.landing.payload, span, page) } {
            Ok(end) => self.decoded = end,
            Err(int8::BadScale) => self.is_bad = true,
        }
    }

    /// The piece is whole. With the record's last piece: whether the record is sound and its page in the slot.
    ///
    /// # Errors
    /// `BAD_RECORD` with the reason; the slot's bytes are of no use then.
    pub fn finish(self) -> Result<Option<Header>> {
        debug_assert_eq!(self.rest(), 0, "the piece is whole");
        {
            let mut pieces = self.landing.pieces();
            let Range { start, end } = self.range;
            if start < HEADER_BYTES {
                let range = start..end.min(HEADER_BYTES);
                pieces.header[range.clone()].copy_from_slice(&self.header[range]);
            }
            pieces.is_bad |= self.is_bad;
            pieces.done_bytes += end - start;
            pieces.done.push(Done { range: start..end, checksum: self.checksum });
            if pieces.done_bytes < self.landing.record_bytes {
                return Ok(None);
            }
        }
        self.landing.finish().map(Some)
    }
}
