//! Owns the reads of slow tiers for fetches: ahead of the lanes, side by side, within bounds, so that no lane waits for a disk.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::fetching::{Cut, FetchJob};
use super::requests::State;
use super::session::Session;
use super::spawn;
use crate::error::{Error, Result};
use crate::limits::{
    ARCHIVE_READERS_MAX, ARCHIVE_READS_AHEAD, DISK_READERS_MAX, DISK_READS_AHEAD, READ_AHEAD_SHARE,
    READERS_IDLE_MS, STORE_LOOKUP_KEYS,
};
use crate::record::PACKED_KEY_BYTES;
use crate::store::{RecordKey, SlowTier, Store};

/// The slow tiers, in the order of their numbers.
pub const TIERS: usize = 2;

/// Record bytes that all sessions of a server have read ahead.
pub struct Ahead {
    bytes: AtomicU64,
    most: u64,
}

impl Ahead {
    /// A share of the store's memory, because what is read ahead cannot be evicted until it is sent.
    pub fn of(store: &Store) -> Self {
        Self { bytes: AtomicU64::new(0), most: store.stats().max_bytes / READ_AHEAD_SHARE }
    }
}

/// Records of one session that are being read, or are read and not sent yet.
pub struct ReadRoom {
    records: [AtomicUsize; TIERS],
    all: Arc<Ahead>,
}

/// Room for one record, given back when dropped.
pub struct ReadPermit {
    room: Arc<ReadRoom>,
    tier: SlowTier,
    bytes: u64,
}

impl ReadRoom {
    pub fn new(all: &Arc<Ahead>) -> Arc<Self> {
        Arc::new(Self { records: [(); TIERS].map(|()| AtomicUsize::new(0)), all: Arc::clone(all) })
    }

    /// Whether one more record of the tier may be read ahead, as far as their number goes.
    fn has_room(&self, tier: SlowTier) -> bool {
        let most = match tier {
            SlowTier::Disk => DISK_READS_AHEAD,
            SlowTier::Archive => ARCHIVE_READS_AHEAD,
        };
        self.records[tier as usize].load(Ordering::Acquire) < most
    }

    /// Takes room for a record; the caller holds the session's state. A session without any always gets it, so that
    /// others cannot keep it from reading.
    fn take(self: &Arc<Self>, tier: SlowTier, bytes: u64) -> Option<ReadPermit> {
        let is_first = self.records.iter().all(|count| count.load(Ordering::Acquire) == 0);
        if !self.has_room(tier) {
            return None;
        }
        let before = self.all.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before + bytes > self.all.most && !is_first {
            self.all.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return None;
        }
        self.records[tier as usize].fetch_add(1, Ordering::AcqRel);
        Some(ReadPermit { room: Arc::clone(self), tier, bytes })
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.room.records[self.tier as usize].fetch_sub(1, Ordering::AcqRel);
        self.room.all.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// One record to read for a fetch.
pub struct Read {
    session: Weak<Session>,
    /// Number of the fetch within its session.
    job: u64,
    item: u32,
    key: RecordKey,
    permit: ReadPermit,
}

impl Read {
    fn carry_out(self, store: &Store) {
        let Some(session) = self.session.upgrade() else { return };
        if !session.is_wanted(self.job) {
            return self.give_up();
        }
        let key = self.key;
        match catch_unwind(AssertUnwindSafe(|| store.pin_timed(&key))) {
            Ok((pin, waited)) => {
                let permit = self.permit;
                let cut = pin.map(|pin| Cut::read(self.item, Arc::new(pin), waited, permit));
                session.arrived(self.job, self.item, cut);
            }
            Err(_) => session.close(Error::lane_failed("a reading thread panicked")),
        }
    }

    /// Answers that the record is missing, without reading.
    fn give_up(self) {
        let Some(session) = self.session.upgrade() else { return };
        drop(self.permit);
        session.arrived(self.job, self.item, None);
    }
}

/// Threads that read from one slow tier for all sessions; started when needed, ended when idle.
pub struct Crew {
    tier: SlowTier,
    store: Arc<Store>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<Read>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Crew {
    pub fn new(tier: SlowTier, store: &Arc<Store>) -> Arc<Self> {
        let (queue, wake) = (Mutex::default(), Condvar::new());
        Arc::new(Self { tier, store: Arc::clone(store), queue, wake })
    }

    /// Queues a read; returns it where no thread can be had for it.
    fn submit(self: &Arc<Self>, read: Read) -> Option<Read> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Some(read);
        }
        let most = match self.tier {
            SlowTier::Disk => DISK_READERS_MAX,
            SlowTier::Archive => ARCHIVE_READERS_MAX,
        };
        if queue.idle <= queue.reads.len() && queue.threads < most {
            let crew = Arc::clone(self);
            if spawn("tierkv-reader", move || crew.work()).is_ok() {
                queue.threads += 1;
            } else if queue.threads == 0 {
                return Some(read);
            }
        }
        queue.reads.push_back(read);
        self.wake.notify_one();
        None
    }

    fn work(&self) {
        while let Some(read) = self.next() {
            read.carry_out(&self.store);
        }
    }

    /// Waits for a read; `None` ends the thread.
    fn next(&self) -> Option<Read> {
        let mut queue = self.queue();
        if queue.reads.is_empty() && !queue.is_closed {
            queue.idle += 1;
            let idle = Duration::from_millis(READERS_IDLE_MS);
            let is_idle = |queue: &mut Queue| queue.reads.is_empty() && !queue.is_closed;
            let waited = self.wake.wait_timeout_while(queue, idle, is_idle);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.idle -= 1;
        }
        let read = if queue.is_closed { None } else { queue.reads.pop_front() };
        queue.threads -= usize::from(read.is_none());
        read
    }

    /// Gives up the queued reads while the tier hangs, because all threads may hang with it.
    pub fn expire(&self) {
        if self.queue().reads.is_empty() || !self.store.hangs(self.tier) {
            return;
        }
        let given_up = std::mem::take(&mut self.queue().reads);
        given_up.into_iter().for_each(Read::give_up);
    }

    /// Ends the threads; a read that hangs ends its thread later.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        let reads = std::mem::take(&mut queue.reads);
        drop(queue);
        self.wake.notify_all();
        drop(reads);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Finds the first records of a fetch that are not in memory and begins to read them, while the lanes send the others.
    pub(super) fn scout(&self, number: u64) {
        let store = &self.shared.store;
        if store.disk().is_none() {
            return;
        }
        loop {
            let (first, keys) = {
                let mut state = self.state();
                let is_full =
                    !self.room.has_room(SlowTier::Disk) && !self.room.has_room(SlowTier::Archive);
                let Some(job) = state.job(number).filter(|_| !is_full) else { return };
                job.unscouted(STORE_LOOKUP_KEYS)
            };
            if keys.is_empty() {
                return;
            }
            let tiers = store.slow_all(&keys);
            let mut state = self.state();
            let Some(job) = state.job(number) else { return };
            job.scouted(first, &tiers);
            self.read_ahead(&mut state);
        }
    }

    /// Begins as many reads as there is room for, in the order of the fetches and their records. Records of a tier that
    /// hangs are missing at once.
    pub(super) fn read_ahead(&self, state: &mut State) {
        let Some(disk) = self.shared.store.disk() else { return };
        let mut gone = false;
        for job in state.fetches.iter_mut().filter(|job| job.has_slow()) {
            for tier in [SlowTier::Disk, SlowTier::Archive] {
                while let Some((item, key)) = job.first_slow(tier) {
                    let place = disk.locate(&key);
                    if place.is_some_and(|place| disk.is_stalled(place)) {
                        job.begin_read(tier);
                        job.was_read(item, None);
                        gone = true;
                        continue;
                    }
                    let bytes = place.map_or(0, |place| u64::from(place.record_bytes));
                    let Some(permit) = self.room.take(tier, bytes) else { break };
                    job.begin_read(tier);
                    let session = Weak::clone(&self.me);
                    let read = Read { session, job: job.number, item, key, permit };
                    if self.shared.crews[tier as usize].submit(read).is_some() {
                        job.was_read(item, None);
                        gone = true;
                    }
                }
            }
        }
        if gone {
            self.wake.notify_all();
        }
    }

    /// Gives up what waits for a tier that hangs.
    pub(super) fn expire_reads(&self) {
        self.shared.crews.iter().for_each(|crew| crew.expire());
        self.read_ahead(&mut self.state());
    }

    fn is_wanted(&self, number: u64) -> bool {
        self.state().job(number).is_some()
    }

    /// Hands a record that was read to the lanes, or `None` for a missing one.
    fn arrived(&self, number: u64, item: u32, cut: Option<Cut>) {
        let is_large = cut.as_ref().is_some_and(Cut::is_large);
        if cut.is_some() {
            self.shared.counts.add("fetched", 1);
        }
        let mut state = self.state();
        let is_for_all = state.job(number).map(|job: &mut FetchJob| {
            job.was_read(item, cut);
            is_large || job.lanes != 0
        });
        self.read_ahead(&mut state);
        drop(state);
        match is_for_all {
            Some(true) => self.wake.notify_all(),
            Some(false) => self.wake.notify_one(),
            None => {}
        }
    }

    /// Notes a record that is not in memory; returns false where no tier has it.
    pub(super) fn put_off(&self, number: u64, item: u32, key: &RecordKey) -> Result<bool> {
        let tier = self.shared.store.slow(key);
        let mut state = self.state();
        state.check()?;
        if let Some(job) = state.job(number) {
            job.put_off(item, tier);
        }
        self.read_ahead(&mut state);
        Ok(tier.is_some())
    }
}

/// Full keys of packed ones.
pub fn unpacked(namespace: [u8; 32], keys: &[[u8; PACKED_KEY_BYTES]]) -> Vec<RecordKey> {
    keys.iter().map(|key| RecordKey::from_packed(namespace, key)).collect()
}
