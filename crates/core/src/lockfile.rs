//! Owns a lock between processes: a file that one of them holds until it releases the lock or dies.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::folder::{Folder, foreign};

/// Tries, because a holder may remove the file between our open and lock; that does not happen so often in a row.
const TRIES_MAX: u32 = 16;

/// A held lock. Dropping it removes the file and releases the lock.
#[derive(Debug)]
pub struct LockFile {
    folder: OwnedFd,
    name: PathBuf,
    // Held only for its lock; closing it releases the lock.
    _fd: OwnedFd,
}

impl LockFile {
    /// Takes the lock without waiting; `None` when another process holds it.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the file cannot be created, opened or locked, or does not belong to this user alone.
    pub fn take(path: &Path) -> Result<Option<Self>> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(path, Errno::INVAL));
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder =
            rustix::fs::open(folder, flags, Mode::empty()).map_err(|errno| failed(path, errno))?;
        Self::take_at(folder, Path::new(name), path)
    }

    /// Like `take`, in a checked folder.
    ///
    /// # Errors
    /// As `take`.
    pub fn take_in(folder: &Folder, name: &str) -> Result<Option<Self>> {
        let path = folder.path().join(name);
        let held =
            rustix::io::fcntl_dupfd_cloexec(folder, 0).map_err(|errno| failed(&path, errno))?;
        Self::take_at(held, Path::new(name), &path)
    }

    fn take_at(folder: OwnedFd, name: &Path, path: &Path) -> Result<Option<Self>> {
        let failed = |errno: Errno| failed(path, errno);
        // Opening must not block on a pipe.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        for _ in 0..TRIES_MAX {
            let mode = Mode::RUSR | Mode::WUSR;
            let fd =
                rustix::fs::openat(&folder, name, flags | OFlags::CLOEXEC, mode).map_err(failed)?;
            let ours = rustix::fs::fstat(&fd).map_err(failed)?;
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed(errno)),
            }
            // The last holder may have removed the file; a lock on a removed file excludes no process.
            let is_there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino));
            if let (true, Some(reason)) = (is_there, foreign(&ours)) {
                let text = format!("lock file {}: {reason}; remove it", path.display());
                return Err(Error::bad_argument(text));
            }
            if is_there {
                return Ok(Some(Self { folder, name: name.to_owned(), _fd: fd }));
            }
        }
        Ok(None)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // The file is removed while the lock is held, so that it is our own.
        let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

fn failed(path: &Path, errno: Errno) -> Error {
    Error::bad_argument(format!("lock file {}: {errno}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tierkv-lockfile-{}-{name}", std::process::id()))
    }

    #[test]
    fn one_holder_at_a_time() -> Result<()> {
        let path = path("one");
        let held = LockFile::take(&path)?;
        assert!(held.is_some());
        assert!(LockFile::take(&path)?.is_none());
        drop(held);
        assert!(!path.exists());
        assert!(LockFile::take(&path)?.is_some());
        Ok(())
    }

    #[test]
    fn a_file_left_by_a_dead_holder_is_taken() -> Result<()> {
        let path = path("dead");
        std::fs::write(&path, b"").map_err(|error| Error::bad_argument(error.to_string()))?;
        assert!(LockFile::take(&path)?.is_some());
        Ok(())
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        assert!(LockFile::take(&path("no").join("such").join("lock")).is_err());
    }
}
