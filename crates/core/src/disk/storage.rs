//! Owns the border to the file system: the few operations the durable tier needs, behind traits so that tests can make each fail.

use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::archived::{INDEX, INTENT, MARKER};
use super::format::SegmentName;
use crate::error::Result;
use crate::folder::Folder;

/// What an opened file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading past the page cache where the file system can: whole pages into page-aligned memory.
    Direct,
    /// Writing, and making durable what was written.
    Write,
}

/// One directory of files, flat.
pub trait Storage: Send + Sync {
    /// Names and lengths of its files.
    ///
    /// # Errors
    /// What the file system answers; so everywhere here.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Makes a file that must not be there yet.
    ///
    /// # Errors
    /// What the file system answers.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// What the file system answers.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file; it is no error when there is none.
    ///
    /// # Errors
    /// What the file system answers.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Puts a file in the place of another.
    ///
    /// # Errors
    /// What the file system answers.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes names durable: what was created, renamed and removed.
    ///
    /// # Errors
    /// What the file system answers.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Reads and writes name their place and may be short.
pub trait DiskFile: Send + Sync {
    /// Its length.
    ///
    /// # Errors
    /// What the file system answers; so everywhere here.
    fn bytes(&self) -> io::Result<u64>;

    /// Sets `bytes` bytes aside, so that writing them cannot run out of room.
    ///
    /// # Errors
    /// What the file system answers.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Cuts it to `bytes` bytes.
    ///
    /// # Errors
    /// What the file system answers.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Reads; 0 at the end.
    ///
    /// # Errors
    /// What the file system answers.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes parts one after another.
    ///
    /// # Errors
    /// What the file system answers.
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes durable what was written.
    ///
    /// # Errors
    /// What the file system answers; then nothing is known of what was written since the last success.
    fn sync(&self) -> io::Result<()>;
}

/// Reads until `buffer` is full or the file ends; returns the bytes read.
///
/// # Errors
/// What the file system answers.
pub fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes all parts; a short write is gone on with, one of nothing is an error.
///
/// # Errors
/// What the file system answers.
pub fn write_full(
    file: &dyn DiskFile,
    mut parts: &mut [IoSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let round = parts.len().min(PARTS_MAX);
        match file.write(&parts[..round], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut parts, written);
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Parts of one write: what every system takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;

/// A real directory.
#[derive(Debug)]
pub struct Directory {
    folder: Folder,
}

impl Directory {
    /// The directory at `path`, made when it is not there; it and all that is ours in it must be this user's alone.
    ///
    /// # Errors
    /// `DISK_FAILED` naming the path.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Folder::open(path)?;
        let of_segment = ["seg", INDEX, INTENT];
        let is_named = |name: &str| {
            of_segment.iter().any(|suffix| SegmentName::parse_with(name, suffix).is_some())
        };
        folder.check(|name| OWN_NAMES.contains(&name) || is_named(name))?;
        Ok(Self { folder })
    }

    /// The directory itself.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile { file: self.folder.create(name)? }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let file = match access {
            Access::Write => self.folder.file(name, OFlags::WRONLY)?,
            Access::Direct => match self.folder.file(name, OFlags::RDONLY | DIRECT) {
                // The file system knows no direct reads.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.folder.file(name, OFlags::RDONLY)?
                }
                opened => opened?,
            },
        };
        Ok(Arc::new(RealFile { file }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

/// What stands in the directory besides segments: tombstones, the names of models, the archive's name, and the lock.
const OWN_NAMES: [&str; 6] =
    ["tombstones", "tombstones.new", "models.json", "models.json.new", MARKER, LOCK_NAME];

/// Held by the vault that uses the directory.
pub const LOCK_NAME: &str = "lock";

#[cfg(target_os = "linux")]
const DIRECT: OFlags = OFlags::DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: OFlags = OFlags::empty();

#[derive(Debug)]
struct RealFile {
    file: fs::File,
}

impl DiskFile for RealFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let none = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, none, 0, bytes) {
            // Not every file system can; then a full disk shows when it is written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.file.set_len(bytes)
            }
            allocated => Ok(allocated?),
        }
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.file, parts, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
