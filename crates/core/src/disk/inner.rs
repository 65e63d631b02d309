//! Owns the state shared by the durable tier's threads, and the steps that keep index and segments consistent.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::active::pages_of;
use super::archived::Archived;
use super::format::Entry;
use super::index::{Index, Place, SlotId};
use super::queue::Source;
use super::queue::{Job, Queue};
use super::read::Stalls;
use super::segments::{Segment, Segments};
use super::storage::Storage;
use super::tenants::Tenants;
use super::tombstones::Tombstones;
use super::{DiskOptions, DiskStats, Durability, Residents};
use crate::key::{RecordKey, Scope};
use crate::limits::DISK_STALL_MS;
use crate::memory::Pin;
use crate::memory::pages::PAGE;
use crate::tenant::{account_of, tenant_of};

/// Counters of the durable tier.
#[derive(Debug, Default)]
pub struct Counters {
    pub written: AtomicU64,
    pub written_bytes: AtomicU64,
    pub file_bytes: AtomicU64,
    pub skipped: AtomicU64,
    pub read: AtomicU64,
    pub read_bytes: AtomicU64,
    pub missed: AtomicU64,
    pub quarantined: AtomicU64,
    pub evicted: AtomicU64,
    pub moved: AtomicU64,
    pub expired: AtomicU64,
    pub scrubbed_bytes: AtomicU64,
    pub alarms: AtomicU64,
    pub syncs_failed: AtomicU64,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

pub struct Inner {
    pub options: DiskOptions,
    pub storage: Arc<dyn Storage>,
    pub index: Index,
    pub tenants: Tenants,
    pub segments: Segments,
    pub tombstones: Mutex<Tombstones>,
    pub queue: Queue,
    pub counters: Counters,
    pub stalls: Stalls,
    /// The archive, if any.
    pub archived: Option<Archived>,
    pub residents: OnceLock<Weak<dyn Residents>>,
    /// Whether the directory was read, so that ids of new segments are known.
    pub is_ready: AtomicBool,
    pub is_recovering: AtomicBool,
    /// Whether the last write failed and no later one has succeeded.
    pub is_failing: AtomicBool,
    /// Whether a flush had no answer, so that nobody knows if it was recorded.
    pub has_lost_flush: AtomicBool,
    /// Error text of the last failed write; kept after later writes succeed.
    trouble: Mutex<String>,
    pub is_stopping: AtomicBool,
    /// Whether the queue has refused records for lack of room.
    pub has_skipped: AtomicBool,
    pub next_id: AtomicU32,
    is_janitor_wanted: AtomicBool,
    /// Raised with every group that was written or given up.
    generation: Mutex<u64>,
    generation_changed: Condvar,
}

impl Inner {
    pub fn new(
        storage: Arc<dyn Storage>,
        options: DiskOptions,
        archived: Option<Archived>,
    ) -> Self {
        let gathers = options.durability == Durability::Group;
        Self {
            queue: Queue::new(options.queue_bytes, gathers),
            options,
            storage,
            index: Index::default(),
            tenants: Tenants::default(),
            segments: Segments::default(),
            tombstones: Mutex::default(),
            counters: Counters::default(),
            stalls: Stalls::new(DISK_STALL_MS),
            archived,
            residents: OnceLock::new(),
            is_ready: AtomicBool::new(false),
            is_recovering: AtomicBool::new(true),
            is_failing: AtomicBool::new(false),
            has_lost_flush: AtomicBool::new(false),
            trouble: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            has_skipped: AtomicBool::new(false),
            next_id: AtomicU32::new(1),
            is_janitor_wanted: AtomicBool::new(false),
            generation: Mutex::new(0),
            generation_changed: Condvar::new(),
        }
    }

    /// Counts a failed operation of the disk.
    pub fn alarm(&self) {
        add(&self.counters.alarms, 1);
    }

    /// Marks the disk as failing and keeps the error text.
    pub fn fails(&self, error: &io::Error) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        self.is_failing.store(true, Ordering::Release);
    }

    pub fn tombstones(&self) -> MutexGuard<'_, Tombstones> {
        self.tombstones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a record from index and segment.
    pub fn forget(&self, key: &RecordKey, place: Place) -> bool {
        let removed = self.index.remove(key, place);
        if removed {
            self.left(key, place);
        }
        removed
    }

    /// Enters a segment's entry as `Index::publish` does; also returns the record's place.
    pub fn publish(
        &self,
        entry: &Entry,
        segment: u32,
        replaces: impl Fn(Option<Place>) -> bool,
    ) -> Option<(Place, SlotId, Option<Place>)> {
        let number = self.tenants.enter(entry.tenant, entry.record_bytes);
        let place = Place::of(entry, segment, number);
        let entered = self.index.publish(&entry.key, place, replaces);
        if entered.is_none() {
            self.tenants.leave(number, entry.record_bytes);
        }
        entered.map(|(slot, before)| (place, slot, before))
    }

    /// Returns the tenant of the record at `place`; account 0 where there were too many tenants to tell apart.
    pub fn tenant_of(&self, place: &Place) -> u64 {
        tenant_of(account_of(self.tenants.id(place.tenant)), place.salt.into())
    }

    /// Updates tenant and segment after the index has removed a record from `place`.
    pub fn left(&self, key: &RecordKey, place: Place) {
        self.tenants.leave(place.tenant, place.record_bytes);
        if let Some(segment) = self.segments.get(place.segment) {
            let end = place.page + place.entry(*key).pages();
            segment.leave(&place, end);
        }
    }

    /// Removes a bad copy of a record, with a tombstone so that it also stays away after a restart.
    pub fn quarantine(&self, key: &RecordKey, place: Place) {
        if !self.forget(key, place) {
            return;
        }
        add(&self.counters.quarantined, 1);
        let retired = self.tombstones().retire(&*self.storage, (place.segment, place.page));
        if retired.is_err() {
            self.alarm();
        }
    }

    /// Gives up a job, so that its record may be offered again.
    pub fn release(&self, job: &Job) {
        if job.origin.is_none() {
            self.index.release(&job.key);
        }
    }

    /// Gives up a job whose record has expired; a record that still has its place expires there.
    pub fn expire_job(&self, job: Option<Job>) {
        if let Some(job) = job.filter(|job| job.origin.is_none()) {
            self.index.release(&job.key);
            add(&self.counters.expired, 1);
        }
    }

    /// Removes the records of `scope` up to `mark`, by default all; must run while nothing is being written. Before the
    /// directory was read it is only remembered, so that recovery leaves the records out.
    pub fn flush(&self, scope: Scope, mark: Option<(u32, u32)>) -> (u64, u64, bool) {
        let takes = |job: &Job| scope.takes(&job.key.namespace, job.record_class, job.tenant);
        for job in self.queue.drop_matching(takes) {
            self.release(&job);
        }
        // Held to the end, because recovery must see either the tombstone or the removal of its records.
        let mut tombstones = self.tombstones();
        if !self.is_ready.load(Ordering::Acquire) {
            tombstones.flush_early(scope);
            return (0, 0, false);
        }
        let mark = mark.unwrap_or_else(|| (self.next_id.load(Ordering::Acquire), 0));
        let is_durable = tombstones.flush(&*self.storage, scope, mark).is_ok();
        if !is_durable {
            self.alarm();
        }
        let (mut records, mut bytes) = (0, 0);
        for (key, place) in self.index.matching(&scope) {
            if self.forget(&key, place) {
                records += 1;
                bytes += u64::from(place.record_bytes);
            }
        }
        (records, bytes, is_durable)
    }

    /// Removes a segment and its records; counts the records in `counter`.
    pub fn drop_segment(&self, segment: &Segment, counter: &AtomicU64) {
        // A thread that loads the segment's entries finishes first, and then sees that the segment is gone.
        let _loading = segment.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = std::mem::take(&mut segment.records().slots);
        for (key, place, _) in
            slots.into_iter().filter_map(|slot| self.index.at(slot, segment.name.id))
        {
            add(counter, u64::from(self.forget(&key, place)));
        }
        self.mark_deleted(segment);
    }

    /// Removes a segment from the table; the janitor removes its file.
    pub fn mark_deleted(&self, segment: &Segment) {
        if self.segments.take(segment.name.id).is_some() {
            self.is_janitor_wanted.store(true, Ordering::Release);
            self.next_generation();
        }
    }

    /// Queues a record for writing, unless it is on disk or queued already.
    pub fn offer(&self, key: RecordKey, tenant: u64, record: Pin) {
        // A record with a segment of its own must leave room for others.
        let is_huge = u64::from(pages_of(record.len())) * PAGE as u64 > self.options.max_bytes / 4;
        if is_huge || !self.index.reserve(&key) {
            return;
        }
        // The record was verified: it has a header.
        let record_class = record[9];
        let source = Source::Memory(record);
        let job = Job { key, source, record_class, tenant, origin: None, age: None };
        if !self.queue.push(job) {
            self.index.release(&key);
            add(&self.counters.skipped, 1);
            self.has_skipped.store(true, Ordering::Release);
        }
    }

    /// Whether a record survives a power failure.
    pub fn is_durable(&self, key: &RecordKey) -> bool {
        self.index.get(key).is_some_and(|place| {
            let segment = self.segments.get(place.segment);
            let end = place.page + place.entry(*key).pages();
            segment.is_some_and(|segment| segment.is_durable(end))
        })
    }

    /// Whether a record is expected to be durable soon.
    pub fn is_under_way(&self, key: &RecordKey) -> bool {
        if self.options.durability == Durability::None {
            return false;
        }
        self.index.is_pending(key) || self.index.get(key).is_some() && !self.is_durable(key)
    }

    /// Wakes the waiting threads after a group was written or given up.
    pub fn next_generation(&self) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.generation_changed.notify_all();
    }

    /// Waits until `is_over`, checked after every group, at most until `until`.
    pub fn wait(&self, until: Instant, mut is_over: impl FnMut() -> bool) {
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_over() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return };
            generation = self
                .generation_changed
                .wait_timeout(generation, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Sleeps for `pause`, or until the tier stops.
    pub fn rest(&self, pause: Duration) {
        let stops = || self.is_stopping.load(Ordering::Acquire);
        self.wait(Instant::now() + pause, stops);
    }

    pub fn stops(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Sleeps until there are files to remove, at most for `pause`.
    pub fn await_janitor(&self, pause: Duration) {
        let is_wanted = || self.is_janitor_wanted.swap(false, Ordering::AcqRel) || self.stops();
        self.wait(Instant::now() + pause, is_wanted);
    }

    /// Writes tombstones that could not be written before. The archive is told of them, too, and does not count as told meanwhile.
    pub fn save_tombstones(&self, oldest: u32) -> io::Result<()> {
        let mut tombstones = self.tombstones();
        let was_saved = tombstones.is_saved();
        tombstones.save(&*self.storage, oldest)?;
        if was_saved || !tombstones.is_saved() {
            return Ok(());
        }
        if let Some(archive) = &self.archived {
            archive.note();
        }
        drop(tombstones);
        self.next_generation();
        Ok(())
    }

    /// Does not wait for a flush, which holds the tombstones to its end.
    fn are_flushes_recorded(&self) -> bool {
        let is_saved = self.tombstones.try_lock().is_ok_and(|tombstones| tombstones.is_saved());
        let is_told = self.archived.as_ref().is_none_or(Archived::is_told_all);
        is_saved && is_told && !self.has_lost_flush.load(Ordering::Acquire)
    }

    pub fn stats(&self) -> DiskStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let counted = &self.counters;
        let (queued, queued_bytes) = self.queue.held();
        let (refused, refused_namespace) = self.index.refused();
        let mut stats = DiskStats {
            max_bytes: self.options.max_bytes,
            used_bytes: self.segments.bytes(),
            index_bytes: self.index.memory_bytes(),
            queued,
            queued_bytes,
            written: of(&counted.written),
            written_bytes: of(&counted.written_bytes),
            file_bytes: of(&counted.file_bytes),
            read: of(&counted.read),
            read_bytes: of(&counted.read_bytes),
            missed: of(&counted.missed),
            skipped: of(&counted.skipped) + refused,
            refused_namespace,
            quarantined: of(&counted.quarantined),
            evicted: of(&counted.evicted),
            moved: of(&counted.moved),
            expired: of(&counted.expired),
            scrubbed_bytes: of(&counted.scrubbed_bytes),
            alarms: of(&counted.alarms),
            syncs_failed: of(&counted.syncs_failed),
            is_recovering: is(&self.is_recovering),
            is_failing: is(&self.is_failing),
            trouble: self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            are_flushes_recorded: self.are_flushes_recorded(),
            archive: self.archive_stats(),
            ..DiskStats::default()
        };
        for segment in self.segments.all() {
            let (records, bytes) = segment.durable();
            stats.durable_records += records;
            stats.durable_bytes += bytes;
            let held = segment.records();
            stats.records += held.live;
            stats.record_bytes += held.live_bytes;
            stats.segments += 1;
        }
        stats
    }
}

/// Wall clock in ms since 1970, only for names and for ages across restarts.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
