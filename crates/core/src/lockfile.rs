//! Owns a lock between processes: a file one of them holds, given free by its release or its death.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// A holder may remove the file between our opening and locking it; that often in a row it does not happen.
const TRIES_MAX: u32 = 16;

/// A held lock. Dropping it removes the file and gives the lock free.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    // Held for its lock alone; closing it is the release.
    _fd: OwnedFd,
}

impl LockFile {
    /// Takes the lock without waiting; `None` when somebody holds it.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the file cannot be made, opened or locked.
    pub fn take(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES_MAX {
            let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| failed(path, errno))?;
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(failed(path, errno)),
            }
            let ours = rustix::fs::fstat(&fd).map_err(|errno| failed(path, errno))?;
            // A lock on a file that its last holder has removed locks nobody out.
            let is_there = rustix::fs::stat(path)
                .is_ok_and(|found| (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino));
            if is_there {
                return Ok(Some(Self { path: path.to_owned(), _fd: fd }));
            }
        }
        Ok(None)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // While the lock is held, so that it is ours that goes.
        let _ = rustix::fs::unlink(&self.path);
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
