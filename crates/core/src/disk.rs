//! Owns the vault's durable tier: records in append-only segments on a disk, recovered after any end of the process.

mod active;
mod archived;
pub mod format;
pub mod index;
mod inner;
mod janitor;
mod options;
mod pace;
mod queue;
mod read;
mod recover;
mod segments;
mod space;
pub mod storage;
mod tenants;
pub mod tombstones;
mod uploader;
pub mod walk;
mod writer;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use archived::Archived;
pub use archived::{ArchiveOptions, ArchiveStats};
use index::{Index, Place};
use inner::{Inner, add};
use janitor::Scrub;
use options::check;
pub use options::{DiskOptions, DiskStats, Durability};
pub use pace::Pace;
use queue::Order;
pub use read::Outcome;
use storage::{Directory, LOCK_NAME, Storage};
use writer::Writer;

use crate::error::{Code, Error, Result};
use crate::key::{RecordKey, Scope};
use crate::limits::{
    ARCHIVE_NOTE_WAIT_MS, ARCHIVE_SEGMENT_BYTES, DISK_RESERVE_SEGMENTS, DISK_SYNC_WAIT_MS,
};
use crate::lockfile::LockFile;
use crate::memory::Pin;
use crate::record::HEADER_BYTES;

/// Interface through which the durable tier asks the RAM tier.
pub trait Residents: Send + Sync {
    /// Returns about `bytes` bytes of records in memory that have no place on disk, and where to go on; 0 is the start. Never
    /// keeps the tier's other callers waiting for long.
    fn not_on_disk(&self, index: &Index, from: usize, bytes: u64)
    -> (Vec<Resident>, Option<usize>);
}

/// A record in memory.
pub struct Resident {
    /// Its key.
    pub key: RecordKey,
    /// Its tenant.
    pub tenant: u64,
    /// Its bytes.
    pub record: Pin,
}

/// The durable tier. Dropping it writes the queued records, seals the segment, and ends its threads.
pub struct Disk {
    shared: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    // Held only for its lock.
    lock: Mutex<Option<LockFile>>,
}

/// Why a second vault cannot open a directory, and what to do.
const USED: &str = "another vault uses it: stop that one, or set another [vault] data_dir here";

impl Disk {
    /// Opens the directory at `path`, which no other process may have open. Returns at once; its records are found in the
    /// background.
    ///
    /// # Errors
    /// `DISK_FAILED` when the directory cannot be made or is in use, `BAD_ARGUMENT` naming the option.
    pub fn open(path: &Path, options: DiskOptions) -> Result<Self> {
        Self::open_archived(path, options, None)
    }

    /// Like [`Self::open`] with an archive; waits for the archive once, where the directory does not know it yet.
    ///
    /// # Errors
    /// As `open`, and `DISK_FAILED` naming the archive.
    pub fn open_archived(
        path: &Path,
        mut options: DiskOptions,
        archive: Option<ArchiveOptions>,
    ) -> Result<Self> {
        let storage = Arc::new(Directory::open(path)?);
        let failed = |reason: String| {
            Error::new(Code::DiskFailed, format!("directory {}: {reason}", path.display()))
        };
        let lock = LockFile::take_in(storage.folder(), LOCK_NAME);
        let lock = lock.map_err(|error| failed(error.text))?;
        let lock = lock.ok_or_else(|| failed(USED.to_owned()))?;
        let archived = archive.map(|archive| {
            options.segment_bytes = options.segment_bytes.min(ARCHIVE_SEGMENT_BYTES);
            let url = archive.url.clone();
            Archived::claim(&*storage, archive)
                .map_err(|error| failed(format!("[vault] archive = \"{url}\": {error}")))
        });
        let disk = Self::start_archived(storage, options, archived.transpose()?)?;
        *disk.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
        Ok(disk)
    }

    /// Like [`Self::open`] on any storage.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the option.
    pub fn start(storage: Arc<dyn Storage>, options: DiskOptions) -> Result<Self> {
        Self::start_archived(storage, options, None)
    }

    fn start_archived(
        storage: Arc<dyn Storage>,
        options: DiskOptions,
        archived: Option<Archived>,
    ) -> Result<Self> {
        check(&options)?;
        let has_archive = archived.is_some();
        let shared = Arc::new(Inner::new(storage, options, archived));
        let mut threads = Vec::new();
        let mut spawn = |name: &str, run: Box<dyn FnOnce() + Send>| -> Result<()> {
            let builder = std::thread::Builder::new().name(format!("tierkv-{name}"));
            let failed = |error| Error::new(Code::DiskFailed, format!("no thread: {error}"));
            threads.push(builder.spawn(run).map_err(failed)?);
            Ok(())
        };
        let of = |shared: &Arc<Inner>| Arc::clone(shared);
        let (recovering, writing, tidying) = (of(&shared), of(&shared), of(&shared));
        spawn("recover", Box::new(move || recover::run(&recovering)))?;
        spawn("disk", Box::new(move || Writer::new(writing).run()))?;
        spawn("janitor", Box::new(move || janitor::run(&tidying)))?;
        if has_archive {
            let (keeping, telling) = (of(&shared), of(&shared));
            spawn("archive", Box::new(move || uploader::keep(&keeping)))?;
            spawn("notes", Box::new(move || uploader::tell(&telling)))?;
        }
        Ok(Self { shared, threads: Mutex::new(threads), lock: Mutex::new(None) })
    }

    /// Sets the RAM tier; the first call wins.
    pub fn attach(&self, residents: Weak<dyn Residents>) {
        let _ = self.shared.residents.set(residents);
    }

    /// Point in time at which a record counts as durable.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.shared.options.durability
    }

    /// Bytes on disk that are not kept free for new segments.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let DiskOptions { max_bytes, segment_bytes, .. } = self.shared.options;
        max_bytes.saturating_sub(segment_bytes * DISK_RESERVE_SEGMENTS)
    }

    /// Place of a record; `None` when the disk does not hold it or has not found it yet.
    #[must_use]
    pub fn locate(&self, key: &RecordKey) -> Option<Place> {
        self.shared.index.get(key)
    }

    /// Visits every record with its place.
    pub fn each(&self, visit: impl FnMut(RecordKey, Place)) {
        self.shared.index.each(visit);
    }

    /// Returns the header of the record at `place` without checking it against the record.
    #[must_use]
    pub fn read_header(&self, place: Place) -> Option<[u8; HEADER_BYTES]> {
        self.shared.read_header(place)
    }

    /// Says for each key whether its record is on disk.
    #[must_use]
    pub fn contains_all(&self, keys: &[RecordKey]) -> Vec<bool> {
        self.shared.index.contains_all(keys)
    }

    /// Whether there is an archive.
    #[must_use]
    pub fn has_archive(&self) -> bool {
        self.shared.archived.is_some()
    }

    /// Whether a record is read from the archive.
    #[must_use]
    pub fn is_far(&self, key: &RecordKey) -> bool {
        self.locate(key).is_some_and(|place| self.is_archived(place))
    }

    /// Whether the record at `place` is read from the archive.
    #[must_use]
    pub fn is_archived(&self, place: Place) -> bool {
        self.shared.archive_at(place).is_some()
    }

    /// Pace of reads from the archive; `None` before the first read.
    #[must_use]
    pub fn archive_pace(&self, now: Instant) -> Option<Pace> {
        self.shared.archived.as_ref()?.paces.at(now)
    }

    /// Whether a record survives a power failure.
    #[must_use]
    pub fn is_durable(&self, key: &RecordKey) -> bool {
        self.shared.is_durable(key)
    }

    /// Counts a use of a record in the RAM tier, so that the disk keeps it, too.
    pub fn touch(&self, key: &RecordKey) {
        self.shared.index.touch(key);
    }

    /// Queues a record of a tenant for writing, unless it is on disk or queued already.
    pub fn offer(&self, key: RecordKey, tenant: u64, record: Pin) {
        self.shared.offer(key, tenant, record);
    }

    /// Sets the guaranteed bytes of records per tenant; 0: tenants are not told apart.
    pub fn limit_tenants(&self, each: u64) {
        self.shared.tenants.limit(each);
    }

    /// Bytes of a tenant's records.
    #[must_use]
    pub fn used_by(&self, tenant: u64) -> u64 {
        self.shared.tenants.used_by(tenant)
    }

    /// Tenant of the record at `place`.
    #[must_use]
    pub fn tenant_of(&self, place: &Place) -> u64 {
        self.shared.tenant_of(place)
    }

    /// Waits until each record is durable or is not expected to be; says for each whether it is.
    #[must_use]
    pub fn wait_durable(&self, keys: &[RecordKey]) -> Vec<bool> {
        let shared = &self.shared;
        let until = Instant::now() + Duration::from_millis(DISK_SYNC_WAIT_MS);
        let mut left = keys.iter().peekable();
        shared.wait(until, || {
            let fails = shared.is_failing.load(Ordering::Acquire) || shared.stops();
            let waits = |key: &RecordKey| !fails && shared.is_under_way(key);
            while left.next_if(|key| !waits(key)).is_some() {}
            left.peek().is_none()
        });
        keys.iter().map(|key| shared.is_durable(key)).collect()
    }

    /// Byte range of the record at `place` within the whole pages read for it.
    #[must_use]
    pub fn extent(place: &Place) -> std::ops::Range<usize> {
        let start = format::ENTRY_BYTES;
        start..start + place.record_bytes as usize
    }

    /// Whether a read from this disk or archive has hung for too long, so that no caller should wait for another.
    pub(crate) fn is_stalled(&self, place: Place) -> bool {
        self.shared.stalls_at(place).any()
    }

    /// Whether a read from the disk, or from the archive, has hung for too long.
    pub(crate) fn hangs(&self, is_archive: bool) -> bool {
        let archive = self.shared.archived.as_ref().filter(|_| is_archive);
        archive.map_or(&self.shared.stalls, |archive| &archive.stalls).any()
    }

    /// Reads the record at `place` into page-aligned memory for its extent; quarantines a bad record.
    pub fn read(&self, key: &RecordKey, place: Place, pages: &mut [u8]) -> Outcome {
        let outcome = self.shared.read(key, place, pages);
        if outcome == Outcome::Sound {
            add(&self.shared.counters.read, 1);
            add(&self.shared.counters.read_bytes, u64::from(place.record_bytes));
            self.touch(key);
        }
        outcome
    }

    /// Checks a record on disk again; quarantines a bad one.
    #[must_use]
    pub fn recheck(&self, key: &RecordKey) -> Option<Outcome> {
        let place = self.locate(key)?;
        Some(self.shared.read_pages(key, place).err().unwrap_or(Outcome::Sound))
    }

    /// Removes the records of `scope`; returns records, bytes, and whether they stay away even after a crash.
    #[must_use]
    pub fn flush(&self, scope: Scope) -> (u64, u64, bool) {
        let (answer, answered) = channel();
        let is_ordered = self.shared.queue.order(Order::Flush(scope, answer));
        let flushed = is_ordered.then(|| answered.recv().ok()).flatten();
        let Some((records, bytes, is_durable)) = flushed else {
            self.shared.has_lost_flush.store(true, Ordering::Release);
            return (0, 0, false);
        };
        (records, bytes, is_durable && self.is_archive_told())
    }

    /// Waits until the archive knows of a flush, because flushed records must not come back from the archive either.
    fn is_archive_told(&self) -> bool {
        let Some(archive) = &self.shared.archived else { return true };
        let failures = archive.failures();
        let note = archive.note();
        self.shared.next_generation();
        let until = Instant::now() + Duration::from_millis(ARCHIVE_NOTE_WAIT_MS);
        // A failed request ends the wait; the caller of the flush then learns that it is not durable.
        let is_over = || archive.is_told(note) || archive.failures() > failures;
        self.shared.wait(until, || is_over() || self.shared.stops());
        archive.is_told(note)
    }

    /// Writes the queued records and seals the segment, so that the next start is quick.
    pub fn drain(&self) {
        let (answer, answered) = channel();
        if self.shared.queue.order(Order::Drain(answer)) {
            let _ = answered.recv();
        }
    }

    /// Writes the queued records, seals the segment, ends the threads and releases the directory; idempotent. Later offers are not written.
    pub fn close(&self) {
        self.shared.queue.close();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // One of the threads may hold the last reference to the store, and must not join itself.
        let current = std::thread::current().id();
        if threads.iter().all(|thread| thread.thread().id() != current) {
            for thread in threads.drain(..) {
                let _ = thread.join();
            }
        }
        // The lock is released last, because the threads used the directory until now.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until recovery has read the segments of the previous run.
    pub fn wait_recovered(&self) {
        let shared = &self.shared;
        let forever = Instant::now() + Duration::from_secs(86_400);
        shared.wait(forever, || !shared.is_recovering.load(Ordering::Acquire) || shared.stops());
    }

    /// Reads every record again; returns how many were bad and quarantined.
    #[must_use]
    pub fn scrub(&self) -> u64 {
        Scrub::default().run(&self.shared, u64::MAX).1
    }

    /// Returns the current numbers.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.shared.stats()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close();
    }
}
