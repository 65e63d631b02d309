//! Owns the reassembly of records whose chunks arrive in any order, several at a time: checked and decoded while in the cache.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::chunk::{Chunk, Split};
use super::{Inbox, Wanted, check_identity, check_key, refused};
use crate::arena::{Arena, SlotAccess};
use crate::codec::int8::{Isa, Spans};
use crate::codec::{BadPayload, Codec, Form, raw};
use crate::crc32c;
use crate::error::{Error, Result};
use crate::failpoint::failpoint;
use crate::geometry::Geometry;
use crate::limits::{CHECKSUM_SPAN_BYTES, INBOX_BYTES_MAX, LANE_STEP_BYTES};
use crate::outbox::check_fits;
use crate::pool::{Pool, PooledBuffer};
use crate::record::{self, HEADER_BYTES, Header};
use crate::seal::RecordKeys;
use crate::slots::Lease;

/// Way from payload to page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Placement {
    /// The payload equals the page, and is received in the slot itself.
    InPlace,
    /// Copied run by run, step after step.
    Scattered,
    /// Decoded group by group; the number is the length of the longest group.
    Decoded(Spans, usize),
    /// Kept until the record is complete, because it cannot be decoded, or trusted, before.
    Kept,
}

/// One record that is being received into a slot. The slot's bytes must not be used before the last chunk has found the
/// record sound.
#[derive(Debug)]
pub struct Reassembly {
    /// `None` for a record that is kept as a record.
    page: Option<(SlotAccess, Arc<Geometry>)>,
    pub(super) placement: Placement,
    pub(super) pool: Arc<Pool>,
    keys: Option<Arc<RecordKeys>>,
    wanted: Wanted,
    form: Form,
    record_bytes: usize,
    received: Mutex<Received>,
    /// The complete record, if it is kept as a record.
    whole: OnceLock<Arc<PooledBuffer>>,
}

#[derive(Debug)]
struct Received {
    header: [u8; HEADER_BYTES],
    claimed: Vec<Range<usize>>,
    done: Vec<Done>,
    done_bytes: usize,
    /// Parts of groups that span two chunks.
    splits: Vec<Split>,
    /// Kept parts with their payload offsets.
    kept: Vec<(usize, PooledBuffer)>,
    is_bad: bool,
}

/// An arrived chunk: its range in the record, and the checksum of its part of the payload.
#[derive(Debug)]
struct Done {
    range: Range<usize>,
    checksum: u32,
}

/// Results of a chunk for the whole record.
pub(super) struct Arrived<'a> {
    pub range: Range<usize>,
    pub header: &'a [u8; HEADER_BYTES],
    pub checksum: u32,
    pub splits: Vec<Split>,
    /// Kept bytes with their payload offset.
    pub kept: Option<(usize, PooledBuffer)>,
    pub is_bad: bool,
}

impl Inbox {
    /// Begins receiving a record of `record_bytes` into a leased slot. Where the page equals its canonical form, a raw
    /// record is received in the slot itself.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a stale lease or a slot that is smaller than the page, `BAD_RECORD` for a length that
    /// no record of this geometry has.
    pub fn begin(
        &self,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Arc<Geometry>,
        wanted: Wanted,
        record_bytes: u64,
    ) -> Result<Reassembly> {
        let record_bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX);
        let keys = self.keys.get().cloned();
        let payload_bytes = record_bytes.checked_sub(HEADER_BYTES + self.extra_bytes());
        let known = payload_bytes.and_then(|bytes| geometry.form_of_length(wanted.fidelity, bytes));
        let form = known.ok_or_else(|| {
            Error::bad_record(format!(
                "a record of {record_bytes} bytes: no codec makes such a one of this geometry"
            ))
        })?;
        let slot = arena.access(lease)?;
        check_fits(geometry, slot.bytes())?;
        let placement = match form.codec() {
            _ if keys.is_some() => Placement::Kept,
            Codec::Lossless => Placement::Kept,
            Codec::Raw if geometry.is_canonical() => Placement::InPlace,
            Codec::Raw => Placement::Scattered,
            Codec::Int8 | Codec::Int8MeanHad => {
                let spans = Spans::new((Isa::best(), form), geometry, slot.as_ptr());
                Placement::Decoded(spans, spans.group_bytes_max(geometry))
            }
        };
        let page = Some((slot, Arc::clone(geometry)));
        Ok(self.reassembly(page, placement, keys, form, wanted, record_bytes))
    }

    /// Begins receiving a record that is kept as a record, in memory of our own.
    ///
    /// # Errors
    /// `BAD_RECORD` for a length that no record has.
    pub fn keep(&self, wanted: Wanted, record_bytes: u64) -> Result<Reassembly> {
        let bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX);
        if bytes <= HEADER_BYTES || bytes > INBOX_BYTES_MAX {
            return Err(Error::bad_record(format!("a record of {record_bytes} bytes")));
        }
        Ok(self.reassembly(None, Placement::Kept, None, Codec::Raw.into(), wanted, bytes))
    }

    fn reassembly(
        &self,
        page: Option<(SlotAccess, Arc<Geometry>)>,
        placement: Placement,
        keys: Option<Arc<RecordKeys>>,
        form: Form,
        wanted: Wanted,
        record_bytes: usize,
    ) -> Reassembly {
        let received = Received {
            header: [0; HEADER_BYTES],
            claimed: Vec::new(),
            done: Vec::new(),
            done_bytes: 0,
            splits: Vec::new(),
            kept: Vec::new(),
            is_bad: false,
        };
        Reassembly {
            page,
            placement,
            pool: Arc::clone(&self.pool),
            keys,
            wanted,
            form,
            record_bytes,
            received: Mutex::new(received),
            whole: OnceLock::new(),
        }
    }
}

impl Reassembly {
    /// Length of the record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The complete, sound record, if it is kept as a record.
    #[must_use]
    pub fn whole(&self) -> Option<Arc<PooledBuffer>> {
        self.whole.get().cloned()
    }

    /// Geometry and memory of the page; only for a record that becomes a page.
    pub(super) fn page(&self) -> (&Arc<Geometry>, *mut u8) {
        let (slot, geometry) = self.page.as_ref().expect("a record that becomes a page");
        (geometry, slot.as_ptr())
    }

    /// Takes a complete record in chunks of `step` bytes; returns its header.
    ///
    /// # Errors
    /// As `chunk`, and `BAD_RECORD` or `RECORD_UNOPENED` where it is not the requested record.
    pub fn take(self: &Arc<Self>, record: &[u8], step: usize) -> Result<Header> {
        let mut whole = None;
        for (index, bytes) in record.chunks(step.max(1)).enumerate() {
            let mut chunk = self.chunk((index * step) as u64, bytes.len())?;
            chunk.fill(bytes);
            whole = chunk.finish()?;
        }
        whole.ok_or_else(|| Error::bad_record("it is not whole"))
    }

    /// Takes a complete record that stands in memory that others may write at any time. Each byte is copied once, and what was
    /// copied is checked and used.
    ///
    /// # Errors
    /// As `take`.
    pub fn take_standing(self: &Arc<Self>, record: &[u8]) -> Result<Header> {
        let whole = record.split_first_chunk().filter(|_| record.len() == self.record_bytes);
        let (head, payload) = whole.ok_or_else(|| Error::bad_record("it is not whole"))?;
        let (checksum, is_bad) = match (self.placement, &self.page) {
            (Placement::Scattered | Placement::InPlace, Some((slot, geometry))) => {
                self.claim(0..record.len())?;
                // SAFETY: the slot holds the page (checked at opening) while `self` lives, and lies elsewhere.
                (unsafe { raw::scatter_checked(geometry, payload, slot.as_ptr()) }, false)
            }
            (Placement::Decoded(spans, group_bytes), Some((slot, geometry))) => {
                let mut window = self.pool.take(CHECKSUM_SPAN_BYTES + group_bytes)?;
                self.claim(0..record.len())?;
                // SAFETY: as above.
                let (checksum, decoded) =
                    unsafe { spans.decode_standing(geometry, payload, slot.as_ptr(), &mut window) };
                (checksum, decoded.is_err())
            }
            // The other placements claim their range in `chunk`.
            _ => return self.take(record, record.len()),
        };
        let (range, splits) = (0..record.len(), Vec::new());
        let arrived = Arrived { range, header: head, checksum, splits, kept: None, is_bad };
        self.arrived(arrived)?.ok_or_else(|| Error::bad_record("it is not whole"))
    }

    /// Claims `bytes` bytes at `offset` for one receiver.
    ///
    /// # Errors
    /// `BAD_RECORD` for bytes that were claimed before or lie outside the record; `NO_MEMORY` at the inbox's limit.
    pub fn chunk(self: &Arc<Self>, offset: u64, bytes: usize) -> Result<Chunk> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(bytes);
        self.claim(range.clone())?;
        // Without memory for the chunk its range may be claimed again.
        Chunk::new(self, range).inspect_err(|_| {
            self.received().claimed.retain(|claimed| claimed.start != start);
        })
    }

    fn claim(&self, Range { start, end }: Range<usize>) -> Result<()> {
        if end > self.record_bytes || start >= end {
            let bytes = end - start;
            let text = format!("{bytes} bytes at {start} of a record of {}", self.record_bytes);
            return Err(Error::bad_record(text));
        }
        let mut received = self.received();
        if received.claimed.iter().any(|range| range.start < end && start < range.end) {
            return Err(Error::bad_record(format!("bytes at {start} came twice")));
        }
        received.claimed.push(start..end);
        Ok(())
    }

    /// Bytes of window that a chunk of `payload_bytes` needs: one step, and the rest of a group from the step before.
    pub(super) fn window_bytes(&self, payload_bytes: usize) -> usize {
        match self.placement {
            Placement::Kept => payload_bytes,
            Placement::InPlace => 0,
            Placement::Scattered => LANE_STEP_BYTES,
            Placement::Decoded(_, group_bytes) => LANE_STEP_BYTES + group_bytes,
        }
    }

    /// Adds a complete chunk; after the last one, checks the record.
    pub(super) fn arrived(&self, arrived: Arrived<'_>) -> Result<Option<Header>> {
        let mut received = self.received();
        let Range { start, end } = arrived.range;
        if start < HEADER_BYTES {
            let range = start..end.min(HEADER_BYTES);
            received.header[range.clone()].copy_from_slice(&arrived.header[range]);
        }
        received.is_bad |= arrived.is_bad;
        received.splits.extend(arrived.splits);
        received.kept.extend(arrived.kept);
        received.done_bytes += end - start;
        received.done.push(Done { range: start..end, checksum: arrived.checksum });
        if received.done_bytes < self.record_bytes {
            return Ok(None);
        }
        failpoint("reassembly.whole").map_err(|e| Error::made_to_fail(&e))?;
        let header = self.verdict(&mut received)?;
        failpoint("reassembly.sound").map_err(|e| Error::made_to_fail(&e))?;
        Ok(Some(header))
    }

    fn verdict(&self, received: &mut Received) -> Result<Header> {
        received.done.sort_unstable_by_key(|done| done.range.start);
        let in_payload =
            |done: &Done| done.range.end.saturating_sub(done.range.start.max(HEADER_BYTES));
        let checksum = received.done.iter().fold(0, |checksum, done| match in_payload(done) {
            0 => checksum,
            bytes => crc32c::combine(checksum, done.checksum, bytes),
        });
        let header = record::check(&received.header, self.record_bytes as u64, checksum)?;
        if self.page.is_none() {
            check_key(&self.wanted, &header)?;
            let mut whole = self.pool.take(self.record_bytes)?;
            whole[..HEADER_BYTES].copy_from_slice(&received.header);
            whole[HEADER_BYTES..].copy_from_slice(&self.joined(received)?);
            self.whole.get_or_init(|| Arc::new(whole));
            return Ok(header);
        }
        if let Some(keys) = &self.keys {
            let mut payload = self.joined(received)?;
            let (header, place) = keys.open(&received.header, &mut payload)?;
            self.check(&header)?;
            self.decode(&payload[place])?;
            return Ok(header);
        }
        self.check(&header)?;
        if received.is_bad {
            return Err(refused(BadPayload::Scale));
        }
        match self.placement {
            Placement::Decoded(spans, _) => self.decode_splits(spans, &mut received.splits)?,
            Placement::Kept => self.decode(&self.joined(received)?)?,
            Placement::InPlace | Placement::Scattered => {}
        }
        Ok(header)
    }

    fn check(&self, header: &Header) -> Result<()> {
        check_identity(&self.wanted, self.page().0, header)?;
        let codec = Codec::from_id(header.codec);
        if codec.map(|codec| codec.form(header.is_first())) == Some(self.form) {
            return Ok(());
        }
        Err(Error::bad_record("its length is not one of its codec"))
    }

    /// The whole payload, joined from the kept parts of all chunks.
    fn joined(&self, received: &mut Received) -> Result<PooledBuffer> {
        received.kept.sort_unstable_by_key(|(at, _)| *at);
        let mut parts = std::mem::take(&mut received.kept).into_iter();
        match (parts.next(), parts.len()) {
            (Some((_, whole)), 0) => Ok(whole),
            (first, _) => {
                let mut whole = self.pool.take(self.record_bytes - HEADER_BYTES)?;
                for (at, part) in first.into_iter().chain(parts) {
                    whole[at..at + part.len()].copy_from_slice(&part);
                }
                Ok(whole)
            }
        }
    }

    fn decode(&self, payload: &[u8]) -> Result<()> {
        let (geometry, page) = self.page();
        // SAFETY: the slot holds the page (checked at opening) while `self` lives; the payload is our own memory.
        unsafe { self.form.decode(geometry, payload, page) }.map_err(refused)
    }

    /// Decodes the groups that span two chunks, from the parts that both have kept.
    fn decode_splits(&self, spans: Spans, splits: &mut [Split]) -> Result<()> {
        let (geometry, page) = self.page();
        splits.sort_unstable_by_key(|split| split.at);
        let mut splits = splits.iter().peekable();
        while let Some(first) = splits.next() {
            let Some(group) = spans.group_around(geometry, first.at) else { continue };
            let mut bytes = first.bytes.clone();
            while let Some(split) = splits.next_if(|split| split.at < group.end) {
                bytes.extend_from_slice(&split.bytes);
            }
            if (first.at, bytes.len()) != (group.start, group.len()) {
                return Err(Error::bad_record("a part of it is missing"));
            }
            let payload = bytes.as_ptr().wrapping_sub(group.start);
            // SAFETY: the group's bytes lie there, in our own memory; the slot holds the page (checked at opening) while
            // `self` lives.
            unsafe { spans.decode(geometry, payload, group, page) }
                .map_err(|_| refused(BadPayload::Scale))?;
        }
        Ok(())
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
