//! Owns the interface to the file system: the few operations of the durable tier, behind traits so that tests can make each fail.

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

/// Purpose of an opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads that bypass the page cache where the file system can: whole pages into page-aligned memory.
    Direct,
    /// Writes and syncs.
    Write,
}

/// A flat directory of files.
pub trait Storage: Send + Sync {
    /// Names and lengths of the files.
    ///
    /// # Errors
    /// Errors of the file system; likewise for all methods.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Creates a file that must not exist yet.
    ///
    /// # Errors
    /// Errors of the file system.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file; succeeds when there is none.
    ///
    /// # Errors
    /// Errors of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file over another.
    ///
    /// # Errors
    /// Errors of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes created, renamed and removed names durable.
    ///
    /// # Errors
    /// Errors of the file system.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Reads and writes take an offset and may be short.
pub trait DiskFile: Send + Sync {
    /// Length of the file.
    ///
    /// # Errors
    /// Errors of the file system; likewise for all methods.
    fn bytes(&self) -> io::Result<u64>;

    /// Allocates `bytes` bytes, so that writing them cannot run out of room.
    ///
    /// # Errors
    /// Errors of the file system.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Truncates the file to `bytes` bytes.
    ///
    /// # Errors
    /// Errors of the file system.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Reads into `buffer`; returns 0 at the end of the file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes the parts one after another.
    ///
    /// # Errors
    /// Errors of the file system.
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes the written bytes durable.
    ///
    /// # Errors
    /// Errors of the file system; after one, all bytes written since the last successful sync are in doubt.
    fn sync(&self) -> io::Result<()>;
}

/// Reads until `buffer` is full or the file ends; returns the bytes read.
///
/// # Errors
/// Errors of the file system.
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

/// Writes all parts; continues after a short write; a write of zero bytes is an error.
///
/// # Errors
/// Errors of the file system.
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

/// Most parts of one write that every system takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;

/// A real directory.
#[derive(Debug)]
pub struct Directory {
    folder: Folder,
}

impl Directory {
    /// Opens the directory at `path`, creating it if needed; it and our files in it must belong to this user alone.
    ///
    /// # Errors
    /// `DISK_FAILED` naming the path.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Folder::open(path)?;
        let of_segment = ["seg", INDEX, INTENT];
        let is_named = |name: &str| {
            of_segment.iter().any(|suffix| SegmentName::parse_with(name, suffix).is_some())
        };
        let is_own = |name: &str| {
            name == LOCK_NAME || OWN_NAMES.contains(&name.strip_suffix(".new").unwrap_or(name))
        };
        folder.check(|name| is_own(name) || is_named(name))?;
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
                // The file system has no direct reads.
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

/// Files in the directory besides segments and the lock, each also with `.new` while it is replaced: tombstones, flushes, the
/// names of models, and the archive's name.
const OWN_NAMES: [&str; 4] = ["tombstones", "flushes.json", "models.json", MARKER];

/// Lock file of the vault that uses the directory.
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
            // Not every file system can preallocate; a full disk then shows only at a write.
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
