//! Owns the records that a client and its vault read in each other's memory, on the client's side.

use std::os::fd::OwnedFd;

use super::requests::State;
use super::session::{ReceivingChunk, Session};
use crate::error::{Error, Result};
use crate::failpoint::failpoint;
use crate::lane::frame::{Frame, Kind};
use crate::lane::standing::{Place, parse_places};
use crate::lent::Borrowed;

impl Session {
    /// Notes what a vault's welcome says of memory: whether it reads in ours, and the descriptor of its own.
    pub(super) fn welcomed(&self, welcome: &Frame, lent: Option<&OwnedFd>) {
        self.state().lent.is_read |= welcome.code == 1;
        if let Some(borrowed) = lent.and_then(|fd| Borrowed::map(fd).ok()) {
            self.borrowed.get_or_init(|| borrowed);
        }
    }

    /// Copies records out of the vault's memory into their slots, then lets the vault go on.
    pub(super) fn read_standing(&self, lane: usize, frame: &Frame, body: &[u8]) -> Result<()> {
        let lent = self.borrowed.get();
        let lent = lent.ok_or_else(|| Error::lane_failed("the vault has lent no memory"))?;
        let _receiving = ReceivingChunk::begin(self);
        let mut read = 0;
        for Place { item, offset, bytes } in parse_places(body) {
            read += 1;
            let Some(fetch) = self.fetch(frame.request) else { continue };
            let record = lent.part(offset, bytes);
            let record =
                record.ok_or_else(|| Error::lane_failed("a record beyond what is lent"))?;
            failpoint("lane.read").map_err(|e| Error::made_to_fail(&e))?;
            let copied = fetch.stands(item, record)?;
            self.note_received();
            fetch.add_bytes(copied, self.received_at());
            self.options.down.moved(copied as u64);
            self.end_fetch(frame.request, &fetch);
        }
        let read = Frame { item: read, ..Frame::new(Kind::Read, 0) };
        self.send_control(self.state(), lane, read, Vec::new());
        Ok(())
    }

    /// Takes back room of records that the vault has read.
    pub(super) fn make_room(&self, state: &mut State, bytes: usize) {
        state.lent.standing_bytes -= bytes;
        if bytes > 0 && state.lent.waits {
            state.lent.waits = false;
            self.wake.notify_all();
        }
    }
}
