//! Owns the sending side of a vault's fetches: records in the order needed, cut into chunks for any free lane.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::kept::Kept;
use super::reading::{ReadPermit, TIERS, unpacked};
use super::spans::OpenSpan;
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::wire::{Body, Bytes, WriteBatch};
use crate::lent::LentPlace;
use crate::limits::{LANE_CHUNK_BYTES, LANE_KEYS_MAX};
use crate::record::{HASH_BYTES, Hash, PACKED_KEY_BYTES};
use crate::store::{ItemStatus, Pin, RecordKey, SlowTier};

impl Bytes for Pin {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn place(&self) -> Option<LentPlace<'_>> {
        Pin::place(self)
    }
}

/// Contents of probes; the chunk stays in the cache, so that only the link is measured.
static PLAIN: LazyLock<Arc<Vec<u8>>> = LazyLock::new(|| Arc::new(vec![0xA5; LANE_CHUNK_BYTES]));

/// The unsent part of a fetch.
pub struct FetchJob {
    pub request: u32,
    /// Number within the session; a client may use a request's number again.
    pub number: u64,
    pub namespace: Hash,
    pub keys: Vec<[u8; PACKED_KEY_BYTES]>,
    /// Number of lanes to use, counted from the last; 0: any.
    pub lanes: u16,
    /// Whether the client reads records in our memory.
    pub stands: bool,
    next: usize,
    /// Records that lanes are pinning now, and that may still yield chunks.
    pinning: usize,
    /// Records to cut: large ones whose first chunk was taken, and those read from a slow tier.
    begun: VecDeque<Cut>,
    /// Keys up to here were looked at ahead of the lanes.
    scouted: usize,
    /// Scouted items after `next` that are not in memory, ascending.
    aside: VecDeque<u32>,
    /// Items to read, by tier, in the order needed.
    slow: [VecDeque<u32>; TIERS],
    /// Items being read.
    reading: usize,
    /// Items that a slow tier did not give.
    missing: VecDeque<u32>,
    pub kept: Kept,
    /// Span, if the client traces.
    pub span: Option<OpenSpan>,
}

/// A pinned record being cut into chunks.
pub struct Cut {
    item: u32,
    pin: Arc<dyn Bytes>,
    at: usize,
    /// How long an archive was waited for; zero for a record from elsewhere.
    waited: Duration,
    /// Room that the record takes until its last chunk is claimed.
    _permit: Option<ReadPermit>,
}

/// Next task of a lane.
pub enum Claim {
    /// Pin this record, then report to the job of this number.
    Pin(Wanted),
    /// Name this whole record, which the client reads in our memory.
    Stand(Part),
    /// Send this part of a record.
    Chunk(Part),
    /// Report this record as missing.
    Missing(u32),
}

/// A record to pin.
pub struct Wanted {
    /// Number of its job.
    pub job: u64,
    pub item: u32,
    pub key: RecordKey,
    /// Whether the client reads it in our memory.
    pub stands: bool,
}

/// A part of a record to send.
pub struct Part {
    pub item: u32,
    pub pin: Arc<dyn Bytes>,
    pub range: Range<usize>,
    /// Name under which its bytes are counted.
    pub counter: &'static str,
    /// How long an archive was waited for; zero also for later parts.
    pub waited: Duration,
}

impl FetchJob {
    pub fn new(
        request: u32,
        namespace: Hash,
        keys: Vec<[u8; PACKED_KEY_BYTES]>,
        kept: Kept,
    ) -> Self {
        Self {
            request,
            number: 0,
            namespace,
            keys,
            lanes: 0,
            stands: false,
            next: 0,
            pinning: 0,
            begun: VecDeque::new(),
            scouted: 0,
            aside: VecDeque::new(),
            slow: Default::default(),
            reading: 0,
            missing: VecDeque::new(),
            kept,
            span: None,
        }
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
        self.next == self.keys.len()
            && self.pinning + self.reading == 0
            && self.begun.is_empty()
            && self.missing.is_empty()
            && !self.has_slow()
    }

    /// Takes the next part: what is there goes first, then the next record in the order needed. `None` while records are
    /// being pinned or read.
    pub fn claim(&mut self) -> Option<Claim> {
        if let Some(item) = self.missing.pop_front() {
            return Some(Claim::Missing(item));
        }
        if let Some(cut) = self.begun.front_mut() {
            let (item, pin) = (cut.item, Arc::clone(&cut.pin));
            let waited = std::mem::take(&mut cut.waited);
            let stands = self.stands && cut.at == 0 && pin.place().is_some();
            let range = if stands { cut.whole() } else { cut.cut() };
            if cut.at == pin.bytes().len() {
                self.begun.pop_front();
            }
            if let Some(span) = &mut self.span {
                span.add(0, range.len() as u64);
            }
            let counter = if self.keys.is_empty() { "probed_bytes" } else { "fetched_bytes" };
            let part = Part { item, pin, range, counter, waited };
            return Some(if stands { Claim::Stand(part) } else { Claim::Chunk(part) });
        }
        while let Some(packed) = self.keys.get(self.next) {
            let item = u32::try_from(self.next).ok()?;
            self.next += 1;
            if self.aside.front() == Some(&item) {
                self.aside.pop_front();
                continue;
            }
            self.pinning += 1;
            let key = RecordKey::from_packed(self.namespace, packed);
            let (job, stands) = (self.number, self.stands);
            return Some(Claim::Pin(Wanted { job, item, key, stands }));
        }
        None
    }

    /// Returns the next keys that nobody has looked at, `most` at most, and the index of the first.
    pub fn unscouted(&self, most: usize) -> (usize, Vec<RecordKey>) {
        let first = self.scouted.max(self.next);
        let end = self.keys.len().min(first + most);
        (first, unpacked(self.namespace, self.keys.get(first..end).unwrap_or_default()))
    }

    /// Takes the slow tiers of the keys from `first` on; `None` where a lane is to look itself.
    pub fn scouted(&mut self, first: usize, tiers: &[Option<SlowTier>]) {
        self.scouted = first + tiers.len();
        for (index, tier) in (first..).zip(tiers) {
            let item = u32::try_from(index).unwrap_or(u32::MAX);
            // Lanes may have come this far meanwhile.
            if let Some(tier) = tier.filter(|_| index >= self.next) {
                self.aside.push_back(item);
                self.slow[tier as usize].push_back(item);
            }
        }
    }

    /// Whether records wait for a read.
    pub fn has_slow(&self) -> bool {
        self.slow.iter().any(|slow| !slow.is_empty())
    }

    /// The next record to read from a tier.
    pub fn first_slow(&self, tier: SlowTier) -> Option<(u32, RecordKey)> {
        let item = *self.slow[tier as usize].front()?;
        let packed = self.keys.get(item as usize)?;
        Some((item, RecordKey::from_packed(self.namespace, packed)))
    }

    /// Counts the first record of a tier as being read.
    pub fn begin_read(&mut self, tier: SlowTier) {
        self.slow[tier as usize].pop_front();
        self.reading += 1;
    }

    /// Takes the result of a read.
    pub fn was_read(&mut self, item: u32, cut: Option<Cut>) {
        self.reading -= 1;
        if let (Some(span), Some(_)) = (&mut self.span, &cut) {
            span.add(1, 0);
        }
        match cut {
            Some(cut) => self.begun.push_back(cut),
            None => self.missing.push_back(item),
        }
    }

    /// Takes the result of a claimed pin of a record that is not in memory.
    pub fn put_off(&mut self, item: u32, tier: Option<SlowTier>) {
        self.pinning -= 1;
        if let Some(tier) = tier {
            self.slow[tier as usize].push_back(item);
        }
    }

    /// Takes the result of a claimed pin: `first` bytes for the claiming lane, `rest` for any lane. Returns whether another
    /// lane now has something to take.
    pub fn pinned(&mut self, first: u64, rest: Option<Cut>) -> bool {
        self.pinning -= 1;
        if let Some(span) = &mut self.span {
            span.add(1, first);
        }
        let is_for_others = rest.is_some() && self.lanes != 1;
        self.begun.extend(rest);
        is_for_others
    }
}

impl Cut {
    pub fn new(item: u32, pin: Arc<dyn Bytes>) -> Self {
        Self { item, pin, at: 0, waited: Duration::ZERO, _permit: None }
    }

    /// A record read from a slow tier, within the room of `permit`.
    pub fn read(item: u32, pin: Arc<dyn Bytes>, waited: Duration, permit: ReadPermit) -> Self {
        Self { waited, _permit: Some(permit), ..Self::new(item, pin) }
    }

    /// Whether the record has more than one chunk.
    pub fn is_large(&self) -> bool {
        self.pin.bytes().len() > LANE_CHUNK_BYTES
    }

    /// Index of the record in its fetch.
    pub fn item(&self) -> u32 {
        self.item
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

    /// Takes the whole record.
    fn whole(&mut self) -> Range<usize> {
        self.at = self.pin.bytes().len();
        0..self.at
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

/// Makes the frame that says how long the record of the next frame waited for an archive.
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
