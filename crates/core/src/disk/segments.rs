//! Owns the table of segments: the records of each, its durable pages, its open file, and the bytes of all on disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use super::format::SegmentName;
use super::index::{Place, SlotId};
use super::storage::{Access, DiskFile, Storage};
use crate::limits::DISK_FILES_MAX;

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
    last_read: AtomicU64,
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
            last_read: AtomicU64::new(0),
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
    clock: AtomicU64,
    open_files: AtomicU64,
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
        let held = self.all().first().map(|segment| segment.name.id);
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
        let all = self.all_leaving().into_iter().chain(self.all());
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
        segment: &Segment,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        segment.last_read.store(now, Ordering::Relaxed);
        let lock = || segment.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*lock() {
            return Ok(Arc::clone(file));
        }
        if self.open_files.load(Ordering::Relaxed) >= DISK_FILES_MAX {
            self.close_one(segment.name.id);
        }
        let file = storage.open(&segment.name.text(), Access::Direct)?;
        if lock().replace(Arc::clone(&file)).is_none() {
            self.open_files.fetch_add(1, Ordering::Relaxed);
        }
        // If the file has left meanwhile, its own end found nothing to close.
        if !segment.is_local.load(Ordering::Acquire) || self.get(segment.name.id).is_none() {
            self.close_reader(segment);
        }
        Ok(file)
    }

    /// Closes the open file that was read least recently.
    fn close_one(&self, except: u32) {
        let all = self.all();
        let open = all.iter().filter(|segment| {
            let reader = segment.reader.lock().unwrap_or_else(PoisonError::into_inner);
            segment.name.id != except && reader.is_some()
        });
        if let Some(idle) = open.min_by_key(|segment| segment.last_read.load(Ordering::Relaxed)) {
            self.close_reader(idle);
        }
    }

    fn close_reader(&self, segment: &Segment) {
        let mut reader = segment.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.take().is_some() {
            self.open_files.fetch_sub(1, Ordering::Relaxed);
        }
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
            assert!(segment.reader.lock().expect("no panic").is_none(), "{is_archived}");
            assert_eq!(segments.open_files.load(Ordering::Relaxed), 0, "{is_archived}");
        }
    }
}
