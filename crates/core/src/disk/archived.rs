//! Owns what a vault knows of its archive: whose it is, what lies there beside segments, and how it is doing.

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

/// Suffix of a footer whose segment the archive has whole, ...
pub const INDEX: &str = "idx";
/// ... and of one whose upload has begun.
pub const INTENT: &str = "put";
/// Names the archive of this directory, and the token that lies there, too.
pub const MARKER: &str = "archive";
/// What that is called there.
const OWNER: &str = "owner";
const TOKEN_BYTES: usize = 32;
/// Files that lie beside segments: what was flushed must not come back, by whatever name it is flushed.
const BESIDE: [&str; 3] = ["tombstones", "flushes.json", "models.json"];

/// Where segments go besides.
#[derive(Clone)]
pub struct ArchiveOptions {
    /// Its URL.
    pub url: String,
    /// What is there.
    pub archive: Arc<dyn Archive>,
    /// Bytes of segments there; beyond it the oldest go.
    pub max_bytes: u64,
    /// How long a record waits at most until its segment may go up.
    pub after: Duration,
}

/// How an archive is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Most bytes there.
    pub max_bytes: u64,
    /// Bytes of segments there.
    pub used_bytes: u64,
    /// Segments there.
    pub segments: u64,
    /// Of them, those that are not on the disk any more.
    pub remote_segments: u64,
    /// Sealed segments that are not there yet.
    pub pending: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// Bytes that went up so far.
    pub sent_bytes: u64,
    /// Records read back so far.
    pub read: u64,
    /// Bytes read for them.
    pub read_bytes: u64,
    /// Records that went because the archive had its most bytes.
    pub removed: u64,
    /// Requests that failed.
    pub failures: u64,
    /// The last one failed.
    pub is_failing: bool,
    /// What the last that failed said; empty: none has.
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
    trouble: Mutex<String>,
    token: String,
    /// Flushes written down here, and those the archive knows of, too.
    noted: AtomicU64,
    told: AtomicU64,
    /// Checksums of what lies beside segments.
    beside: Mutex<HashMap<&'static str, u32>>,
}

impl Archived {
    /// The archive of this directory. A directory that knows of none takes over what is there: then its disk was lost, or
    /// is new.
    ///
    /// # Errors
    /// What disk and archive answer; `AlreadyExists` for an archive, or a directory, that belongs to another.
    pub fn claim(storage: &dyn Storage, options: ArchiveOptions) -> io::Result<Self> {
        let known = read_file(storage, MARKER)?;
        let known = known.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let token = match known.as_deref().and_then(|text| text.split_once('\n')) {
            Some((url, token)) if url == options.url => token.to_owned(),
            Some((url, _)) => {
                return Err(belongs(&format!(
                    "data_dir belongs to the archive {url}; name that one, or another data_dir"
                )));
            }
            None => take_over(storage, &options)?,
        };
        Ok(Self {
            options,
            counters: Counters::default(),
            stalls: Stalls::new(ARCHIVE_STALL_MS),
            paces: Paces::default(),
            is_failing: AtomicBool::new(false),
            trouble: Mutex::default(),
            token,
            // What was flushed while the archive was away.
            noted: AtomicU64::new(1),
            told: AtomicU64::new(0),
            beside: Mutex::default(),
        })
    }

    /// A segment's object, for reading.
    pub fn file(&self, name: &SegmentName) -> Arc<dyn DiskFile> {
        Arc::new(Object { archive: Arc::clone(&self.options.archive), name: name.text() })
    }

    /// A request failed.
    pub fn fails(&self, error: &io::Error) {
        add(&self.counters.failures, 1);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        self.is_failing.store(true, Ordering::Release);
    }

    /// Requests that failed so far.
    pub fn failures(&self) -> u64 {
        self.counters.failures.load(Ordering::Acquire)
    }

    /// What the last request that failed said.
    pub fn trouble(&self) -> String {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A record was read.
    pub fn was_read(&self, bytes: u64) {
        add(&self.counters.read, 1);
        add(&self.counters.read_bytes, bytes);
    }

    /// A flush was written down here; the archive knows of it once `is_told` says so.
    pub fn note(&self) -> u64 {
        self.noted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last of them.
    pub fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether the archive knows of that flush.
    pub fn is_told(&self, note: u64) -> bool {
        self.told.load(Ordering::Acquire) >= note
    }

    /// Whether it knows of all.
    pub fn is_told_all(&self) -> bool {
        self.is_told(self.noted())
    }

    /// Whether the archive is still this vault's.
    ///
    /// # Errors
    /// `AlreadyExists` when it is another's.
    pub fn check_owner(&self) -> io::Result<()> {
        let mut found = [0; 2 * TOKEN_BYTES];
        let read = match self.options.archive.read(OWNER, &mut found, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            read => read?,
        };
        if &found[..read] == self.token.as_bytes() {
            return Ok(());
        }
        let text = "another vault has taken this archive over; give each vault a prefix of its own";
        Err(belongs(text))
    }

    /// Puts there what lies beside segments and is not as it was.
    ///
    /// # Errors
    /// What disk and archive answer.
    pub fn tell(&self, storage: &dyn Storage) -> io::Result<()> {
        let note = self.noted();
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        for name in BESIDE {
            let Some(bytes) = read_file(storage, name)? else { continue };
            let checksum = crc32c::checksum(&bytes);
            if beside.get(name) != Some(&checksum) {
                set(&*self.options.archive, name, &bytes)?;
                beside.insert(name, checksum);
            }
        }
        self.told.fetch_max(note, Ordering::AcqRel);
        Ok(())
    }
}

/// Makes this directory know all that the archive has; the marker comes last.
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

/// A small object; `None` when there is none.
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

/// A small file of the directory; `None` when there is none.
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

/// Writes a small file in one step, over what was there; durable when this succeeds.
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

/// An object that is read like a file of the disk.
struct Object {
    archive: Arc<dyn Archive>,
    name: String,
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
