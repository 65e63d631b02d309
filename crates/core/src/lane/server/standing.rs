//! Owns the records that a vault and its client read in each other's memory: what is lent, and the names of records in a batch.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::fetching::Part;
use super::requests::Lane;
use super::session::Session;
use crate::lane::frame::{Frame, Kind};
use crate::lane::standing::Place;
use crate::lane::stream::Stream;
use crate::lane::wire::{Bytes, WriteBatch};
use crate::lent::Borrowed;

impl Session {
    /// Maps the client's memory, if it is a process of our user; returns whether records are read there.
    pub(super) fn borrow(&self, stream: &dyn Stream, lent: &OwnedFd) -> bool {
        if !stream.is_own_user() {
            return false;
        }
        let Ok(borrowed) = Borrowed::map(lent) else { return false };
        self.borrowed.set(borrowed).is_ok()
    }
}

/// Records named in one batch.
#[derive(Default)]
pub struct Named {
    request: u32,
    /// Body of the frame that is not in the batch yet.
    body: Vec<u8>,
    records: Vec<Arc<dyn Bytes>>,
}

impl Named {
    /// Names a record that the lane takes.
    pub fn push(&mut self, batch: &mut WriteBatch, lane: &Lane, request: u32, part: Part) {
        if request != self.request {
            self.push_to(batch);
            self.request = request;
        }
        let (item, bytes) = (part.item, part.range.len());
        let Some(offset) = part.pin.place().map(|place| place.offset) else { return };
        Place { item, offset, bytes: bytes as u64 }.push_to(&mut self.body);
        lane.standing.take(&*part.pin);
        self.records.push(part.pin);
        batch.count(bytes);
    }

    /// Keeps the records until the client has read them; called in the order in which the batches are sent.
    pub fn keep(&mut self, lane: &Lane) {
        lane.standing.keep(self.records.drain(..));
    }

    /// Adds the frame to a batch, if it names any record.
    pub fn push_to(&mut self, batch: &mut WriteBatch) {
        if !self.body.is_empty() {
            let frame = Frame::new(Kind::Standing, self.request);
            batch.push_owned(frame, std::mem::take(&mut self.body));
        }
    }
}

impl Part {
    /// A whole record from memory.
    pub fn whole(item: u32, pin: Arc<dyn Bytes>) -> Self {
        let (range, waited) = (0..pin.bytes().len(), std::time::Duration::ZERO);
        Self { item, pin, range, counter: "fetched_bytes", waited }
    }
}
