//! Owns one client at a vault: the requests from its lanes, and the answers sent over any free lane.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::fetching::{
    Claim, Cut, FetchJob, Part, Wanted, parse_keys, probe_bytes, push_chunk, push_status,
    status_frame, waited_frame,
};
use super::reading::ReadRoom;
use super::requests::{Lane, State};
use super::spans::Asked;
use super::standing::Named;
use super::storing::{Begun, StoreJob, offer_bytes};
use super::tokens::Right;
use super::{Inner, error_frame, error_text, spawn};
use crate::error::{Error, Result};
use crate::failpoint::failpoint;
use crate::lane::frame::{FETCH_STANDING, FRAME_BYTES, Frame, Kind};
use crate::lane::stream::Stream;
use crate::lane::wire::{Alive, Reader, WriteBatch};
use crate::lent::Borrowed;
use crate::limits::{
    LANE_BATCH_FRAMES, LANE_CHUNK_BYTES, LANE_OFFERED_BYTES_MAX, LANE_PROBE_CHUNKS_MAX,
    LANE_STEP_BYTES,
};
use crate::store::{ItemStatus, Reservation, tenant_of};

/// One client with all its lanes; it ends when any of them does.
pub struct Session {
    pub(super) shared: Arc<Inner>,
    pub(super) right: Right,
    /// For reads, which do not keep the session.
    pub(super) me: Weak<Self>,
    pub(super) room: Arc<ReadRoom>,
    /// Whether the client has a descriptor of our memory.
    pub(super) lends: AtomicBool,
    /// The client's memory, if it lends it.
    pub(super) borrowed: OnceLock<Borrowed>,
    state: Mutex<State>,
    /// Signalled when there may be something to send.
    pub(super) wake: Condvar,
    /// Signalled when answers were taken for sending.
    pub(super) taken: Condvar,
}

impl Alive for Session {
    fn tick(&self) -> Result<()> {
        self.expire_reads();
        let stall = self.shared.options.timing.stall;
        self.state().standing.iter().try_for_each(|standing| standing.check(stall))?;
        let given_up = self.idle_stores()?;
        let idle = self.shared.options.timing.store_idle.as_millis();
        let text = error_text(&format!("no byte of the offered records came for {idle} ms"));
        given_up.into_iter().try_for_each(|request| self.answer(error_frame(request), text.clone()))
    }
}

impl Session {
    pub fn new(shared: Arc<Inner>, right: Right) -> Arc<Self> {
        let [wake, taken] = [(); 2].map(|()| Condvar::new());
        let room = ReadRoom::new(&shared.ahead);
        Arc::new_cyclic(|me| {
            let me = Weak::clone(me);
            let (lends, borrowed) = (AtomicBool::new(false), OnceLock::new());
            let state = Mutex::default();
            Self { shared, right, me, room, lends, borrowed, state, wake, taken }
        })
    }

    /// Fetches and stores under way.
    pub fn requests(&self) -> usize {
        let state = self.state();
        state.fetches.len() + state.stores.len()
    }

    /// Lanes that have not sent all they took, or whose client has not read it; a request whose last part they took is under way no more.
    pub fn sending(&self) -> usize {
        let state = self.state();
        let unread = state.standing.iter().filter(|standing| standing.count() > 0).count();
        state.lanes.len().saturating_sub(state.idle).max(unread)
    }

    /// Adds a lane with `behind` lanes behind it.
    pub fn join(&self, stream: &Arc<dyn Stream>, behind: u16) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        state.lanes.push(Arc::clone(stream));
        state.behind.push(behind);
        Ok(())
    }

    /// Ends all lanes and frees what their requests hold; idempotent.
    pub fn close(&self, error: Error) {
        let (lanes, early) = {
            let mut state = self.state();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(error);
            let early = (state.fetches.len(), state.stores.len());
            state.fetches.clear();
            state.stores.clear();
            state.answers.clear();
            state.standing.clear();
            (std::mem::take(&mut state.lanes), early)
        };
        self.shared.counts.add("fetches_ended_early", early.0 as u64);
        self.shared.counts.add("stores_ended_early", early.1 as u64);
        self.wake.notify_all();
        self.taken.notify_all();
        for lane in lanes {
            lane.shutdown();
        }
    }

    /// Serves one lane until the session ends.
    pub fn serve(self: &Arc<Self>, stream: &Arc<dyn Stream>, behind: u16) {
        let lane = Arc::new(Lane::new(stream, behind));
        self.state().standing.push(Arc::clone(&lane.standing));
        let (session, out) = (Arc::clone(self), Arc::clone(&lane));
        let writer = spawn("tierkv-lane-out", move || session.guarded(|| session.send(&out)));
        match writer {
            Err(error) => self.close(error),
            Ok(writer) => {
                let stall = self.shared.options.timing.stall;
                let mut reader = Reader::new(Arc::clone(stream), stall);
                self.guarded(|| self.receive(&mut reader, &lane));
                // The thread's panics were caught inside.
                let _ = writer.join();
            }
        }
    }

    /// Ends the session when one half of a lane ends, even with a panic.
    fn guarded(&self, work: impl FnOnce() -> Result<()>) {
        let ended = catch_unwind(AssertUnwindSafe(work));
        let error = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => Error::lane_failed("a lane's thread panicked"),
        };
        self.close(error);
    }

    fn send(&self, lane: &Lane) -> Result<()> {
        let stall = self.shared.options.timing.stall;
        let (mut batch, mut named) = (WriteBatch::default(), Named::default());
        loop {
            self.fill(&mut batch, &mut named, lane, true)?;
            let _sending = lane.sending.lock().unwrap_or_else(PoisonError::into_inner);
            named.keep(lane);
            batch.send(&*lane.stream, stall, self)?;
        }
    }

    /// Takes a batch of what there is to send, answers first; waits for it if asked to.
    pub(super) fn fill(
        &self,
        batch: &mut WriteBatch,
        named: &mut Named,
        lane: &Lane,
        waits: bool,
    ) -> Result<()> {
        let mut state = self.state();
        loop {
            state.check()?;
            while let Some((frame, body)) = state.answers.pop_front() {
                state.answers_bytes -= FRAME_BYTES + body.len();
                batch.push_owned(frame, body);
                self.taken.notify_all();
            }
            let has_room =
                batch.frames() < LANE_BATCH_FRAMES && batch.body_bytes() <= LANE_CHUNK_BYTES / 2;
            if let Some((request, claim)) = has_room.then(|| state.claim(lane)).flatten() {
                if matches!(claim, Claim::Chunk(_) | Claim::Stand(_)) {
                    // The chunk may have given back the room of its record.
                    self.read_ahead(&mut state);
                }
                drop(state);
                self.add((batch, named), lane, request, claim)?;
                state = self.state();
                continue;
            }
            named.push_to(batch);
            if batch.frames() > 0 || !waits {
                return Ok(());
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn add(
        &self,
        (batch, named): (&mut WriteBatch, &mut Named),
        lane: &Lane,
        request: u32,
        claim: Claim,
    ) -> Result<()> {
        match claim {
            Claim::Stand(part) => {
                if !part.waited.is_zero() {
                    named.push_to(batch);
                    batch.push(waited_frame(part.waited), None);
                }
                self.shared.counts.add(part.counter, part.range.len() as u64);
                named.push(batch, lane, request, part);
            }
            Claim::Chunk(part) => {
                self.shared.counts.add(part.counter, part.range.len() as u64);
                if !part.waited.is_zero() {
                    batch.push(waited_frame(part.waited), None);
                }
                push_chunk(batch, request, part.item, part.pin, part.range);
            }
            Claim::Missing(item) => self.miss(batch, request, item),
            Claim::Pin(Wanted { job, item, key, stands }) => {
                match self.shared.store.pin_resident(&key) {
                    Some(pin) if stands && pin.place().is_some() => {
                        let bytes = pin.len();
                        self.shared.counts.add("fetched", 1);
                        self.shared.counts.add("fetched_bytes", bytes as u64);
                        named.push(batch, lane, request, Part::whole(item, Arc::new(pin)));
                        let mut state = self.state();
                        if let Some(open) = state.job(job) {
                            open.pinned(bytes as u64, None);
                        }
                        state.forget_when_over(request);
                    }
                    Some(pin) => {
                        self.add_first(batch, (request, job), Cut::new(item, Arc::new(pin)));
                    }
                    None if self.put_off(job, item, &key)? => {}
                    None => {
                        self.miss(batch, request, item);
                        self.state().forget_when_over(request);
                    }
                }
            }
        }
        Ok(())
    }

    fn miss(&self, batch: &mut WriteBatch, request: u32, item: u32) {
        self.shared.counts.add("fetch_missing", 1);
        push_status(batch, request, item, ItemStatus::Missing);
    }

    /// Adds the first chunk of a pinned record, and leaves the rest to any lane.
    fn add_first(&self, batch: &mut WriteBatch, (request, number): (u32, u64), mut cut: Cut) {
        let counts = &self.shared.counts;
        let (item, pin, range) = (cut.item(), cut.pin(), cut.cut());
        let bytes = range.len() as u64;
        counts.add("fetched", 1);
        counts.add("fetched_bytes", bytes);
        push_chunk(batch, request, item, pin, range);
        let mut state = self.state();
        let is_for_others = state.job(number).is_some_and(|job| job.pinned(bytes, cut.rest()));
        state.forget_when_over(request);
        if is_for_others {
            self.wake.notify_all();
        }
    }

    fn receive(&self, reader: &mut Reader, lane: &Lane) -> Result<()> {
        loop {
            self.await_readers()?;
            let frame = reader.frame(self)?;
            match frame.kind {
                Kind::Lookup => self.look_up(&frame, &reader.body(&frame, self)?, lane)?,
                Kind::Fetch => self.fetch(&frame, &reader.body(&frame, self)?)?,
                Kind::Offer => self.offer(&frame, &reader.body(&frame, self)?)?,
                Kind::Chunk => self.store(&frame, reader)?,
                Kind::Cancel => self.cancel(frame.request),
                Kind::Probe => self.probe(&frame)?,
                Kind::Ping => self.answer_at_once(frame, Vec::new(), lane)?,
                Kind::Read => {
                    lane.standing.release(frame.item)?;
                    self.go_on(lane)?;
                }
                Kind::Standing => self.copy(&frame, &reader.body(&frame, self)?, lane)?,
                kind => {
                    let text = format!("the client sent a {kind:?} frame");
                    return Err(Error::lane_failed(text));
                }
            }
        }
    }

    /// Sends an answer from the reading thread if its lane is idle, because waking another thread takes longer than a short answer.
    pub(super) fn answer_at_once(&self, frame: Frame, body: Vec<u8>, lane: &Lane) -> Result<()> {
        let Ok(_sending) = lane.sending.try_lock() else { return self.answer(frame, body) };
        self.state().check()?;
        let mut batch = WriteBatch::default();
        batch.push_owned(frame, body);
        batch.send(&*lane.stream, self.shared.options.timing.stall, self)
    }

    fn fetch(&self, frame: &Frame, body: &[u8]) -> Result<()> {
        let (namespace, keys) = parse_keys(body)?;
        let kept = match self.admit(frame.request, size_of_val(keys)) {
            Ok(kept) => kept,
            Err(text) => return self.answer(error_frame(frame.request), error_text(text)),
        };
        self.shared.counts.add("fetches", 1);
        let lanes = self.state().bringing(frame.code);
        let span = self.shared.span(Asked::Fetch, body, keys.len());
        let mut job = FetchJob::new(frame.request, namespace, keys.to_vec(), kept).over(lanes);
        job.span = span;
        job.stands = frame.item == FETCH_STANDING && self.lends.load(Ordering::Acquire);
        if let Some(number) = self.queue(job) {
            self.scout(number);
        }
        Ok(())
    }

    /// Queues a fetch; returns its number if it has several records.
    fn queue(&self, mut job: FetchJob) -> Option<u64> {
        if job.is_over() {
            return None;
        }
        let is_single = job.keys.len() == 1;
        let mut state = self.state();
        state.last_fetch += 1;
        job.number = state.last_fetch;
        state.fetches.push_back(job);
        let number = state.last_fetch;
        drop(state);
        // If the record is longer than a chunk, the lane that takes it wakes the others.
        if is_single {
            self.wake.notify_one();
            return None;
        }
        self.wake.notify_all();
        Some(number)
    }

    /// Begins a probe: bytes that are no record, in either direction, to measure the link alone.
    fn probe(&self, frame: &Frame) -> Result<()> {
        let Frame { request, item: chunks, code, .. } = *frame;
        if !(1..=LANE_PROBE_CHUNKS_MAX).contains(&chunks) {
            return Err(Error::lane_failed(format!("the client sent a probe of {chunks} chunks")));
        }
        let kept = match self.admit(request, probe_bytes(chunks)) {
            Ok(kept) => kept,
            Err(text) => return self.answer(error_frame(request), error_text(text)),
        };
        self.shared.counts.add("probes", 1);
        if code == 0 {
            self.queue(FetchJob::plain(request, chunks, kept));
            return Ok(());
        }
        self.state().stores.insert(request, StoreJob::plain(chunks, kept));
        self.answer(Frame::new(Kind::Wanted, request), vec![0; chunks as usize])
    }

    fn offer(&self, frame: &Frame, body: &[u8]) -> Result<()> {
        let request = frame.request;
        self.tick()?;
        let admitted = if self.right.may_store {
            self.admit(request, offer_bytes(body))
        } else {
            Err("this token does not store")
        };
        let kept = match admitted {
            Ok(kept) => kept,
            Err(text) => return self.answer(error_frame(request), error_text(text)),
        };
        let room = LANE_OFFERED_BYTES_MAX.saturating_sub(self.state().open_bytes());
        let tenant = tenant_of(self.right.account, frame.offset);
        let known = frame.record_bytes;
        let (job, statuses) = StoreJob::open(&self.shared, (tenant, known), body, room, kept)?;
        if !job.is_over() {
            let mut state = self.state();
            state.check()?;
            state.stores.insert(request, job);
        }
        self.answer(Frame::new(Kind::Wanted, request), statuses)
    }

    /// Receives a chunk of an offered record straight into the store's memory.
    fn store(&self, frame: &Frame, reader: &mut Reader) -> Result<()> {
        let bytes = frame.bytes as usize;
        let begun = {
            let mut state = self.state();
            match state.stores.get_mut(&frame.request) {
                Some(job) => job.begin(frame),
                // The request was cancelled or given up, but its sent chunks still arrive.
                None => Begun::Over,
            }
        };
        match begun {
            Begun::Over => reader.skip(bytes, self, &|| {}),
            Begun::Plain => {
                reader.skip(bytes, self, &|| {})?;
                self.shared.counts.add("probed_bytes", bytes as u64);
                self.settle(frame, None)?;
                let status = status_frame(frame.request, frame.item, ItemStatus::Accepted);
                self.answer(status, Vec::new())
            }
            Begun::Refused(status) => {
                reader.skip(bytes, self, &|| {})?;
                self.settle(frame, Some(status))
            }
            Begun::Receiving(mut reservation) => {
                let mut rest = bytes;
                let mut is_whole = false;
                while rest > 0 {
                    let spare = reservation.spare(rest.min(LANE_STEP_BYTES));
                    let got = reader.some(spare, self)?;
                    is_whole = reservation.advance(got)?;
                    rest -= got;
                }
                if is_whole {
                    return self.commit(frame, reservation);
                }
                if let Some(job) = self.state().stores.get_mut(&frame.request) {
                    job.put_back(frame.item, reservation);
                }
                Ok(())
            }
        }
    }

    fn commit(&self, frame: &Frame, reservation: Reservation) -> Result<()> {
        let status = self.stored(frame, reservation)?;
        self.settle(frame, status)
    }

    /// Checks and stores a whole record; `None` where its offer is no longer open.
    pub(super) fn stored(
        &self,
        frame: &Frame,
        reservation: Reservation,
    ) -> Result<Option<ItemStatus>> {
        failpoint("lane.received").map_err(|e| Error::made_to_fail(&e))?;
        let status = reservation.commit_durably();
        failpoint("lane.stored").map_err(|e| Error::made_to_fail(&e))?;
        let is_open = {
            let mut state = self.state();
            state.stores.get_mut(&frame.request).is_some_and(|job| job.stored(frame, status))
        };
        Ok(is_open.then_some(status))
    }

    /// Answers for a settled record, and removes an offer that is over.
    fn settle(&self, frame: &Frame, status: Option<ItemStatus>) -> Result<()> {
        self.forget_if_over(frame);
        let Some(status) = status else { return Ok(()) };
        self.shared.counts.add_outcome(status, frame.record_bytes);
        self.answer(status_frame(frame.request, frame.item, status), Vec::new())
    }

    pub(super) fn forget_if_over(&self, frame: &Frame) {
        let mut state = self.state();
        if state.stores.get(&frame.request).is_some_and(StoreJob::is_over) {
            state.stores.remove(&frame.request);
        }
    }

    /// Removes the offers without progress; returns their requests.
    fn idle_stores(&self) -> Result<Vec<u32>> {
        let mut state = self.state();
        state.check()?;
        let idle = state.take_idle_stores(self.shared.options.timing.store_idle);
        self.shared.counts.add("stores_ended_early", idle.len() as u64);
        Ok(idle)
    }

    fn cancel(&self, request: u32) {
        let mut state = self.state();
        let fetches = state.fetches.len();
        state.fetches.retain(|job| job.request != request);
        let early = (fetches - state.fetches.len(), state.stores.remove(&request).is_some());
        self.read_ahead(&mut state);
        drop(state);
        self.shared.counts.add("fetches_ended_early", early.0 as u64);
        self.shared.counts.add("stores_ended_early", u64::from(early.1));
    }

    fn answer(&self, frame: Frame, body: Vec<u8>) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        state.answers_bytes += FRAME_BYTES + body.len();
        state.answers.push_back((frame, body));
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
