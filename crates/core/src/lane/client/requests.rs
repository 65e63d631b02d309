//! Owns the open state of a client's lanes: requests by number, unsent control frames, and the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Outcome;
use super::fetching::FetchRequest;
use super::storing::{Sending, StoreRequest};
use crate::error::{Error, Result};
use crate::lane::frame::{FETCH_STANDING, Frame};
use crate::lane::standing::Place;
use crate::lane::stream::Stream;
use crate::limits::{LANE_STANDING_BYTES_MAX, LANES_STORING_MAX};
use crate::outbox::Outbox;

/// Kind of an open request.
pub enum Request {
    Lookup { keys: usize },
    Fetch(Arc<FetchRequest>),
    Store(StoreRequest),
    Probe(Probe),
}

#[derive(Default)]
pub struct State {
    pub closed: Option<Error>,
    pub is_up: bool,
    /// Number of lanes used for fetches in clear; 0: all.
    pub fetching: u16,
    /// Records that the two sides read in each other's memory.
    pub lent: Lent,
    pub lanes: Vec<Arc<dyn Stream>>,
    /// Lanes that the vault has closed.
    pub closed_lanes: usize,
    pub rails: usize,
    /// Rails that ended the session.
    pub failed_rails: Vec<usize>,
    /// Unsent control frames per lane; a request and its cancel use the same lane, so that the cancel cannot overtake it.
    pub control: Vec<VecDeque<(Frame, Vec<u8>)>>,
    /// Lanes with the unsent rest of a frame.
    pub rests: BTreeSet<usize>,
    pub requests: BTreeMap<u32, Open>,
    /// True while the watching thread waits for a time: a fetch that begins needs not wake it.
    pub is_watching: bool,
    pub last: u32,
    /// Number of chunks being received.
    pub receiving: usize,
    /// An end that was not reported yet.
    ended: Option<Ended>,
}

/// Directions in which records are read where they stand.
#[derive(Default)]
pub struct Lent {
    /// Whether fetched records are read in the vault's memory.
    pub reads: bool,
    /// Whether stored records are read in ours.
    pub is_read: bool,
    /// Bytes of our records that the vault has not read yet.
    pub standing_bytes: usize,
    /// Whether a lane waits until these are fewer.
    pub waits: bool,
}

/// Reason for the end, and the requests that were open.
pub type Ended = (Error, BTreeMap<u32, Open>);

/// A request without an outcome.
pub struct Open {
    pub request: Request,
    pub lane: usize,
    pub begun: Instant,
}

impl State {
    /// Ends everything; `take_ended` returns the end for its report.
    pub fn close(&mut self, error: &Error) {
        self.closed = Some(error.clone());
        self.ended = Some((error.clone(), std::mem::take(&mut self.requests)));
    }

    /// Takes an unreported end, once no chunk is being received.
    pub fn take_ended(&mut self) -> Option<Ended> {
        if self.receiving > 0 { None } else { self.ended.take() }
    }

    pub fn check(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    /// Number of lanes that carry stores; at least one per rail.
    pub fn storing(&self) -> usize {
        LANES_STORING_MAX.max(self.rails)
    }

    /// Lane of a request: one that carries no stores, if there is one.
    pub fn lane_of(&self, id: u32) -> usize {
        let lanes = self.control.len();
        let storing = self.storing();
        let first = if lanes > storing { storing } else { 0 };
        first + id as usize % (lanes - first)
    }

    /// Returns a request's frame with its number and, for a fetch, the number of lanes.
    pub fn with_id(&self, request: &Request, frame: Frame, id: u32) -> Frame {
        let code = match request {
            Request::Fetch(fetch) if !fetch.opens_records() => self.fetching,
            _ => frame.code,
        };
        let item = match request {
            Request::Fetch(_) if self.lent.reads => FETCH_STANDING,
            _ => frame.item,
        };
        Frame { request: id, code, item, ..frame }
    }

    /// Takes the next record for this lane, from the oldest store that has one.
    pub fn claim(&mut self, lane: usize) -> Option<Sending> {
        if lane >= self.storing() {
            return None;
        }
        self.lent.waits = self.lent.standing_bytes >= LANE_STANDING_BYTES_MAX;
        if self.lent.waits {
            return None;
        }
        self.requests.iter_mut().find_map(|(id, open)| match &mut open.request {
            Request::Store(store) => store.claim(*id),
            _ => None,
        })
    }

    pub fn wants(&self, sending: &Sending) -> bool {
        match self.requests.get(&sending.request()).map(|open| &open.request) {
            Some(Request::Store(store)) => store.wants(sending),
            _ => false,
        }
    }

    /// Marks a record as not made; false if it is no longer wanted.
    pub fn miss(&mut self, sending: &Sending) -> bool {
        match self.requests.get_mut(&sending.request()).map(|open| &mut open.request) {
            Some(Request::Store(store)) if store.wants(sending) => {
                store.miss(sending);
                true
            }
            _ => false,
        }
    }

    /// Returns the outcome of a store once all its records are settled.
    pub fn stored(&mut self, id: u32) -> Option<Outcome> {
        let Open { request: Request::Store(store), .. } = self.requests.get(&id)? else {
            return None;
        };
        let done = Outcome::Done(store.outcome()?, store.bytes, None);
        self.end(id, done)
    }

    /// Removes a request. Its records, if any, stand no more.
    pub fn remove(&mut self, id: u32) -> Option<Open> {
        let open = self.requests.remove(&id)?;
        if let Request::Store(store) = &open.request {
            self.lent.standing_bytes -= store.standing_bytes();
        }
        Some(open)
    }

    /// Names a record of `outbox` to the vault, which reads it where it stands; `None` where its bytes are to be sent.
    pub fn name(&mut self, sending: &Sending, outbox: Option<&Outbox>) -> Option<Place> {
        let place = sending.place(outbox.filter(|_| self.lent.is_read)?)?;
        match self.requests.get_mut(&sending.request()).map(|open| &mut open.request) {
            Some(Request::Store(store)) => self.lent.standing_bytes += store.stand(sending),
            _ => return None,
        }
        Some(place)
    }

    /// Removes an answered request.
    pub fn end(&mut self, id: u32, outcome: Outcome) -> Option<Outcome> {
        self.remove(id).map(|_| outcome)
    }
}

impl Request {
    pub fn give_up(&self) -> Vec<u8> {
        match self {
            Self::Fetch(fetch) => fetch.give_up(),
            Self::Store(store) => store.give_up(),
            Self::Lookup { .. } | Self::Probe(_) => Vec::new(),
        }
    }
}

/// A probe from the vault: chunks that are no record.
pub struct Probe {
    chunks: u32,
    pub bytes: u64,
}

impl Probe {
    pub fn new(chunks: u32) -> Self {
        Self { chunks, bytes: 0 }
    }

    /// Counts a chunk; returns the outcome with the last.
    fn arrived(&mut self, bytes: u32) -> Option<Outcome> {
        self.bytes += u64::from(bytes);
        self.chunks = self.chunks.saturating_sub(1);
        (self.chunks == 0).then_some(Outcome::Done(Vec::new(), self.bytes, None))
    }
}

impl State {
    /// Counts a discarded chunk of a probe, or of a request that is over.
    pub fn skipped(&mut self, frame: &Frame) -> Option<Outcome> {
        let Some(Open { request: Request::Probe(probe), .. }) =
            self.requests.get_mut(&frame.request)
        else {
            return None;
        };
        let done = probe.arrived(frame.bytes)?;
        self.end(frame.request, done)
    }
}

/// Number of lanes for fetches in clear: one per processor, since each lane keeps one busy at both ends (or at ours, where
/// records are read in the vault's memory), but at least one per rail. Fetches over TLS use all lanes, because decryption makes the receiving end the slower one.
pub fn fetching(lanes: &[Arc<dyn Stream>], rails: usize, reads: bool) -> u16 {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let is_shared = lanes.first().is_some_and(|lane| lane.is_within_machine());
    let ours = if is_shared && !reads { processors / 2 } else { processors };
    u16::try_from(ours.clamp(rails, lanes.len().max(rails))).unwrap_or(u16::MAX)
}
