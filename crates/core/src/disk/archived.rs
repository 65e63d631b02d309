//! Owns the vault's view of its archive: owner, the small files beside segments, and health.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::format::SegmentName;
use super::inner::{add, wall_ms};
use super::pace::Paces;
use super::read::Stalls;
use super::storage::{Access, DiskFile, Storage, read_full, write_full};
use crate::archive::Archive;
use crate::crc32c;
use crate::limits::{ARCHIVE_BESIDE_BYTES, ARCHIVE_STALL_MS};
use crate::memory::pages::Pages;

/// Suffix of the footer of a segment that the archive has whole.
pub const INDEX: &str = "idx";
/// Suffix of the footer of a segment whose upload has begun.
pub const INTENT: &str = "put";
/// File that names the directory's archive and the token stored there.
pub const MARKER: &str = "archive";
/// Object in the archive that holds the token.
const OWNER: &str = "owner";
const TOKEN_BYTES: usize = 32;
/// Files beside the segments; the archive has copies of them because flushed records must not come back under any name.
const BESIDE: [&str; 3] = ["tombstones", "flushes.json", "models.json"];

/// Options of an archive.
#[derive(Clone)]
pub struct ArchiveOptions {
    /// URL of the archive.
    pub url: String,
    /// Object store behind the URL.
    pub archive: Arc<dyn Archive>,
    /// Most bytes of segments in the archive; above it the oldest are removed.
    pub max_bytes: u64,
    /// Longest wait of a record until its segment may be uploaded.
    pub after: Duration,
}

/// Counters and gauges of an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Budget in bytes.
    pub max_bytes: u64,
    /// Bytes of segments in the archive.
    pub used_bytes: u64,
    /// Segments in the archive.
    pub segments: u64,
    /// Segments among them that are no longer on disk.
    pub remote_segments: u64,
    /// Sealed segments not yet in the archive.
    pub pending: u64,
    /// Bytes of the pending segments.
    pub pending_bytes: u64,
    /// Bytes uploaded so far.
    pub sent_bytes: u64,
    /// Records read back so far.
    pub read: u64,
    /// Bytes read for them.
    pub read_bytes: u64,
    /// Records removed because the archive was full.
    pub removed: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Whether the last request failed.
    pub is_failing: bool,
    /// Error text of the last failed request; empty without any.
    pub trouble: String,
}

#[derive(Default)]
pub struct Counters {
    pub sent_bytes: AtomicU64,
    pub read: AtomicU64,
    pub read_bytes: AtomicU64,
    pub removed: AtomicU64,
    pub failures: AtomicU64,
}

pub struct Archived {
    pub options: ArchiveOptions,
    pub counters: Counters,
    pub stalls: Stalls,
    pub paces: Paces,
    pub is_failing: AtomicBool,
    /// The archive as it was opened last.
    archive: Mutex<Arc<dyn Archive>>,
    trouble: Mutex<String>,
    token: String,
    /// Flushes written to disk, and flushes that the archive knows of.
    noted: AtomicU64,
    told: AtomicU64,
    /// Checksums of the archive's copies of the files beside segments; `None`: there is no such file.
    beside: Mutex<HashMap<&'static str, Option<u32>>>,
}

impl Archived {
    /// Claims the archive for this directory. A directory that names no archive takes over the archive's records, because
    /// its disk is new or was lost.
    ///
    /// # Errors
    /// Errors of disk and archive; `AlreadyExists` when the archive or the directory belongs to another.
    pub fn claim(storage: &dyn Storage, options: ArchiveOptions) -> io::Result<Self> {
        let known = read_file(storage, MARKER)?;
        let known = known.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let token = match known.as_deref().and_then(|text| text.split_once('\n')) {
            Some((url, token)) if url == options.url => token.to_owned(),
            Some((url, _)) => {
                return Err(belongs(&format!(
                    "data_dir belongs to the archive {url}; name that one, or another data_dir; or remove the file {MARKER:?} there, so that what this disk has is copied to the new place"
                )));
            }
            None => take_over(storage, &options)?,
        };
        Ok(Self {
            archive: Mutex::new(Arc::clone(&options.archive)),
            options,
            counters: Counters::default(),
            stalls: Stalls::new(ARCHIVE_STALL_MS),
            paces: Paces::default(),
            is_failing: AtomicBool::new(false),
            trouble: Mutex::default(),
            token,
            // One flush is assumed unreported, because a flush may have happened while the archive was away.
            noted: AtomicU64::new(1),
            told: AtomicU64::new(0),
            beside: Mutex::default(),
        })
    }

    /// The archive as it was opened last, which may not be this vault's.
    pub fn opened(&self) -> Arc<dyn Archive> {
        Arc::clone(&self.archive.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the archive's place anew: a disk may have been mounted there since.
    ///
    /// # Errors
    /// Errors of the archive; it then stays as it was opened before.
    pub fn open_anew(&self) -> io::Result<()> {
        if let Some(fresh) = self.opened().anew()? {
            *self.archive.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        Ok(())
    }

    /// Counts a failed request and keeps its error text.
    pub fn fails(&self, error: &io::Error) {
        add(&self.counters.failures, 1);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        self.is_failing.store(true, Ordering::Release);
    }

    /// Number of failed requests.
    pub fn failures(&self) -> u64 {
        self.counters.failures.load(Ordering::Acquire)
    }

    /// Error text of the last failed request.
    pub fn trouble(&self) -> String {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a record read from the archive.
    pub fn was_read(&self, bytes: u64) {
        add(&self.counters.read, 1);
        add(&self.counters.read_bytes, bytes);
    }

    /// Counts a flush written to disk and returns its number for `is_told`.
    pub fn note(&self) -> u64 {
        self.noted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Number of the last flush.
    pub fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether the archive knows of flush `note`.
    pub fn is_told(&self, note: u64) -> bool {
        self.told.load(Ordering::Acquire) >= note
    }

    /// Whether the archive knows of all flushes.
    pub fn is_told_all(&self) -> bool {
        self.is_told(self.noted())
    }

    /// The archive as it was opened last, where it is this vault's.
    ///
    /// # Errors
    /// As `check_owner`.
    pub fn own(&self) -> io::Result<Arc<dyn Archive>> {
        let archive = self.opened();
        self.check_owner(&*archive)?;
        Ok(archive)
    }

    /// Checks that an opened archive belongs to this vault. What another lacks says nothing about this vault's records.
    ///
    /// # Errors
    /// `AlreadyExists` when it belongs to another; errors of the archive.
    pub fn check_owner(&self, archive: &dyn Archive) -> io::Result<()> {
        let mut found = [0; 2 * TOKEN_BYTES];
        let read = match archive.read(OWNER, &mut found, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            read => read?,
        };
        if &found[..read] == self.token.as_bytes() {
            return Ok(());
        }
        // The folder below a mount that is away, or a place that was emptied.
        if read == 0 {
            return Err(belongs(&format!(
                "it lacks the mark of its vault: is its place mounted? If it was emptied, stop the vault, remove the file {MARKER:?} from its data_dir, and start it: it copies what its disk has"
            )));
        }
        let text = "another vault has taken this archive over; give each vault a prefix of its own";
        Err(belongs(text))
    }

    /// Removes what uploads of an ended process left.
    ///
    /// # Errors
    /// As [`Archive::clear`].
    pub fn clear(&self, archive: &dyn Archive) -> io::Result<usize> {
        // The other thread uploads under this lock.
        let _beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        archive.clear()
    }

    /// Uploads the files beside segments that have changed, and removes those that the disk does not have: a directory restored
    /// from a back-up may be older than the archive.
    ///
    /// # Errors
    /// Errors of disk and archive.
    pub fn tell(&self, archive: &dyn Archive, storage: &dyn Storage) -> io::Result<()> {
        let note = self.noted();
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        for name in BESIDE {
            let bytes = read_file(storage, name)?;
            let checksum = bytes.as_deref().map(crc32c::checksum);
            if beside.get(name) == Some(&checksum) {
                continue;
            }
            match bytes {
                Some(bytes) => set(archive, name, &bytes)?,
                None => forget(archive, name)?,
            }
            beside.insert(name, checksum);
        }
        self.told.fetch_max(note, Ordering::AcqRel);
        Ok(())
    }
}

/// Copies the archive's state into this directory; the marker comes last, so that an interrupted copy starts again.
fn take_over(storage: &dyn Storage, options: &ArchiveOptions) -> io::Result<String> {
    let archive = &*options.archive;
    let objects = archive.list()?;
    let found: Vec<_> = objects.iter().filter_map(|(name, _)| SegmentName::parse(name)).collect();
    let here: Vec<String> = storage.list()?.into_iter().map(|(name, _)| name).collect();
    let is_used = here.iter().any(|name| SegmentName::parse(name).is_some());
    if is_used && !found.is_empty() {
        return Err(belongs(
            "it holds segments of another disk; name an empty prefix, or an empty data_dir",
        ));
    }
    for name in BESIDE {
        if let Some(bytes) = get(archive, name)?.filter(|_| !is_used) {
            replace(storage, name, &bytes)?;
        }
    }
    for name in found.iter().map(|name| name.with(INDEX)).filter(|name| !here.contains(name)) {
        storage.create(&name)?;
    }
    let token = format!("{:016x}{:016x}", RandomState::new().hash_one(OWNER), wall_ms());
    set(archive, OWNER, token.as_bytes())?;
    replace(storage, MARKER, format!("{}\n{token}", options.url).as_bytes())?;
    Ok(token)
}

fn belongs(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

/// Removes a small object if there is one: an archive may forbid removals, and then has none.
fn forget(archive: &dyn Archive, name: &str) -> io::Result<()> {
    match archive.bytes(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => found.and_then(|_| archive.remove(name)),
    }
}

/// Returns a small object; `None` when there is none.
fn get(archive: &dyn Archive, name: &str) -> io::Result<Option<Vec<u8>>> {
    let bytes = match archive.bytes(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    let mut buffer = vec![0; small(name, bytes)?];
    let read = archive.read(name, &mut buffer, 0)?;
    buffer.truncate(read);
    Ok(Some(buffer))
}

fn set(archive: &dyn Archive, name: &str, bytes: &[u8]) -> io::Result<()> {
    archive.put(name, bytes.len() as u64, &mut |buffer, offset| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = bytes.get(start..start.saturating_add(buffer.len()));
        buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    })
}

/// Reads a small file of the directory; `None` when there is none.
pub fn read_file(storage: &dyn Storage, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match storage.open(name, Access::Direct) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let Some(mut pages) = Pages::new(small(name, file.bytes()?)?) else {
        return Ok(Some(Vec::new()));
    };
    let read = read_full(&*file, &mut pages, 0)?;
    Ok(Some(pages[..read].to_vec()))
}

/// Replaces a small file atomically; durable once this returns `Ok`.
pub fn replace(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = format!("{name}.new");
    storage.remove(&fresh)?;
    let file = storage.create(&fresh)?;
    write_full(&*file, &mut [IoSlice::new(bytes)], 0)?;
    file.sync()?;
    storage.rename(&fresh, name)?;
    storage.sync()
}

fn small(name: &str, bytes: u64) -> io::Result<usize> {
    let fits = usize::try_from(bytes).ok().filter(|_| bytes <= ARCHIVE_BESIDE_BYTES);
    fits.ok_or_else(|| {
        let text = format!("{name} has {bytes} bytes, above {ARCHIVE_BESIDE_BYTES}");
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    })
}

/// An object of the archive, read like a file on disk.
struct Object {
    archive: Arc<dyn Archive>,
    name: String,
}

/// Returns a segment's object for reading.
pub fn object(archive: &Arc<dyn Archive>, name: &SegmentName) -> Arc<dyn DiskFile> {
    Arc::new(Object { archive: Arc::clone(archive), name: name.text() })
}

impl DiskFile for Object {
    fn bytes(&self) -> io::Result<u64> {
        self.archive.bytes(&self.name)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.archive.read(&self.name, buffer, offset)
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
