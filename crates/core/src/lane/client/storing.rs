//! Owns the sending side of a client's stores: the records that the vault wants, for any free lane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::standing::Place;
use crate::lane::wire::{Body, Bytes, WriteBatch};
use crate::lent::LentPlace;
use crate::limits::{LANE_CHUNK_BYTES, LANE_NO_RECORD_BYTES};
use crate::outbox::{DeferredRecord, Outbox};
use crate::pool::PooledBuffer;
use crate::record::PACKED_KEY_BYTES;
use crate::store::ItemStatus;

impl Bytes for PooledBuffer {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn place(&self) -> Option<LentPlace<'_>> {
        PooledBuffer::place(self)
    }
}

/// A record's bytes, which are only read, or a record to be encoded.
#[derive(Clone)]
pub enum Content {
    /// An encoded record.
    Made(Arc<dyn Bytes>),
    /// Encoded by the lane that sends it, which frees the memory once sent.
    Deferred(Arc<DeferredRecord>),
}

impl Content {
    /// Length of the record.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Made(bytes) => bytes.bytes().len(),
            Self::Deferred(deferred) => deferred.length(),
        }
    }

    /// Returns the record, with the announced length.
    ///
    /// # Errors
    /// As `DeferredRecord::make_as_announced`.
    pub fn make(&self) -> Result<Arc<dyn Bytes>> {
        Ok(match self {
            Self::Made(bytes) => Arc::clone(bytes),
            Self::Deferred(deferred) => Arc::new(deferred.make_as_announced()?),
        })
    }
}

/// One record to store.
#[derive(Clone)]
pub struct Outgoing {
    /// Block hash, group, shard.
    pub packed_key: [u8; PACKED_KEY_BYTES],
    /// The record.
    pub content: Content,
}

/// An open store.
pub struct StoreRequest {
    records: Vec<Outgoing>,
    /// Status per record; 0: open.
    statuses: Vec<u8>,
    open: usize,
    /// Next record that a lane may take; `None` until the vault's answer to the offer.
    next: Option<usize>,
    /// Bytes that lanes have taken.
    pub bytes: u64,
    /// Records that could not be made; the vault is told so, and answers once it no longer waits for them.
    missed: BTreeSet<u32>,
    /// Records that the vault reads where they stand.
    standing: BTreeMap<u32, Arc<dyn Bytes>>,
}

/// A record that one lane is sending; all its chunks use that lane, so that they arrive in order.
pub struct Sending {
    request: u32,
    item: u32,
    content: Content,
    /// Set once the record is made.
    record: Option<Arc<dyn Bytes>>,
    at: usize,
}

impl StoreRequest {
    pub fn new(records: Vec<Outgoing>) -> Self {
        let open = records.len();
        let statuses = vec![0; open];
        Self {
            statuses,
            open,
            records,
            next: None,
            bytes: 0,
            missed: BTreeSet::new(),
            standing: BTreeMap::new(),
        }
    }

    /// Takes the vault's answer to the offer.
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

    /// Takes the next record for a lane.
    pub fn claim(&mut self, request: u32) -> Option<Sending> {
        let next = self.next.as_mut()?;
        let unsent = |index: &usize| self.statuses[*index] == 0;
        let index = (*next..self.records.len()).find(unsent)?;
        *next = index + 1;
        let content = self.records[index].content.clone();
        self.bytes += content.length() as u64;
        let item = u32::try_from(index).ok()?;
        Some(Sending { request, item, content, record: None, at: 0 })
    }

    /// Marks a record as not made.
    pub fn miss(&mut self, sending: &Sending) {
        self.bytes -= sending.content.length() as u64;
        self.missed.insert(sending.item);
    }

    /// Keeps a record until the vault has read it; returns its bytes.
    pub fn stand(&mut self, sending: &Sending) -> usize {
        let Some(record) = &sending.record else { return 0 };
        self.standing.insert(sending.item, Arc::clone(record));
        record.bytes().len()
    }

    /// Bytes that the vault has not read yet.
    pub fn standing_bytes(&self) -> usize {
        self.standing.values().map(|record| record.bytes().len()).sum()
    }

    /// Releases a record that the vault has read; returns its bytes.
    pub fn was_read(&mut self, item: u32) -> usize {
        self.standing.remove(&item).map_or(0, |record| record.bytes().len())
    }

    /// Takes the result of one record; returns its bytes if the vault stored it.
    pub fn result(&mut self, frame: &Frame) -> Result<u64> {
        let status = u8::try_from(frame.code).unwrap_or_default();
        if status == ItemStatus::Unspecified as u8 {
            return Err(Error::lane_failed("the vault sent a result that says nothing"));
        }
        let is_missed = self.missed.contains(&frame.item);
        let status = if is_missed { ItemStatus::Incomplete as u8 } else { status };
        self.settle(frame.item as usize, status)?;
        let is_taken = [ItemStatus::Accepted as u8, ItemStatus::Durable as u8].contains(&status);
        Ok(if is_taken { self.records[frame.item as usize].content.length() as u64 } else { 0 })
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

    /// Returns the statuses once every record is settled.
    pub fn outcome(&self) -> Option<Vec<u8>> {
        (self.open == 0).then(|| self.statuses.clone())
    }

    /// Returns the statuses, with open records as incomplete.
    pub fn give_up(&self) -> Vec<u8> {
        let incomplete = ItemStatus::Incomplete as u8;
        self.statuses.iter().map(|status| if *status == 0 { incomplete } else { *status }).collect()
    }

    /// Whether a record that a lane is sending is still open.
    pub fn wants(&self, sending: &Sending) -> bool {
        self.statuses[sending.item as usize] == 0
    }
}

impl Sending {
    pub fn request(&self) -> u32 {
        self.request
    }

    pub fn is_made(&self) -> bool {
        self.record.is_some()
    }

    /// Where the whole record stands in the memory of `outbox`.
    pub fn place(&self, outbox: &Outbox) -> Option<Place> {
        let record = self.record.as_ref().filter(|_| self.at == 0)?;
        let place = record.place()?;
        let is_lent = std::ptr::eq(place.lendable, outbox.lendable()?);
        let bytes = record.bytes().len() as u64;
        is_lent.then_some(Place { item: self.item, offset: place.offset, bytes })
    }

    /// Encodes the record.
    pub fn make(&mut self) -> Result<()> {
        self.record = Some(self.content.make()?);
        Ok(())
    }

    /// Tells the vault that the record will not come.
    pub fn push_none(self, batch: &mut WriteBatch) {
        let frame = Frame {
            item: self.item,
            record_bytes: LANE_NO_RECORD_BYTES as u64,
            ..Frame::new(Kind::Chunk, self.request)
        };
        batch.push_owned(frame, vec![0; LANE_NO_RECORD_BYTES]);
    }

    /// Adds the record's next chunk to a batch; returns the rest, if any.
    pub fn push_chunk(mut self, batch: &mut WriteBatch) -> Option<Self> {
        let owner = self.record.clone()?;
        let record_bytes = owner.bytes().len();
        let end = record_bytes.min(self.at + LANE_CHUNK_BYTES);
        let range = self.at..end;
        let frame = Frame {
            item: self.item,
            offset: range.start as u64,
            record_bytes: record_bytes as u64,
            bytes: u32::try_from(range.len()).expect("a chunk is small"),
            ..Frame::new(Kind::Chunk, self.request)
        };
        batch.push(frame, Some(Body { owner, range }));
        self.at = end;
        (end < record_bytes).then_some(self)
    }
}
