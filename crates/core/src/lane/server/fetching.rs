//! Owns the sending side of a vault's fetches: what is asked for in need order, cut into chunks for whichever lane is free.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::lane::frame::{Frame, Kind};
use crate::lane::wire::{Body, Bytes, Turn};
use crate::limits::LANE_CHUNK_BYTES;
use crate::record::{Hash, PACKED_KEY_BYTES};
use crate::store::{ItemStatus, Pin, RecordKey};

impl Bytes for Pin {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// One fetch, as far as it was not sent yet.
pub struct FetchJob {
    pub request: u32,
    pub namespace: Hash,
    pub keys: Vec<[u8; PACKED_KEY_BYTES]>,
    next: usize,
    /// Records that lanes are pinning right now: they may yet bring chunks.
    pinning: usize,
    /// Large records whose first chunk was taken.
    begun: VecDeque<Cut>,
}

/// A pinned record that is being cut into chunks.
pub struct Cut {
    item: u32,
    pin: Arc<Pin>,
    at: usize,
}

/// What a lane has taken to send next.
pub enum Claim {
    /// Pin this record, then tell the job.
    Pin(u32, RecordKey),
    /// Send this part of it.
    Chunk(u32, Arc<Pin>, Range<usize>),
}

impl FetchJob {
    pub fn new(request: u32, namespace: Hash, keys: Vec<[u8; PACKED_KEY_BYTES]>) -> Self {
        Self { request, namespace, keys, next: 0, pinning: 0, begun: VecDeque::new() }
    }

    /// All of it was taken by lanes.
    pub fn is_over(&self) -> bool {
        self.next == self.keys.len() && self.pinning == 0 && self.begun.is_empty()
    }

    /// The next part in need order; none while other lanes pin the last ones.
    pub fn claim(&mut self) -> Option<Claim> {
        if let Some(cut) = self.begun.front_mut() {
            let (item, pin) = (cut.item, Arc::clone(&cut.pin));
            let range = cut.cut();
            if cut.at == pin.len() {
                self.begun.pop_front();
            }
            return Some(Claim::Chunk(item, pin, range));
        }
        let packed = self.keys.get(self.next)?;
        let item = u32::try_from(self.next).ok()?;
        self.next += 1;
        self.pinning += 1;
        Some(Claim::Pin(item, RecordKey::from_packed(self.namespace, packed)))
    }

    /// A claimed record was pinned, or is missing: its first chunk is the claimant's, the rest is anybody's.
    pub fn pinned(&mut self, rest: Option<Cut>) {
        self.pinning -= 1;
        self.begun.extend(rest);
    }
}

impl Cut {
    pub fn new(item: u32, pin: Arc<Pin>) -> Self {
        Self { item, pin, at: 0 }
    }

    /// The record.
    pub fn pin(&self) -> Arc<Pin> {
        Arc::clone(&self.pin)
    }

    /// The next chunk's range. What would be left of a record that has little more than a chunk is shared out: a crumb
    /// costs the receiver a turn of its own.
    pub fn cut(&mut self) -> Range<usize> {
        let rest = self.pin.len() - self.at;
        let bytes = match rest {
            0..=LANE_CHUNK_BYTES => rest,
            _ => rest.div_ceil(2).min(LANE_CHUNK_BYTES),
        };
        let range = self.at..self.at + bytes;
        self.at += bytes;
        range
    }

    /// What is left to cut, if anything.
    pub fn rest(self) -> Option<Self> {
        (self.at < self.pin.len()).then_some(self)
    }
}

/// Adds a part of a record to a turn.
pub fn push_chunk(turn: &mut Turn, request: u32, item: u32, pin: Arc<Pin>, range: Range<usize>) {
    let frame = Frame {
        item,
        offset: range.start as u64,
        record_bytes: pin.len() as u64,
        bytes: u32::try_from(range.len()).expect("a chunk is small"),
        ..Frame::new(Kind::Chunk, request)
    };
    turn.push(frame, Some(Body { owner: pin, range }));
}

/// Adds what became of an item to a turn.
pub fn push_status(turn: &mut Turn, request: u32, item: u32, status: ItemStatus) {
    turn.push(status_frame(request, item, status), None);
}

/// What became of an item.
pub fn status_frame(request: u32, item: u32, status: ItemStatus) -> Frame {
    Frame { item, code: status as u16, ..Frame::new(Kind::Status, request) }
}
