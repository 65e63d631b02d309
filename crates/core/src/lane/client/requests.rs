//! Owns what a client's lanes have open: requests by number, what waits to be sent, and whether all is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::Outcome;
use super::fetching::FetchRequest;
use super::storing::{Sending, StoreRequest};
use crate::error::{Error, Result};
use crate::lane::frame::Frame;
use crate::lane::stream::Stream;
use crate::limits::LANES_STORING_MAX;

/// What a request is waiting for.
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
    /// Lanes that bring what is fetched in clear; 0: all.
    pub fetching: u16,
    pub lanes: Vec<Arc<dyn Stream>>,
    pub rails: usize,
    /// Those that it ended for.
    pub failed_rails: Vec<usize>,
    /// Per lane; a request and its cancel go the same way, so that the one cannot overtake the other.
    pub control: Vec<VecDeque<(Frame, Vec<u8>)>>,
    /// Lanes on which a frame did not fit at once.
    pub rests: BTreeSet<usize>,
    pub requests: BTreeMap<u32, Open>,
    pub last: u32,
    /// Chunks that are being received.
    pub receiving: usize,
    /// A break that nobody was told of yet.
    ended: Option<Ended>,
}

/// Why the lanes ended, and what was open.
pub type Ended = (Error, BTreeMap<u32, Open>);

/// A request without an outcome.
pub struct Open {
    pub request: Request,
    pub lane: usize,
    pub begun: Instant,
}

impl State {
    /// Ends everything; `take_ended` says so.
    pub fn close(&mut self, error: &Error) {
        self.closed = Some(error.clone());
        self.ended = Some((error.clone(), std::mem::take(&mut self.requests)));
    }

    /// A break, once no chunk is being received any more.
    pub fn take_ended(&mut self) -> Option<Ended> {
        if self.receiving > 0 { None } else { self.ended.take() }
    }

    pub fn check(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    /// Lanes that carry what is stored, over every rail.
    pub fn storing(&self) -> usize {
        LANES_STORING_MAX.max(self.rails)
    }

    /// The lane of a request: one that carries no stored bytes, where there is one.
    pub fn lane_of(&self, id: u32) -> usize {
        let lanes = self.control.len();
        let storing = self.storing();
        let first = if lanes > storing { storing } else { 0 };
        first + id as usize % (lanes - first)
    }

    /// The frame of a request as it goes out.
    pub fn with_id(&self, request: &Request, frame: Frame, id: u32) -> Frame {
        let code = match request {
            Request::Fetch(fetch) if !fetch.opens_records() => self.fetching,
            _ => frame.code,
        };
        Frame { request: id, code, ..frame }
    }

    /// The next record that this lane may send, of the oldest store that has one.
    pub fn claim(&mut self, lane: usize) -> Option<Sending> {
        if lane >= self.storing() {
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

    /// A record could not be made; false where nobody wants it any more.
    pub fn miss(&mut self, sending: &Sending) -> bool {
        match self.requests.get_mut(&sending.request()).map(|open| &mut open.request) {
            Some(Request::Store(store)) if store.wants(sending) => {
                store.miss(sending);
                true
            }
            _ => false,
        }
    }

    /// The outcome of a store whose records are all settled.
    pub fn stored(&mut self, id: u32) -> Option<Outcome> {
        let Open { request: Request::Store(store), .. } = self.requests.get(&id)? else {
            return None;
        };
        let done = Outcome::Done(store.outcome()?, store.bytes, None);
        self.end(id, done)
    }

    /// Takes a request out that has its answer.
    pub fn end(&mut self, id: u32, outcome: Outcome) -> Option<Outcome> {
        self.requests.remove(&id).map(|_| outcome)
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

/// Chunks that are no record, on their way from the vault.
pub struct Probe {
    chunks: u32,
    pub bytes: u64,
}

impl Probe {
    pub fn new(chunks: u32) -> Self {
        Self { chunks, bytes: 0 }
    }

    /// One has come. The outcome with the last.
    fn arrived(&mut self, bytes: u32) -> Option<Outcome> {
        self.bytes += u64::from(bytes);
        self.chunks = self.chunks.saturating_sub(1);
        (self.chunks == 0).then_some(Outcome::Done(Vec::new(), self.bytes, None))
    }
}

impl State {
    /// A chunk that goes nowhere: of a probe, or of a request that is over.
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

/// How many lanes bring what is fetched in clear. A lane takes a processor at each end; with more of them than processors, threads
/// only take turns, but every rail has one. What is decrypted keeps receiving ends busier than sending ones, and comes over all.
pub fn fetching(lanes: &[Arc<dyn Stream>], rails: usize) -> u16 {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let is_shared = lanes.first().is_some_and(|lane| lane.is_within_machine());
    let ours = if is_shared { processors / 2 } else { processors };
    u16::try_from(ours.clamp(rails, lanes.len().max(rails))).unwrap_or(u16::MAX)
}
