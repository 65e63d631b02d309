//! Owns the sending side of a client's stores: what the vault wants, record by record for whichever lane is free.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::wire::{Body, Bytes, Turn};
use crate::limits::LANE_CHUNK_BYTES;
use crate::pool::PooledBuffer;
use crate::record::PACKED_KEY_BYTES;
use crate::store::ItemStatus;

impl Bytes for PooledBuffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// One record to store.
#[derive(Clone)]
pub struct Outgoing {
    /// Block hash, group, shard.
    pub packed_key: [u8; PACKED_KEY_BYTES],
    /// Its bytes, which are only read.
    pub record: Arc<dyn Bytes>,
}

/// One store under way.
pub struct StoreRequest {
    records: Vec<Outgoing>,
    /// 0: open.
    statuses: Vec<u8>,
    open: usize,
    /// Next record that a lane may take; none before the vault has said what it wants.
    next: Option<usize>,
    /// Bytes that lanes have taken.
    pub bytes: u64,
}

/// A record that one lane is sending; all of its chunks travel on that lane, so they arrive in order.
pub struct Sending {
    request: u32,
    item: u32,
    record: Arc<dyn Bytes>,
    at: usize,
}

impl StoreRequest {
    pub fn new(records: Vec<Outgoing>) -> Self {
        let open = records.len();
        Self { statuses: vec![0; open], open, records, next: None, bytes: 0 }
    }

    /// The vault has said what it wants.
    pub fn wanted(&mut self, statuses: &[u8]) -> Result<()> {
        if self.next.is_some() || statuses.len() != self.records.len() {
            return Err(Error::lane_failed("the vault answered an offer twice, or not in full"));
        }
        self.next = Some(0);
        for (index, status) in statuses.iter().enumerate().filter(|(_, status)| **status != 0) {
            self.settle(index, *status)?;
        }
        Ok(())
    }

    /// The next record that a lane may send.
    pub fn claim(&mut self, request: u32) -> Option<Sending> {
        let next = self.next.as_mut()?;
        let unsent = |index: &usize| self.statuses[*index] == 0;
        let index = (*next..self.records.len()).find(unsent)?;
        *next = index + 1;
        let record = Arc::clone(&self.records[index].record);
        self.bytes += record.bytes().len() as u64;
        Some(Sending { request, item: u32::try_from(index).ok()?, record, at: 0 })
    }

    /// What became of one record.
    pub fn result(&mut self, frame: &Frame) -> Result<()> {
        let status = u8::try_from(frame.code).unwrap_or_default();
        if status == ItemStatus::Unspecified as u8 {
            return Err(Error::lane_failed("the vault sent a result that says nothing"));
        }
        self.settle(frame.item as usize, status)
    }

    fn settle(&mut self, index: usize, status: u8) -> Result<()> {
        let place =
            self.statuses.get_mut(index).filter(|status| **status == 0).ok_or_else(|| {
                Error::lane_failed("the vault settled a record twice, or an unknown one")
            })?;
        *place = status;
        self.open -= 1;
        Ok(())
    }

    /// Once every record is settled: their statuses.
    pub fn outcome(&self) -> Option<Vec<u8>> {
        (self.open == 0).then(|| self.statuses.clone())
    }

    /// What is open is incomplete.
    pub fn give_up(&self) -> Vec<u8> {
        let incomplete = ItemStatus::Incomplete as u8;
        self.statuses.iter().map(|status| if *status == 0 { incomplete } else { *status }).collect()
    }

    /// Whether a record that a lane is sending is still wanted.
    pub fn wants(&self, sending: &Sending) -> bool {
        self.statuses[sending.item as usize] == 0
    }
}

impl Sending {
    pub fn request(&self) -> u32 {
        self.request
    }

    /// Adds the next chunk to a turn; what is left, if anything.
    pub fn push_chunk(mut self, turn: &mut Turn) -> Option<Self> {
        let record_bytes = self.record.bytes().len();
        let end = record_bytes.min(self.at + LANE_CHUNK_BYTES);
        let range = self.at..end;
        let frame = Frame {
            item: self.item,
            offset: range.start as u64,
            record_bytes: record_bytes as u64,
            bytes: u32::try_from(range.len()).expect("a chunk is small"),
            ..Frame::new(Kind::Chunk, self.request)
        };
        turn.push(frame, Some(Body { owner: Arc::clone(&self.record), range }));
        self.at = end;
        (end < record_bytes).then_some(self)
    }
}
