//! Owns one client's lanes: dialling, requests by number, the lane of each frame, and the one outcome of each request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::dial::{dial_lane, refused};
use super::fetching::FetchRequest;
use super::requests::{Ended, Open, Request, State, fetching};
use super::sender::Out;
use super::{Options, Outcome, Sink, cancel_frame};
use crate::error::{Code, Error, Result};
use crate::lane::frame::{FAR_PACE_BYTES, Frame, Kind};
use crate::lane::stream::Stream;
use crate::lane::wire::{Alive, Reader};
use crate::lent::Borrowed;
use crate::limits::{LANE_CLOSING_MS, LANE_CLOSING_POLL_MS, LANE_REQUESTS_MAX, LANE_STEP_BYTES};

/// All lanes to one vault; they end together.
pub struct Session {
    pub(super) options: Options,
    sink: Sink,
    born: Instant,
    /// Time of the last byte from the vault, in ms since `born`.
    received_ms: AtomicU64,
    /// Time of the last byte over each rail, with several rails.
    pub(super) heard: Vec<AtomicU64>,
    state: Mutex<State>,
    /// The vault's memory, if it lends it.
    pub(super) borrowed: OnceLock<Borrowed>,
    /// Set once all lanes are open.
    pub(super) outs: OnceLock<Vec<Out>>,
    /// Signalled when there may be something to send.
    pub(super) wake: Condvar,
    /// Signalled when a fetch begins while no fetch was watched, and at the end.
    pub(super) watched: Condvar,
}

impl Alive for Session {
    fn tick(&self) -> Result<()> {
        self.state().check()
    }
}

impl Session {
    /// Dials in the background.
    pub fn open(options: Options, sink: Sink) -> Result<Arc<Self>> {
        let heard = options.rails.iter().map(|_| AtomicU64::new(0)).collect();
        let session = Arc::new(Self {
            heard,
            options,
            sink,
            born: Instant::now(),
            received_ms: AtomicU64::new(0),
            state: Mutex::default(),
            borrowed: OnceLock::new(),
            outs: OnceLock::new(),
            wake: Condvar::new(),
            watched: Condvar::new(),
        });
        let dialling = Arc::clone(&session);
        spawn("tierkv-lane-dial", move || dialling.guarded(|| dialling.dial()))?;
        Ok(session)
    }

    fn dial(self: &Arc<Self>) -> Result<()> {
        let lanes = (0..self.options.lanes)
            .map(|lane| dial_lane(self, &self.options, lane))
            .collect::<Result<Vec<_>>>()?;
        self.outs.get_or_init(|| lanes.iter().map(Out::new).collect());
        {
            let mut state = self.state();
            state.check()?;
            state.is_up = true;
            state.rails = self.options.rails.len();
            state.lent.reads = self.borrowed.get().is_some();
            state.fetching = match self.options.tls {
                Some(_) => 0,
                None => fetching(&lanes, state.rails, state.lent.reads),
            };
            state.control = lanes.iter().map(|_| VecDeque::new()).collect();
        }
        self.note_received();
        (self.sink)(0, Outcome::Up);
        let session = Arc::clone(self);
        spawn("tierkv-lane-watch", move || session.guarded(|| session.watch()))?;
        for (lane, stream) in lanes.into_iter().enumerate() {
            let session = Arc::clone(self);
            spawn("tierkv-lane-out", move || session.guarded(|| session.send(lane)))?;
            let session = Arc::clone(self);
            let mut reader = Reader::new(stream, self.options.timing.stall);
            spawn("tierkv-lane-in", move || {
                session.guarded(|| {
                    let ended = session.receive(lane, &mut reader);
                    if reader.has_ended {
                        session.wait_for_other_lanes();
                    }
                    ended
                });
            })?;
        }
        Ok(())
    }

    /// Adds a connection, unless the session has ended.
    pub(super) fn add_lane(&self, stream: &Arc<dyn Stream>) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        state.lanes.push(Arc::clone(stream));
        Ok(())
    }

    /// Gives a request its number and sends its frame. The calling thread sends it if the lane is idle, as far as it fits
    /// without blocking, because waking another thread takes longer.
    pub fn begin(&self, request: Request, frame: Frame, body: Vec<u8>) -> Result<u32> {
        let mut state = self.state();
        state.check()?;
        if !state.is_up {
            return Err(Error::lane_failed("the lanes are not open yet"));
        }
        if state.requests.len() >= LANE_REQUESTS_MAX {
            let text = format!("{LANE_REQUESTS_MAX} requests are open on these lanes");
            return Err(Error::new(Code::NoMemory, text));
        }
        let id = state.last.checked_add(1).unwrap_or(1);
        if state.requests.contains_key(&id) {
            return Err(Error::new(Code::NoMemory, "an old request has not ended"));
        }
        state.last = id;
        let lane = state.lane_of(id);
        let frame = state.with_id(&request, frame, id);
        if let Request::Fetch(fetch) = &request {
            fetch.note_moved(self.now_ms());
            if !std::mem::replace(&mut state.is_watching, true) {
                self.watched.notify_all();
            }
        }
        state.requests.insert(id, Open { request, lane, begun: Instant::now() });
        self.send_control(state, lane, frame, body);
        Ok(id)
    }

    /// Sends a control frame from the calling thread if the lane is idle, else leaves it to the lane's own.
    pub(super) fn send_control(
        &self,
        mut state: MutexGuard<'_, State>,
        lane: usize,
        frame: Frame,
        body: Vec<u8>,
    ) {
        let out = self.outs.get().map(|outs| &outs[lane]);
        let idle = out.filter(|_| state.control[lane].is_empty());
        let Some((out, mut rest)) = idle.and_then(|out| Some((out, out.rest.try_lock().ok()?)))
        else {
            state.control[lane].push_back((frame, body));
            self.wake.notify_all();
            return;
        };
        drop(state);
        if out.send_now(&mut rest, frame, &body) {
            return;
        }
        drop(rest);
        self.state().rests.insert(lane);
        self.wake.notify_all();
    }

    pub fn progress(&self, request: u32) -> Option<u64> {
        self.state().requests.get(&request).map(|open| match &open.request {
            Request::Lookup { .. } => 0,
            Request::Fetch(fetch) => fetch.bytes(),
            Request::Store(store) => store.bytes,
            Request::Probe(probe) => probe.bytes,
        })
    }

    pub fn cancel(&self, request: u32) {
        self.give_up(request, Error::new(Code::Cancelled, "the request was given up"));
    }

    /// Ends a request with `error`, unless it has ended.
    pub(super) fn give_up(&self, request: u32, error: Error) {
        let (statuses, is_silent) = {
            let mut state = self.state();
            let Some(open) = state.remove(request) else { return };
            state.control[open.lane].push_back((cancel_frame(request), Vec::new()));
            self.wake.notify_all();
            let silent = self.options.timing.silent;
            let received = Duration::from_millis(self.received_ms.load(Ordering::Relaxed));
            let is_silent =
                open.begun.elapsed() > silent && self.born.elapsed() > received + silent;
            (open.request.give_up(), is_silent)
        };
        (self.sink)(request, Outcome::Failed(error, statuses));
        if is_silent {
            self.close(&Error::lane_failed("the vault was silent while a request was open"));
        }
    }

    /// Ends all lanes; idempotent.
    pub fn close(&self, error: &Error) {
        let (lanes, ended) = {
            let mut state = self.state();
            if state.closed.is_some() {
                return;
            }
            state.close(error);
            (std::mem::take(&mut state.lanes), state.take_ended())
        };
        self.wake.notify_all();
        self.watched.notify_all();
        for lane in lanes {
            lane.shutdown();
        }
        self.tell_ended(ended);
    }

    /// Reports an end. No request writes to a slot any more, so that all may be tried again.
    fn tell_ended(&self, ended: Option<Ended>) {
        let Some((error, requests)) = ended else { return };
        for (id, open) in requests {
            (self.sink)(id, Outcome::Failed(error.clone(), open.request.give_up()));
        }
        (self.sink)(0, Outcome::Down(error));
    }

    /// Ends the session when one half of a lane ends, even with a panic.
    fn guarded(&self, work: impl FnOnce() -> Result<()>) {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.close(&error),
            Err(_) => self.close(&Error::lane_failed("a lane's thread panicked")),
        }
    }

    /// Waits, once the vault has closed a lane, for what it sent before on others: a vault that stops closes all at once.
    fn wait_for_other_lanes(&self) {
        let until = Instant::now() + Duration::from_millis(LANE_CLOSING_MS);
        self.state().closed_lanes += 1;
        let goes_on = || {
            let state = self.state();
            let is_last = state.closed_lanes >= state.lanes.len();
            state.closed.is_none() && !is_last && !state.requests.is_empty()
        };
        while goes_on() && Instant::now() < until {
            thread::sleep(Duration::from_millis(LANE_CLOSING_POLL_MS));
        }
    }

    fn receive(&self, lane: usize, reader: &mut Reader) -> Result<()> {
        loop {
            let frame = reader.frame(self)?;
            self.note_received();
            match frame.kind {
                Kind::Chunk => self.chunk(&frame, reader)?,
                Kind::Standing => self.read_standing(lane, &frame, &reader.body(&frame, self)?)?,
                Kind::Status => self.status(&frame)?,
                Kind::Found => self.found(&frame, reader.body(&frame, self)?)?,
                Kind::Wanted => self.wanted(&frame, &reader.body(&frame, self)?)?,
                Kind::Error => self.failed(&frame, &reader.body(&frame, self)?)?,
                Kind::Waited => self.options.down.waited(Duration::from_micros(frame.offset)),
                // The arrival of a ping is its only information.
                Kind::Ping => {}
                kind => return Err(Error::lane_failed(format!("the vault sent a {kind:?} frame"))),
            }
        }
    }

    /// Receives bytes of a record straight into place.
    fn chunk(&self, frame: &Frame, reader: &mut Reader) -> Result<()> {
        let bytes = frame.bytes as usize;
        let _receiving = ReceivingChunk::begin(self);
        let Some(fetch) = self.fetch(frame.request) else {
            // A probe's chunk, or one of a request given up, whose sent chunks still arrive.
            reader.skip(bytes, self, &|| self.note_received())?;
            let outcome = self.state().skipped(frame);
            self.tell(frame.request, outcome);
            return Ok(());
        };
        match fetch.place(frame)? {
            None => reader.skip(bytes, self, &|| self.note_received())?,
            Some(mut chunk) => {
                while chunk.rest() > 0 {
                    let got = reader.some(chunk.spare(LANE_STEP_BYTES), self)?;
                    chunk.advance(got);
                    self.note_received();
                    fetch.add_bytes(got, self.received_ms.load(Ordering::Relaxed));
                    self.options.down.moved(got as u64);
                }
                fetch.arrived(frame.item, chunk);
            }
        }
        self.end_fetch(frame.request, &fetch);
        Ok(())
    }

    fn status(&self, frame: &Frame) -> Result<()> {
        if let Some(fetch) = self.fetch(frame.request) {
            fetch.missing(frame)?;
            fetch.note_moved(self.received_ms.load(Ordering::Relaxed));
            self.end_fetch(frame.request, &fetch);
            return Ok(());
        }
        let outcome = {
            let mut state = self.state();
            let Some(Open { request: Request::Store(store), .. }) =
                state.requests.get_mut(&frame.request)
            else {
                return Ok(());
            };
            self.options.up.moved(store.result(frame)?);
            let read = store.was_read(frame.item);
            self.make_room(&mut state, read);
            state.stored(frame.request)
        };
        self.tell(frame.request, outcome);
        Ok(())
    }

    fn found(&self, frame: &Frame, bitmap: Vec<u8>) -> Result<()> {
        let outcome = {
            let mut state = self.state();
            let keys = match state.requests.get(&frame.request).map(|open| &open.request) {
                None => return Ok(()),
                Some(Request::Lookup { keys }) => *keys,
                Some(_) => return Err(Error::lane_failed("the vault answered another question")),
            };
            let bytes = keys.div_ceil(8);
            if bitmap.len() != bytes && bitmap.len() != 2 * bytes + FAR_PACE_BYTES {
                let text = format!("a bitmap of {} bytes for {keys} keys", bitmap.len());
                return Err(Error::lane_failed(text));
            }
            state.end(frame.request, Outcome::Found(bitmap))
        };
        self.tell(frame.request, outcome);
        Ok(())
    }

    fn wanted(&self, frame: &Frame, statuses: &[u8]) -> Result<()> {
        let outcome = {
            let mut state = self.state();
            let store = match state.requests.get_mut(&frame.request).map(|open| &mut open.request) {
                None => return Ok(()),
                Some(Request::Store(store)) => store,
                Some(_) => return Err(Error::lane_failed("the vault answered another question")),
            };
            store.wanted(statuses)?;
            state.stored(frame.request)
        };
        self.wake.notify_all();
        self.tell(frame.request, outcome);
        Ok(())
    }

    fn failed(&self, frame: &Frame, text: &[u8]) -> Result<()> {
        let error = refused(text);
        if frame.request == 0 {
            return Err(error);
        }
        // The lanes remain up, but an immediate retry would fail again.
        let error = Error::new(Code::NoMemory, error.text);
        let open = self.state().remove(frame.request);
        let outcome = open.map(|open| Outcome::Failed(error, open.request.give_up()));
        self.tell(frame.request, outcome);
        Ok(())
    }

    pub(super) fn fetch(&self, request: u32) -> Option<Arc<FetchRequest>> {
        match self.state().requests.get(&request).map(|open| &open.request) {
            Some(Request::Fetch(fetch)) => Some(Arc::clone(fetch)),
            _ => None,
        }
    }

    pub(super) fn end_fetch(&self, id: u32, fetch: &FetchRequest) {
        let Some((statuses, reason)) = fetch.outcome() else { return };
        let outcome = self.state().end(id, Outcome::Done(statuses, fetch.bytes(), reason));
        self.tell(id, outcome);
    }

    pub(super) fn tell(&self, request: u32, outcome: Option<Outcome>) {
        if let Some(outcome) = outcome {
            (self.sink)(request, outcome);
        }
    }

    pub(super) fn note_received(&self) {
        self.received_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Time of the last byte from the vault, in ms since `born`.
    pub(super) fn received_at(&self) -> u64 {
        self.received_ms.load(Ordering::Relaxed)
    }

    /// Milliseconds since `born`.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a chunk being received; the end is reported only while there is none.
pub(super) struct ReceivingChunk<'a>(&'a Session);

impl<'a> ReceivingChunk<'a> {
    pub(super) fn begin(session: &'a Session) -> Self {
        session.state().receiving += 1;
        Self(session)
    }
}

impl Drop for ReceivingChunk<'_> {
    fn drop(&mut self) {
        let ended = {
            let mut state = self.0.state();
            state.receiving -= 1;
            state.take_ended()
        };
        self.0.tell_ended(ended);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    let started = builder.spawn(work).map(drop);
    started.map_err(|error| Error::lane_failed(format!("starting a thread: {error}")))
}
