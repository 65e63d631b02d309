//! Owns the sending side of a vault's fetches: records in the order needed, cut into chunks for any free lane.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::kept::Kept;
use super::spans::OpenSpan;
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::wire::{Body, Bytes, WriteBatch};
use crate::limits::{LANE_CHUNK_BYTES, LANE_KEYS_MAX};
use crate::record::{HASH_BYTES, Hash, PACKED_KEY_BYTES};
use crate::store::{ItemStatus, Pin, RecordKey};

impl Bytes for Pin {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Contents of probes; the chunk stays in the cache, so that only the link is measured.
static PLAIN: LazyLock<Arc<Vec<u8>>> = LazyLock::new(|| Arc::new(vec![0xA5; LANE_CHUNK_BYTES]));

/// The unsent part of a fetch.
pub struct FetchJob {
    pub request: u32,
    pub namespace: Hash,
    pub keys: Vec<[u8; PACKED_KEY_BYTES]>,
    /// Number of lanes to use, counted from the last; 0: any.
    pub lanes: u16,
    next: usize,
    /// Records that lanes are pinning now, and that may still yield chunks.
    pinning: usize,
    /// Large records whose first chunk was taken.
    begun: VecDeque<Cut>,
    pub kept: Kept,
    /// Span, if the client traces.
    pub span: Option<OpenSpan>,
}

/// A pinned record being cut into chunks.
pub struct Cut {
    item: u32,
    pin: Arc<dyn Bytes>,
    at: usize,
}

/// Next task of a lane.
pub enum Claim {
    /// Pin this record, then report to the job.
    Pin(u32, RecordKey),
    /// Send this part of a record, and count its bytes under this name.
    Chunk(u32, Arc<dyn Bytes>, Range<usize>, &'static str),
}

impl FetchJob {
    pub fn new(
        request: u32,
        namespace: Hash,
        keys: Vec<[u8; PACKED_KEY_BYTES]>,
        kept: Kept,
    ) -> Self {
        let begun = VecDeque::new();
        Self { request, namespace, keys, lanes: 0, next: 0, pinning: 0, begun, kept, span: None }
    }

    /// Limits the job to `lanes` lanes. A job of one record may use any, because only one lane is woken for it.
    pub fn over(self, lanes: u16) -> Self {
        let lanes = if self.keys.len() == 1 { 0 } else { lanes };
        Self { lanes, ..self }
    }

    /// Returns a probe's job of `chunks` chunks that are no record.
    pub fn plain(request: u32, chunks: u32, kept: Kept) -> Self {
        let cut = |item| Cut::new(item, Arc::clone(&*PLAIN) as Arc<dyn Bytes>);
        let begun = (0..chunks).map(cut).collect();
        Self { begun, ..Self::new(request, [0; 32], Vec::new(), kept) }
    }

    /// Whether lanes have taken all of it.
    pub fn is_over(&self) -> bool {
        self.next == self.keys.len() && self.pinning == 0 && self.begun.is_empty()
    }

    /// Takes the next part in the order needed; `None` while other lanes pin the last records.
    pub fn claim(&mut self) -> Option<Claim> {
        if let Some(cut) = self.begun.front_mut() {
            let (item, pin) = (cut.item, Arc::clone(&cut.pin));
            let range = cut.cut();
            if cut.at == pin.bytes().len() {
                self.begun.pop_front();
            }
            if let Some(span) = &mut self.span {
                span.add(0, range.len() as u64);
            }
            let counter = if self.keys.is_empty() { "probed_bytes" } else { "fetched_bytes" };
            return Some(Claim::Chunk(item, pin, range, counter));
        }
        let packed = self.keys.get(self.next)?;
        let item = u32::try_from(self.next).ok()?;
        self.next += 1;
        self.pinning += 1;
        Some(Claim::Pin(item, RecordKey::from_packed(self.namespace, packed)))
    }

    /// Takes the result of a claimed pin: `first` bytes for the claiming lane, `rest` for any lane; `None` for a missing
    /// record. Returns whether another lane now has something to take.
    pub fn pinned(&mut self, first: Option<u64>, rest: Option<Cut>) -> bool {
        self.pinning -= 1;
        if let (Some(span), Some(bytes)) = (&mut self.span, first) {
            span.add(1, bytes);
        }
        let is_for_others = rest.is_some() && self.lanes != 1;
        self.begun.extend(rest);
        is_for_others
    }
}

impl Cut {
    pub fn new(item: u32, pin: Arc<dyn Bytes>) -> Self {
        Self { item, pin, at: 0 }
    }

    /// The record.
    pub fn pin(&self) -> Arc<dyn Bytes> {
        Arc::clone(&self.pin)
    }

    /// Returns the next chunk's range. A record slightly longer than a chunk is halved, because a tiny chunk costs the
    /// receiver a wake-up of its own.
    pub fn cut(&mut self) -> Range<usize> {
        let rest = self.pin.bytes().len() - self.at;
        let bytes = match rest {
            0..=LANE_CHUNK_BYTES => rest,
            _ => rest.div_ceil(2).min(LANE_CHUNK_BYTES),
        };
        let range = self.at..self.at + bytes;
        self.at += bytes;
        range
    }

    /// Returns the uncut rest, if any.
    pub fn rest(self) -> Option<Self> {
        (self.at < self.pin.bytes().len()).then_some(self)
    }
}

/// Memory kept for a probe of `chunks` chunks, in either direction.
pub fn probe_bytes(chunks: u32) -> usize {
    chunks as usize * size_of::<Cut>()
}

/// Adds a part of a record to a batch.
pub fn push_chunk(
    batch: &mut WriteBatch,
    request: u32,
    item: u32,
    pin: Arc<dyn Bytes>,
    range: Range<usize>,
) {
    let frame = Frame {
        item,
        offset: range.start as u64,
        record_bytes: pin.bytes().len() as u64,
        bytes: u32::try_from(range.len()).expect("a chunk is small"),
        ..Frame::new(Kind::Chunk, request)
    };
    batch.push(frame, Some(Body { owner: pin, range }));
}

/// Adds the status of an item to a batch.
pub fn push_status(batch: &mut WriteBatch, request: u32, item: u32, status: ItemStatus) {
    batch.push(status_frame(request, item, status), None);
}

/// Returns the frame with the status of an item.
pub fn status_frame(request: u32, item: u32, status: ItemStatus) -> Frame {
    Frame { item, code: status as u16, ..Frame::new(Kind::Status, request) }
}

/// Makes the frame that says how long the frames after it waited for an archive.
pub fn waited_frame(waited: Duration) -> Frame {
    let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    Frame { offset: us, ..Frame::new(Kind::Waited, 0) }
}

/// Parses the namespace and the packed keys of a body.
pub fn parse_keys(body: &[u8]) -> Result<(Hash, &[[u8; PACKED_KEY_BYTES]])> {
    let short = || Error::lane_failed("the client sent keys without a namespace");
    let (namespace, rest) = body.split_first_chunk::<HASH_BYTES>().ok_or_else(short)?;
    let (keys, _) = rest.as_chunks::<PACKED_KEY_BYTES>();
    if keys.len() > LANE_KEYS_MAX {
        return Err(Error::lane_failed(format!("{} keys, {LANE_KEYS_MAX} at most", keys.len())));
    }
    Ok((*namespace, keys))
}
