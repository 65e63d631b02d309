//! Owns the table of segments: the records of each, its durable pages, its open file, and the bytes of all on disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use rustix::process::{Resource, getrlimit};

use super::format::SegmentName;
use super::index::{Place, SlotId};
use super::storage::{Access, DiskFile, Storage};
use crate::limits::{DISK_FILES_LEFT, DISK_FILES_MAX};

/// One file of records.
pub struct Segment {
    /// Its name.
    pub name: SegmentName,
    /// When the segment's records expire.
    pub expires: Option<Instant>,
    /// Bytes on disk.
    pub bytes: AtomicU64,
    /// Pages up to which a sync has succeeded.
    pub synced_pages: AtomicU32,
    /// Whether a sync has failed, so that none of its records counts as durable.
    pub is_untrusted: AtomicBool,
    /// Whether the segment takes no more records.
    pub is_closed: AtomicBool,
    /// Whether its footer is durable, so that the file no longer changes.
    pub is_sealed: AtomicBool,
    /// Whether its file is on disk; otherwise only the archive has it.
    pub is_local: AtomicBool,
    /// State of the archive's copy.
    object: AtomicU8,
    /// Bytes of the archive's copy.
    pub object_bytes: AtomicU64,
    /// Whether all readable entries are in the index.
    pub is_loaded: AtomicBool,
    /// Held while the segment's entries are loaded into the index.
    pub loading: Mutex<()>,
    records: Mutex<Records>,
    reader: Mutex<Option<Arc<dyn DiskFile>>>,
    /// Whether the open file was read again since it was opened or last considered for closing.
    was_read: AtomicBool,
    /// Place in the ring of open files; valid while `reader` holds a file, changed under the ring's lock.
    ring_at: AtomicUsize,
}

/// State of the archive's copy of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// No copy.
    None,
    /// An upload has begun.
    Perhaps,
    /// A complete copy.
    Whole,
}

/// Records of a segment that can be looked up.
#[derive(Debug, Default)]
pub struct Records {
    /// Numbers in the index; some may have been reused for other records.
    pub slots: Vec<SlotId>,
    /// Records that can be looked up.
    pub live: u64,
    /// Bytes of the live records.
    pub live_bytes: u64,
    /// Bytes of the live records by tenant.
    pub tenant_bytes: BTreeMap<u16, u64>,
    /// Live records entered since the last sync.
    pub unsynced: u64,
    /// Bytes of the unsynced records.
    pub unsynced_bytes: u64,
}

impl Segment {
    /// Returns a segment without entries.
    #[must_use]
    pub fn new(name: SegmentName, bytes: u64, expires: Option<Instant>) -> Self {
        Self {
            name,
            expires,
            bytes: AtomicU64::new(bytes),
            synced_pages: AtomicU32::new(0),
            is_untrusted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_sealed: AtomicBool::new(false),
            is_local: AtomicBool::new(true),
            object: AtomicU8::new(Object::None as u8),
            object_bytes: AtomicU64::new(0),
            is_loaded: AtomicBool::new(false),
            loading: Mutex::default(),
            records: Mutex::default(),
            reader: Mutex::default(),
            was_read: AtomicBool::new(false),
            ring_at: AtomicUsize::new(0),
        }
    }

    /// State of the archive's copy.
    #[must_use]
    pub fn object(&self) -> Object {
        match self.object.load(Ordering::SeqCst) {
            0 => Object::None,
            1 => Object::Perhaps,
            _ => Object::Whole,
        }
    }

    /// Sets the state of the archive's copy.
    pub fn set_object(&self, object: Object) {
        self.object.store(object as u8, Ordering::SeqCst);
    }

    /// Locks and returns the segment's records.
    pub fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Option<Arc<dyn DiskFile>>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an entry that ends before page `end` survives a power failure.
    #[must_use]
    pub fn is_durable(&self, end: u32) -> bool {
        !self.is_untrusted.load(Ordering::Acquire)
            && end <= self.synced_pages.load(Ordering::Acquire)
    }

    /// Records that survive a power failure, and their bytes.
    #[must_use]
    pub fn durable(&self) -> (u64, u64) {
        if self.is_untrusted.load(Ordering::Acquire) {
            return (0, 0);
        }
        let held = self.records();
        let bytes = held.live_bytes.saturating_sub(held.unsynced_bytes);
        (held.live.saturating_sub(held.unsynced), bytes)
    }

    /// Marks the first `pages` pages as synced.
    pub fn set_synced(&self, pages: u32) {
        let mut held = self.records();
        (held.unsynced, held.unsynced_bytes) = (0, 0);
        self.synced_pages.store(pages, Ordering::Release);
    }

    /// Adds a record that can now be looked up.
    pub fn enter(&self, slot: SlotId, place: &Place, end: u32) {
        let record_bytes = place.record_bytes;
        let is_synced = end <= self.synced_pages.load(Ordering::Acquire);
        let mut held = self.records();
        held.slots.push(slot);
        held.live += 1;
        held.live_bytes += u64::from(record_bytes);
        *held.tenant_bytes.entry(place.tenant).or_default() += u64::from(record_bytes);
        if !is_synced {
            held.unsynced += 1;
            held.unsynced_bytes += u64::from(record_bytes);
        }
    }

    /// Removes a record that can no longer be looked up.
    pub fn leave(&self, place: &Place, end: u32) {
        let record_bytes = place.record_bytes;
        let is_synced = end <= self.synced_pages.load(Ordering::Acquire);
        let mut held = self.records();
        held.live = held.live.saturating_sub(1);
        held.live_bytes = held.live_bytes.saturating_sub(u64::from(record_bytes));
        if let Entry::Occupied(mut of) = held.tenant_bytes.entry(place.tenant) {
            *of.get_mut() = of.get().saturating_sub(u64::from(record_bytes));
            if *of.get() == 0 {
                of.remove();
            }
        }
        if !is_synced {
            held.unsynced = held.unsynced.saturating_sub(1);
            held.unsynced_bytes = held.unsynced_bytes.saturating_sub(u64::from(record_bytes));
        }
    }
}

/// All segments, by id.
#[derive(Default)]
pub struct Segments {
    table: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// Removed segments; their files still exist, or may come back after a power failure.
    leaving: Mutex<BTreeMap<u32, Arc<Segment>>>,
    /// Lowest segment id of an archive that is not configured now.
    unreached: OnceLock<u32>,
    open: Mutex<OpenFiles>,
}

/// Segments whose files are open, in a ring (the clock algorithm): the hand closes the first file that was not read again
/// since it was opened or the hand last passed, so that opening one costs the same however many segments there are.
struct OpenFiles {
    ring: Vec<Arc<Segment>>,
    hand: usize,
    /// Files open at the same time.
    max: usize,
}

impl Default for OpenFiles {
    fn default() -> Self {
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = allowed - DISK_FILES_LEFT.min(allowed / 2);
        let max = usize::try_from(share).unwrap_or(usize::MAX).clamp(1, DISK_FILES_MAX);
        Self { ring: Vec::new(), hand: 0, max }
    }
}

impl OpenFiles {
    /// Adds a segment whose file was opened; returns the file that is closed for it, if any.
    fn add(&mut self, segment: &Arc<Segment>) -> Option<Arc<dyn DiskFile>> {
        if self.ring.len() < self.max {
            segment.ring_at.store(self.ring.len(), Ordering::Relaxed);
            self.ring.push(Arc::clone(segment));
            return None;
        }
        // In the second round every file is idle, unless it is read at this moment.
        for _ in 0..2 * self.max {
            self.hand = (self.hand + 1) % self.ring.len();
            if !self.ring[self.hand].was_read.swap(false, Ordering::Relaxed) {
                break;
            }
        }
        segment.ring_at.store(self.hand, Ordering::Relaxed);
        let idle = std::mem::replace(&mut self.ring[self.hand], Arc::clone(segment));
        idle.reader().take()
    }

    /// Removes a segment whose file was closed.
    fn remove(&mut self, segment: &Segment) {
        let at = segment.ring_at.load(Ordering::Relaxed);
        self.ring.swap_remove(at);
        if let Some(moved) = self.ring.get(at) {
            moved.ring_at.store(at, Ordering::Relaxed);
        }
    }
}

impl Segments {
    /// Adds a segment.
    pub fn insert(&self, segment: Arc<Segment>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(segment.name.id, segment);
    }

    /// The segment of an id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<Arc<Segment>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// All segments, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Removes a segment from the table; its bytes count until [`Segments::removed`].
    pub fn take(&self, id: u32) -> Option<Arc<Segment>> {
        let mut leaving = self.leaving();
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let segment = table.remove(&id)?;
        leaving.insert(id, Arc::clone(&segment));
        Some(segment)
    }

    /// Marks the segment's file as no longer read; returns its bytes.
    pub fn leave_disk(&self, segment: &Segment) -> u64 {
        segment.is_local.store(false, Ordering::Release);
        self.close_reader(segment);
        segment.bytes.swap(0, Ordering::AcqRel)
    }

    /// Forgets a segment whose file is durably removed.
    pub fn removed(&self, segment: &Segment) {
        self.close_reader(segment);
        self.leaving().remove(&segment.name.id);
    }

    /// Removed segments whose files may still exist.
    #[must_use]
    pub fn all_leaving(&self) -> Vec<Arc<Segment>> {
        self.leaving().values().cloned().collect()
    }

    /// Lowest id of a segment whose file may exist; `otherwise` when there is none.
    #[must_use]
    pub fn oldest(&self, otherwise: u32) -> u32 {
        let leaving = self.leaving().keys().next().copied();
        let held = self.table.read().unwrap_or_else(PoisonError::into_inner).keys().next().copied();
        let unreached = self.unreached.get().copied();
        leaving.into_iter().chain(held).chain(unreached).min().unwrap_or(otherwise)
    }

    /// Notes the lowest segment id of an archive that is not configured now.
    pub fn set_unreached(&self, id: u32) {
        let _ = self.unreached.set(id);
    }

    /// Bytes on disk, with those of segments being removed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let leaving = self.leaving();
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let all = leaving.values().chain(table.values());
        all.map(|segment| segment.bytes.load(Ordering::Acquire)).sum()
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Segment>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the segment's file for reading; opens it if needed.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn reader(
        &self,
        storage: &dyn Storage,
        segment: &Arc<Segment>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        // Not by the read that opens it: with every file new, the hand would go all round and close one in use.
        if let Some(file) = &*segment.reader() {
            segment.was_read.store(true, Ordering::Relaxed);
            return Ok(Arc::clone(file));
        }
        let file = storage.open(&segment.name.text(), Access::Direct)?;
        let idle = {
            let mut open = self.open();
            let is_new = segment.reader().replace(Arc::clone(&file)).is_none();
            if is_new { open.add(segment) } else { None }
        };
        // Outside of the lock, because closing is a system call.
        drop(idle);
        // If the file has left meanwhile, its own end found nothing to close.
        if !segment.is_local.load(Ordering::Acquire) || self.get(segment.name.id).is_none() {
            self.close_reader(segment);
        }
        Ok(file)
    }

    fn close_reader(&self, segment: &Segment) {
        let mut open = self.open();
        if segment.reader().take().is_some() {
            open.remove(segment);
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenFiles> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;

    /// A directory in which the segment's file leaves, for the archive or for good, just after it was opened.
    struct Leaving<'a>(&'a Segments, &'a Segment, bool);

    struct NoFile;

    impl Storage for Leaving<'_> {
        fn list(&self) -> io::Result<Vec<(String, u64)>> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn open(&self, _: &str, _: Access) -> io::Result<Arc<dyn DiskFile>> {
            let Self(segments, segment, is_archived) = self;
            if *is_archived {
                segments.leave_disk(segment);
            } else {
                segments.take(segment.name.id);
                segments.removed(segment);
            }
            Ok(Arc::new(NoFile))
        }
        fn remove(&self, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn rename(&self, _: &str, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    impl DiskFile for NoFile {
        fn bytes(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn truncate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn read(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn write(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_that_leaves_while_it_is_opened_does_not_stay_open() {
        for is_archived in [true, false] {
            let segments = Segments::default();
            let name = SegmentName { id: 1, made_ms: 0, salt: 0 };
            let segment = Arc::new(Segment::new(name, 0, None));
            segments.insert(Arc::clone(&segment));
            let storage = Leaving(&segments, &segment, is_archived);
            segments.reader(&storage, &segment).expect("this read still has it");
            assert!(segment.reader().is_none(), "{is_archived}");
            assert_eq!(segments.open().ring.len(), 0, "{is_archived}");
        }
    }

    /// A directory that counts its open files.
    #[derive(Default)]
    struct Counting(Arc<AtomicU64>, AtomicU64);

    struct Counted(Arc<AtomicU64>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Storage for Counting {
        fn list(&self) -> io::Result<Vec<(String, u64)>> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn open(&self, _: &str, _: Access) -> io::Result<Arc<dyn DiskFile>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(Counted(Arc::clone(&self.0))))
        }
        fn remove(&self, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn rename(&self, _: &str, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    impl DiskFile for Counted {
        fn bytes(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn truncate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn read(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn write(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    const FILES_MAX: usize = 256;

    fn filled(count: u32) -> (Segments, Vec<Arc<Segment>>) {
        let segments = Segments::default();
        segments.open().max = FILES_MAX;
        let made = |id| {
            let name = SegmentName { id, made_ms: 0, salt: 0 };
            let segment = Arc::new(Segment::new(name, 0, None));
            segments.insert(Arc::clone(&segment));
            segment
        };
        let all = (1..=count).map(made).collect();
        (segments, all)
    }

    #[test]
    fn the_hand_closes_files_that_were_not_read_lately_and_keeps_the_others() {
        let most = u32::try_from(FILES_MAX).unwrap();
        let (segments, all) = filled(4 * most);
        let storage = Counting::default();
        let read = |segment| drop(segments.reader(&storage, segment).expect("a file"));
        let busy = &all[0];
        for segment in &all {
            read(segment);
            read(busy);
            let open = storage.0.load(Ordering::Relaxed);
            assert!(open <= FILES_MAX as u64, "{open} files are open");
        }
        assert!(busy.reader().is_some(), "it was read all the time");
        assert_eq!(storage.1.load(Ordering::Relaxed), all.len() as u64, "each was opened once");
        for segment in &all {
            segments.take(segment.name.id);
            segments.removed(segment);
        }
        assert_eq!(storage.0.load(Ordering::Relaxed), 0);
        assert_eq!(segments.open().ring.len(), 0);
    }

    /// Steps of the hand, in place of time: with a scan of all segments each opening would cost their number.
    #[test]
    fn opening_a_file_costs_the_same_among_many_segments() {
        let (segments, all) = filled(16 * u32::try_from(FILES_MAX).unwrap());
        let storage = Counting::default();
        let mut steps = 0;
        for segment in &all {
            let before = segments.open().hand;
            drop(segments.reader(&storage, segment).expect("a file"));
            steps += (segments.open().hand + FILES_MAX - before) % FILES_MAX;
        }
        assert!(steps <= 2 * all.len(), "{steps} steps for {} openings", all.len());
    }
}
