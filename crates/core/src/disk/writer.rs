//! Owns the writer thread: groups of records into the active segment, one sync per group, and recovery from disk failures.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::active::{Active, Placed};
use super::index::Place;
use super::inner::{Inner, add};
use super::queue::{Age, Job, Order, Source, WorkBatch};
use super::segments::Segment;
use super::{Durability, Resident};
use crate::failpoint::failpoint;
use crate::key::RecordKey;
use crate::limits::{DISK_GROUP_BYTES, DISK_SYNC_WAIT_MS};

const TICK: Duration = Duration::from_secs(1);

/// The one thread that writes segments.
pub struct Writer {
    pub(super) shared: Arc<Inner>,
    pub(super) active: Option<Active>,
    /// Time of the next try after a failure.
    pub(super) retry_at: Option<Instant>,
    /// Time since which the disk has had no room for a new segment.
    pub(super) full_since: Option<Instant>,
    /// Segments whose sync failed; their readable records are moved to another segment.
    untrusted: VecDeque<Arc<Segment>>,
    /// Position in the RAM tier up to which skipped records were offered again.
    catching_up: Option<usize>,
}

impl Writer {
    pub fn new(shared: Arc<Inner>) -> Self {
        let untrusted = VecDeque::new();
        Self {
            shared,
            active: None,
            retry_at: None,
            full_since: None,
            untrusted,
            catching_up: None,
        }
    }

    /// Runs until the queue is closed and empty.
    pub fn run(mut self) {
        loop {
            let is_ready = self.shared.is_ready.load(Ordering::Acquire);
            let can_write = is_ready && self.retry_at.is_none_or(|at| at <= Instant::now());
            let is_well = self.retry_at.is_none();
            let patience =
                if can_write && is_well { TICK } else { TICK.min(self.shared.options.retry) };
            let WorkBatch { jobs, orders, is_closed, is_last } =
                self.shared.queue.next(patience, can_write);
            for order in orders {
                self.carry_out(order);
            }
            if !jobs.is_empty() {
                self.commit(jobs.into());
            }
            if can_write {
                self.tidy();
            }
            // A closed queue does not wait for a failing disk, because its records were never called durable.
            if is_last || is_closed && !can_write && !self.becomes_ready() {
                break;
            }
        }
        if let Err(error) = self.seal() {
            self.shared.alarm();
            self.shared.fails(&error);
        }
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.next_generation();
    }

    /// Whether the writer was only waiting for the directory to be read.
    fn becomes_ready(&self) -> bool {
        self.await_ready();
        self.retry_at.is_none() && self.shared.is_ready.load(Ordering::Acquire)
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Flush(scope, answer) => {
                self.await_ready();
                let flushed = self.shared.flush(scope, self.active.as_ref().map(Active::mark));
                // The caller may have stopped waiting.
                let _ = answer.send(flushed);
            }
            Order::Drain(answer) => {
                self.drain();
                let _ = answer.send(());
            }
        }
    }

    /// Waits until the directory is read, because a flush must know the records on disk.
    fn await_ready(&self) {
        let until = Instant::now() + Duration::from_millis(DISK_SYNC_WAIT_MS);
        let shared = &self.shared;
        shared.wait(until, || shared.is_ready.load(Ordering::Acquire) || shared.stops());
    }

    fn drain(&mut self) {
        while self.shared.is_ready.load(Ordering::Acquire) && self.retry_at.is_none() {
            let jobs = self.shared.queue.next(Duration::ZERO, true).jobs;
            if jobs.is_empty() {
                break;
            }
            self.commit(jobs.into());
        }
        if let Err(error) = self.seal() {
            self.fail(Vec::new(), &error);
        }
    }

    /// Writes one group and makes it durable.
    pub(super) fn commit(&mut self, mut jobs: VecDeque<Job>) {
        let mut unsynced = Vec::new();
        let written = self.write(&mut jobs, &mut unsynced);
        let synced = self.sync(&mut unsynced);
        match written.and(synced) {
            Ok(()) => self.recovers(),
            Err(error) => {
                // The records were evicted from memory or moved, so that the queue must keep them.
                let jobs = unsynced.into_iter().map(|placed: Placed| placed.job).chain(jobs);
                self.fail(jobs.collect(), &error);
            }
        }
        self.shared.next_generation();
    }

    fn write(&mut self, jobs: &mut VecDeque<Job>, unsynced: &mut Vec<Placed>) -> io::Result<()> {
        while let Some(job) = jobs.front() {
            if job.age.is_some_and(|age| age.expires <= Instant::now()) {
                self.shared.expire_job(jobs.pop_front());
                continue;
            }
            let fits = |active: &Active| active.fits(job.source.len()) && self.takes(active, job);
            if !self.active.as_ref().is_some_and(fits) {
                self.sync(unsynced)?;
                self.seal()?;
                failpoint("disk.roll")?;
                self.open(jobs)?;
            }
            let Some(active) = &self.active else { break };
            let most = jobs.iter().take_while(|job| self.takes(active, job)).count();
            let Some(active) = &mut self.active else { break };
            if let Err(error) = active.append(&self.shared, jobs, most.max(1), unsynced) {
                // An unknown part of the write is on disk, so that nothing more goes into this segment. Its footer, which the
                // archive needs, takes the place of that part; where that fails, too, the records move.
                let synced = self.sync(unsynced);
                return synced.and_then(|()| self.seal()).and(Err(error));
            }
        }
        Ok(())
    }

    /// Makes the written records durable. On failure they are in `unsynced` and no longer in the index.
    fn sync(&mut self, unsynced: &mut Vec<Placed>) -> io::Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        if self.shared.options.durability == Durability::None || unsynced.is_empty() {
            unsynced.clear();
            return Ok(());
        }
        match active.sync(&self.shared) {
            Ok(()) => unsynced.clear(),
            Err(error) => {
                self.distrust(unsynced);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives up the active segment after a failed sync, because the state of the medium is unknown.
    fn distrust(&mut self, unsynced: &mut Vec<Placed>) {
        let Some(active) = self.active.take() else { return };
        let segment = active.into_segment();
        segment.is_untrusted.store(true, Ordering::Release);
        segment.is_closed.store(true, Ordering::Release);
        add(&self.shared.counters.syncs_failed, 1);
        // The records are still in memory, and are written again from there.
        unsynced.retain_mut(|placed| {
            self.shared.forget(&placed.job.key, placed.place);
            placed.job.origin = None;
            self.shared.index.reserve(&placed.job.key)
        });
        self.untrusted.push_back(segment);
    }

    pub(super) fn recovers(&mut self) {
        self.retry_at = None;
        self.shared.is_failing.store(false, Ordering::Release);
    }

    /// Puts the jobs back and sets the time of the next try.
    pub(super) fn fail(&mut self, jobs: Vec<Job>, error: &io::Error) {
        self.shared.alarm();
        self.shared.fails(error);
        self.shared.queue.push_back(jobs);
        self.retry_at = Some(Instant::now() + self.shared.options.retry);
    }

    /// Closes the active segment with a footer.
    fn seal(&mut self) -> io::Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        match active.seal(&self.shared) {
            Ok(()) => {
                self.close();
                Ok(())
            }
            Err(error) => {
                self.distrust(&mut Vec::new());
                Err(error)
            }
        }
    }

    /// Ends the active segment; without a footer it is walked at the next start.
    fn close(&mut self) {
        if let Some(active) = self.active.take() {
            active.trim();
            active.into_segment().is_closed.store(true, Ordering::Release);
        }
    }

    /// Work between two groups.
    fn tidy(&mut self) {
        if let Some(segment) = self.untrusted.pop_front() {
            self.rescue(&segment);
        }
        if self.is_worn()
            && let Err(error) = self.seal()
        {
            self.fail(Vec::new(), &error);
        }
        self.expire();
        self.shrink();
        self.catch_up();
        self.probe();
        let oldest = self.shared.segments.oldest(u32::MAX);
        if self.shared.save_tombstones(oldest).is_err() {
            self.shared.alarm();
        }
    }

    /// Moves the readable records of a distrusted segment.
    fn rescue(&mut self, segment: &Arc<Segment>) {
        let slots = std::mem::take(&mut segment.records().slots);
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        for (number, slot) in slots.iter().copied().enumerate() {
            if self.retry_at.is_some() {
                segment.records().slots.extend_from_slice(&slots[number..]);
                self.untrusted.push_back(Arc::clone(segment));
                return;
            }
            let Some((key, place, _)) = self.shared.index.at(slot, segment.name.id) else {
                continue;
            };
            if let Some(job) = self.load(key, place) {
                bytes += job.source.len() as u64;
                jobs.push(job);
            } else {
                segment.records().slots.push(slot);
            }
            if bytes >= DISK_GROUP_BYTES {
                bytes = 0;
                self.commit(std::mem::take(&mut jobs).into());
            }
        }
        if !jobs.is_empty() {
            self.commit(jobs.into());
        }
    }

    /// Reads a record that will move.
    pub(super) fn load(&self, key: RecordKey, place: Place) -> Option<Job> {
        let pages = self.shared.read_pages(&key, place).ok()?;
        let source = Source::Entry(pages, place.record_bytes as usize);
        let tenant = self.shared.tenant_of(&place);
        let segment = self.shared.segments.get(place.segment);
        let age =
            segment.and_then(|of| Some(Age { made_ms: of.name.made_ms, expires: of.expires? }));
        let (record_class, origin) = (place.record_class, Some(place));
        Some(Job { key, source, record_class, tenant, origin, age })
    }

    /// Offers records again that the queue had no room for, once it is empty, if the RAM tier still has them.
    fn catch_up(&mut self) {
        let is_idle = self.shared.queue.held().0 == 0 && self.retry_at.is_none();
        let residents = self.shared.residents.get().and_then(std::sync::Weak::upgrade);
        let Some(residents) = residents.filter(|_| is_idle) else { return };
        if self.catching_up.is_none() && self.shared.has_skipped.swap(false, Ordering::AcqRel) {
            self.catching_up = Some(0);
        }
        let Some(from) = self.catching_up else { return };
        let (found, next) = residents.not_on_disk(&self.shared.index, from, DISK_GROUP_BYTES);
        // A record that is skipped meanwhile, perhaps before this position, asks for another round.
        self.catching_up = next;
        for Resident { key, tenant, record } in found {
            self.shared.offer(key, tenant, record);
        }
    }
}
