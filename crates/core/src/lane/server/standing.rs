//! Owns the records that a vault and its client read in each other's memory, on the vault's side: names in a batch, and copies.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::fetching::{Part, status_frame};
use super::requests::Lane;
use super::session::Session;
use super::storing::Begun;
use crate::error::{Error, Result};
use crate::failpoint::failpoint;
use crate::lane::frame::{Frame, Kind};
use crate::lane::standing::{Place, parse_places};
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

    /// Names further records on a lane whose client has read some, from the thread that reads, because waking another takes longer.
    pub(super) fn go_on(&self, lane: &Lane) -> Result<()> {
        let Ok(_sending) = lane.sending.try_lock() else { return Ok(()) };
        let (mut batch, mut named) = (WriteBatch::default(), Named::default());
        self.fill(&mut batch, &mut named, lane, false)?;
        named.keep(lane);
        batch.send(&*lane.stream, self.shared.options.timing.stall, self)
    }

    /// Stores records that stand in the client's memory. What is copied is checked.
    pub(super) fn copy(&self, frame: &Frame, body: &[u8], lane: &Lane) -> Result<()> {
        let lent = self.borrowed.get();
        let lent = lent.ok_or_else(|| Error::lane_failed("the client has lent no memory"))?;
        for Place { item, offset, bytes } in parse_places(body) {
            let record = lent.part(offset, bytes);
            let record =
                record.ok_or_else(|| Error::lane_failed("a record beyond what is lent"))?;
            let frame = Frame { item, record_bytes: bytes, offset: 0, ..*frame };
            let begun = match self.state().stores.get_mut(&frame.request) {
                Some(job) => job.begin(&frame),
                None => Begun::Over,
            };
            let status = match begun {
                Begun::Over => continue,
                Begun::Plain => return Err(Error::lane_failed("a probe's chunk cannot stand")),
                Begun::Refused(status) => Some(status),
                Begun::Receiving(mut reservation) => {
                    failpoint("lane.copy").map_err(|e| Error::made_to_fail(&e))?;
                    reservation.copy(record)?;
                    self.stored(&frame, reservation)?
                }
            };
            self.forget_if_over(&frame);
            let Some(status) = status else { continue };
            self.shared.counts.add_outcome(status, bytes);
            self.answer_at_once(status_frame(frame.request, item, status), Vec::new(), lane)?;
        }
        Ok(())
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
