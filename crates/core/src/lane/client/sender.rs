//! Owns the sending half of a client's lane: control frames first, then records, encoded here if deferred.

use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};

use super::session::Session;
use super::storing::Sending;
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::standing::{PLACE_BYTES, Place};
use crate::lane::stream::Stream;
use crate::lane::wire::{WriteBatch, send_all};
#[cfg(target_os = "linux")]
use crate::limits::LANE_STORING_NICE;
use crate::limits::{LANE_BATCH_FRAMES, LANE_CHUNK_BYTES};

/// The sending side of one lane.
pub struct Out {
    stream: Arc<dyn Stream>,
    /// Rest of a frame that did not fit at once, sent before anything else; locked while sending.
    pub rest: Mutex<Vec<u8>>,
}

impl Out {
    pub fn new(stream: &Arc<dyn Stream>) -> Self {
        Self { stream: Arc::clone(stream), rest: Mutex::default() }
    }

    /// Sends as much of a frame as fits without blocking, behind `rest`; false if `rest` is then not empty.
    pub fn send_now(&self, rest: &mut Vec<u8>, frame: Frame, body: &[u8]) -> bool {
        let header = frame.of(body).encode();
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        // The thread that sends the rest finds an error of the stream.
        let sent = if rest.is_empty() { self.stream.write_now(&parts).unwrap_or(0) } else { 0 };
        if sent < header.len() + body.len() {
            rest.extend([&header[..], body].concat().split_off(sent));
        }
        rest.is_empty()
    }
}

impl Session {
    /// Sends a lane's frames and records until the session ends.
    pub(super) fn send(&self, lane: usize) -> Result<()> {
        let Some(Out { stream, rest }) = self.outs.get().and_then(|outs| outs.get(lane)) else {
            return Err(Error::lane_failed("there is no such lane"));
        };
        if is_for_stores(lane, self.options.lanes, self.state().storing()) {
            give_way();
        }
        let stall = self.options.timing.stall;
        let mut batch = WriteBatch::default();
        let mut sending = None;
        loop {
            self.fill(lane, &mut batch, &mut sending)?;
            let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
            send_all(&**stream, &mut [IoSlice::new(&rest)], stall, self)?;
            rest.clear();
            batch.send(&**stream, stall, self)?;
        }
    }

    /// Waits for something to send and takes a batch, control frames first.
    fn fill(
        &self,
        lane: usize,
        batch: &mut WriteBatch,
        sending: &mut Option<Sending>,
    ) -> Result<()> {
        let mut state = self.state();
        loop {
            state.check()?;
            while let Some((frame, body)) = state.control[lane].pop_front() {
                batch.push_owned(frame, body);
            }
            let has_room =
                batch.frames() < LANE_BATCH_FRAMES && batch.body_bytes() <= LANE_CHUNK_BYTES / 2;
            // A record made while its request was given up is discarded, because its slot may soon have another owner.
            let current = sending.take().filter(|sending| state.wants(sending));
            match current.or_else(|| has_room.then(|| state.claim(lane)).flatten()) {
                Some(current) if has_room && current.is_made() => {
                    match state.name(&current, self.options.lends.as_deref()) {
                        Some(place) => push_place(batch, &current, place),
                        None => *sending = current.push_chunk(batch),
                    }
                }
                Some(mut current) if has_room => {
                    drop(state);
                    let made = current.make();
                    state = self.state();
                    match made {
                        Ok(()) => *sending = Some(current),
                        Err(_) if state.miss(&current) => current.push_none(batch),
                        Err(_) => {}
                    }
                }
                current if batch.frames() > 0 || state.rests.remove(&lane) => {
                    *sending = current;
                    return Ok(());
                }
                _ => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Adds the name of a record that the vault reads in our memory.
fn push_place(batch: &mut WriteBatch, sending: &Sending, place: Place) {
    let mut body = Vec::with_capacity(PLACE_BYTES);
    place.push_to(&mut body);
    batch.push_owned(Frame::new(Kind::Standing, sending.request()), body);
    batch.count(usize::try_from(place.bytes).unwrap_or(usize::MAX / 2));
}

/// Whether a lane carries only stores.
fn is_for_stores(lane: usize, lanes: u16, storing: usize) -> bool {
    usize::from(lanes) > storing && lane < storing
}

/// Lowers the calling thread's priority; on other systems a priority applies to the whole process.
fn give_way() {
    #[cfg(target_os = "linux")]
    if let Ok(own) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, own + LANE_STORING_NICE);
    }
}
