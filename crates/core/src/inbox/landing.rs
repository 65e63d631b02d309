//! Owns the way in for records whose pieces arrive in any order, several at a time: checked and decoded while still in the cache.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::piece::{Edge, Piece};
use super::{Inbox, Wanted, check_identity, check_key, refused};
use crate::arena::{Arena, SlotAccess};
use crate::codec::int8::{self, Isa, Spans};
use crate::codec::{BadPayload, Codec, raw};
use crate::crc32c;
use crate::error::{Error, Result};
use crate::failpoint::failpoint;
use crate::geometry::Geometry;
use crate::limits::{INBOX_BYTES_MAX, LANE_STEP_BYTES};
use crate::outbox::check_fits;
use crate::pool::{Pool, PooledBuffer};
use crate::record::{self, HEADER_BYTES, Header};
use crate::seal::RecordKeys;
use crate::slots::Lease;

/// How a payload becomes a page.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// It is the page, byte for byte: received in the slot itself.
    InPlace,
    /// Copied run by run, step after step.
    Scattered,
    /// Decoded group by group; a group is never longer than this.
    Decoded(Spans, usize),
    /// Kept until all is there: nothing of it can be decoded before, or is believed.
    Kept,
}

/// One record on its way into a slot. Nothing may use the slot's bytes before the last piece has said that
/// the record is sound.
#[derive(Debug)]
pub struct Landing {
    /// None: it stays a record.
    page: Option<(SlotAccess, Arc<Geometry>)>,
    pub(super) way: Way,
    pub(super) pool: Arc<Pool>,
    keys: Option<Arc<RecordKeys>>,
    wanted: Wanted,
    codec: Codec,
    record_bytes: usize,
    pieces: Mutex<Pieces>,
    /// Of one that stays a record.
    whole: OnceLock<Arc<PooledBuffer>>,
}

#[derive(Debug)]
struct Pieces {
    header: [u8; HEADER_BYTES],
    claimed: Vec<Range<usize>>,
    done: Vec<Done>,
    done_bytes: usize,
    /// Parts of groups that lie across two pieces.
    edges: Vec<Edge>,
    /// Parts that are kept, and where each stands in the payload.
    kept: Vec<(usize, PooledBuffer)>,
    is_bad: bool,
}

/// A piece that has arrived: its place in the record, and the checksum of its part of the payload.
#[derive(Debug)]
struct Done {
    range: Range<usize>,
    checksum: u32,
}

/// What a piece leaves to the whole record.
pub(super) struct Arrived<'a> {
    pub range: Range<usize>,
    pub header: &'a [u8; HEADER_BYTES],
    pub checksum: u32,
    pub edges: Vec<Edge>,
    /// What was kept of it, and where that stands in the payload.
    pub kept: Option<(usize, PooledBuffer)>,
    pub is_bad: bool,
}

impl Inbox {
    /// Opens the way for one record of `record_bytes` into a leased slot. Where the page is its own canonical
    /// form, a raw record is received in the slot itself.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a stale lease or a slot that is smaller than the page, `BAD_RECORD` for a length that
    /// no record of this geometry has.
    pub fn land(
        &self,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Arc<Geometry>,
        wanted: Wanted,
        record_bytes: u64,
    ) -> Result<Landing> {
        let record_bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX);
        let keys = self.keys.get().cloned();
        let payload_bytes = record_bytes.checked_sub(HEADER_BYTES + self.extra_bytes());
        let known = payload_bytes.and_then(|bytes| {
            let mut codecs = Codec::ALL.into_iter();
            codecs.find(|codec| {
                codec.fits_fidelity(wanted.fidelity) && geometry.has_payload_of(*codec, bytes)
            })
        });
        let codec = known.ok_or_else(|| {
            Error::bad_record(format!(
                "a record of {record_bytes} bytes: no codec makes such a one of this geometry"
            ))
        })?;
        let slot = arena.access(lease)?;
        check_fits(geometry, slot.bytes())?;
        let way = match codec {
            _ if keys.is_some() => Way::Kept,
            Codec::Lossless => Way::Kept,
            Codec::Raw if geometry.is_canonical() => Way::InPlace,
            Codec::Raw => Way::Scattered,
            Codec::Int8 | Codec::Int8Had => {
                let spans = Spans::new((Isa::best(), codec), geometry, slot.as_ptr());
                Way::Decoded(spans, int8::group_bytes_max(geometry))
            }
        };
        let page = Some((slot, Arc::clone(geometry)));
        Ok(self.landing(page, way, keys, codec, wanted, record_bytes))
    }

    /// Opens the way for one record that stays as it is, in memory of ours.
    ///
    /// # Errors
    /// `BAD_RECORD` for a length that no record has.
    pub fn keep(&self, wanted: Wanted, record_bytes: u64) -> Result<Landing> {
        let bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX);
        if bytes <= HEADER_BYTES || bytes > INBOX_BYTES_MAX {
            return Err(Error::bad_record(format!("a record of {record_bytes} bytes")));
        }
        Ok(self.landing(None, Way::Kept, None, Codec::Raw, wanted, bytes))
    }

    fn landing(
        &self,
        page: Option<(SlotAccess, Arc<Geometry>)>,
        way: Way,
        keys: Option<Arc<RecordKeys>>,
        codec: Codec,
        wanted: Wanted,
        record_bytes: usize,
    ) -> Landing {
        let pieces = Pieces {
            header: [0; HEADER_BYTES],
            claimed: Vec::new(),
            done: Vec::new(),
            done_bytes: 0,
            edges: Vec::new(),
            kept: Vec::new(),
            is_bad: false,
        };
        Landing {
            page,
            way,
            pool: Arc::clone(&self.pool),
            keys,
            wanted,
            codec,
            record_bytes,
            pieces: Mutex::new(pieces),
            whole: OnceLock::new(),
        }
    }
}

impl Landing {
    /// Length of the record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The record, where it stays one and is sound.
    #[must_use]
    pub fn whole(&self) -> Option<Arc<PooledBuffer>> {
        self.whole.get().cloned()
    }

    /// Of the page; only what becomes one has a slot.
    pub(super) fn page(&self) -> (&Arc<Geometry>, *mut u8) {
        let (slot, geometry) = self.page.as_ref().expect("a record that becomes a page");
        (geometry, slot.as_ptr())
    }

    /// A whole record, in pieces of `step` bytes. Returns its header.
    ///
    /// # Errors
    /// As `piece`, and `BAD_RECORD` or `RECORD_UNOPENED` where it is not the record that was asked for.
    pub fn take(self: &Arc<Self>, record: &[u8], step: usize) -> Result<Header> {
        let mut whole = None;
        for (index, bytes) in record.chunks(step.max(1)).enumerate() {
            let mut piece = self.piece((index * step) as u64, bytes.len())?;
            piece.fill(bytes);
            whole = piece.finish()?;
        }
        whole.ok_or_else(|| Error::bad_record("it is not whole"))
    }

    /// A whole record where it stands, which nobody writes meanwhile. It goes to the page from there, because memory reads and writes
    /// at once, and a window in between would make it do one after the other.
    ///
    /// # Errors
    /// As `take`.
    pub fn take_standing(self: &Arc<Self>, record: &[u8]) -> Result<Header> {
        let whole = record.split_first_chunk().filter(|_| record.len() == self.record_bytes);
        let (head, payload) = whole.ok_or_else(|| Error::bad_record("it is not whole"))?;
        let (checksum, is_bad) = match (self.way, &self.page) {
            // Whoever brings pieces has claimed them.
            (Way::Scattered | Way::Decoded(..), Some((slot, geometry))) => {
                self.claim(0..record.len())?;
                self.to_page(payload, slot, geometry)
            }
            _ => return self.take(record, record.len()),
        };
        let (range, edges) = (0..record.len(), Vec::new());
        let arrived = Arrived { range, header: head, checksum, edges, kept: None, is_bad };
        self.arrived(arrived)?.ok_or_else(|| Error::bad_record("it is not whole"))
    }

    /// The payload's checksum, and whether it cannot be decoded.
    fn to_page(&self, payload: &[u8], slot: &SlotAccess, geometry: &Geometry) -> (u32, bool) {
        let page = slot.as_ptr();
        let Way::Decoded(spans, _) = self.way else {
            // SAFETY: the slot holds the page (checked at opening) while `self` lives, and lies elsewhere.
            return (unsafe { raw::scatter_checked(geometry, payload, page) }, false);
        };
        let (mut checksum, mut decoded) = (0, Ok(0));
        for (index, step) in payload.chunks(LANE_STEP_BYTES).enumerate() {
            let end = index * LANE_STEP_BYTES + step.len();
            // SAFETY: as above.
            let rest = |from| unsafe { spans.decode(geometry, payload.as_ptr(), from..end, page) };
            decoded = decoded.and_then(rest);
            checksum = crc32c::append(checksum, step);
        }
        (checksum, decoded.is_err())
    }

    /// The place of `bytes` bytes at `offset`, for one receiver alone.
    ///
    /// # Errors
    /// `BAD_RECORD` for bytes that came before, or that the record does not have; `NO_MEMORY` at the inbox's limit.
    pub fn piece(self: &Arc<Self>, offset: u64, bytes: usize) -> Result<Piece> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(bytes);
        self.claim(range.clone())?;
        // Without room for it, it may come again.
        Piece::new(self, range).inspect_err(|_| {
            self.pieces().claimed.retain(|claimed| claimed.start != start);
        })
    }

    fn claim(&self, Range { start, end }: Range<usize>) -> Result<()> {
        if end > self.record_bytes || start >= end {
            let bytes = end - start;
            let text = format!("{bytes} bytes at {start} of a record of {}", self.record_bytes);
            return Err(Error::bad_record(text));
        }
        let mut pieces = self.pieces();
        if pieces.claimed.iter().any(|range| range.start < end && start < range.end) {
            return Err(Error::bad_record(format!("bytes at {start} came twice")));
        }
        pieces.claimed.push(start..end);
        Ok(())
    }

    /// Bytes of memory that a piece of `payload_bytes` needs while it arrives: a step, and the part of a group that the step
    /// before left.
    pub(super) fn window_bytes(&self, payload_bytes: usize) -> usize {
        match self.way {
            Way::Kept => payload_bytes,
            Way::InPlace => 0,
            Way::Scattered => LANE_STEP_BYTES,
            Way::Decoded(_, group_bytes) => LANE_STEP_BYTES + group_bytes,
        }
    }

    /// A piece is whole. With the last one: the verdict.
    pub(super) fn arrived(&self, arrived: Arrived<'_>) -> Result<Option<Header>> {
        let mut pieces = self.pieces();
        let Range { start, end } = arrived.range;
        if start < HEADER_BYTES {
            let range = start..end.min(HEADER_BYTES);
            pieces.header[range.clone()].copy_from_slice(&arrived.header[range]);
        }
        pieces.is_bad |= arrived.is_bad;
        pieces.edges.extend(arrived.edges);
        pieces.kept.extend(arrived.kept);
        pieces.done_bytes += end - start;
        pieces.done.push(Done { range: start..end, checksum: arrived.checksum });
        if pieces.done_bytes < self.record_bytes {
            return Ok(None);
        }
        failpoint("landing.whole").map_err(|e| Error::made_to_fail(&e))?;
        let header = self.verdict(&mut pieces)?;
        failpoint("landing.sound").map_err(|e| Error::made_to_fail(&e))?;
        Ok(Some(header))
    }

    fn verdict(&self, pieces: &mut Pieces) -> Result<Header> {
        pieces.done.sort_unstable_by_key(|done| done.range.start);
        let in_payload =
            |done: &Done| done.range.end.saturating_sub(done.range.start.max(HEADER_BYTES));
        let checksum = pieces.done.iter().fold(0, |checksum, done| match in_payload(done) {
            0 => checksum,
            bytes => crc32c::combine(checksum, done.checksum, bytes),
        });
        let header = record::check(&pieces.header, self.record_bytes as u64, checksum)?;
        if self.page.is_none() {
            check_key(&self.wanted, &header)?;
            let mut whole = self.pool.take(self.record_bytes)?;
            whole[..HEADER_BYTES].copy_from_slice(&pieces.header);
            whole[HEADER_BYTES..].copy_from_slice(&self.joined(pieces)?);
            self.whole.get_or_init(|| Arc::new(whole));
            return Ok(header);
        }
        if let Some(keys) = &self.keys {
            let mut payload = self.joined(pieces)?;
            let (header, place) = keys.open(&pieces.header, &mut payload)?;
            self.check(&header)?;
            self.decode(&payload[place])?;
            return Ok(header);
        }
        self.check(&header)?;
        if pieces.is_bad {
            return Err(refused(BadPayload::Scale));
        }
        match self.way {
            Way::Decoded(spans, _) => self.decode_edges(spans, &mut pieces.edges)?,
            Way::Kept => self.decode(&self.joined(pieces)?)?,
            Way::InPlace | Way::Scattered => {}
        }
        Ok(header)
    }

    fn check(&self, header: &Header) -> Result<()> {
        check_identity(&self.wanted, self.page().0, header)?;
        if header.codec == self.codec.id() {
            return Ok(());
        }
        Err(Error::bad_record("its length is not one of its codec"))
    }

    /// The whole payload, of what all pieces have brought.
    fn joined(&self, pieces: &mut Pieces) -> Result<PooledBuffer> {
        pieces.kept.sort_unstable_by_key(|(at, _)| *at);
        let mut parts = std::mem::take(&mut pieces.kept).into_iter();
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
        unsafe { self.codec.decode(geometry, payload, page) }.map_err(refused)
    }

    /// Pieces decode the groups that lie whole within them; of those across two they have kept their parts.
    fn decode_edges(&self, spans: Spans, edges: &mut [Edge]) -> Result<()> {
        let (geometry, page) = self.page();
        edges.sort_unstable_by_key(|edge| edge.at);
        let mut edges = edges.iter().peekable();
        while let Some(first) = edges.next() {
            let Some(group) = int8::group_around(geometry, first.at) else { continue };
            let mut bytes = first.bytes.clone();
            while let Some(edge) = edges.next_if(|edge| edge.at < group.end) {
                bytes.extend_from_slice(&edge.bytes);
            }
            if (first.at, bytes.len()) != (group.start, group.len()) {
                return Err(Error::bad_record("a part of it is missing"));
            }
            let payload = bytes.as_ptr().wrapping_sub(group.start);
            // SAFETY: the group's bytes stand there, and are nobody else's; the slot holds the page (checked at
            // opening) while `self` lives.
            unsafe { spans.decode(geometry, payload, group, page) }
                .map_err(|_| refused(BadPayload::Scale))?;
        }
        Ok(())
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
