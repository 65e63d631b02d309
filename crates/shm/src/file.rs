//! Owns a region's file apart from its memory: who may have it, and locks on its bytes, which the kernel gives back when a process ends.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::FileType;
use tierkv_core::error::{Code, Error, Result};

use crate::layout::{LOCK_AT, LOCK_BYTES};

pub(crate) fn failed(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Error {
    Error::new(Code::ArenaFailed, format!("{what}: {error}"))
}

/// Its length, if it is a file of this user alone that can be a region.
pub(crate) fn check_file(path: &Path, fd: &OwnedFd) -> Result<u64> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| failed(path.display(), errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed(path.display(), "this is no regular file"));
    }
    if stat.st_nlink > 1 {
        return Err(failed(path.display(), "it has another name, too: remove one of them"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(failed(path.display(), "others may open it: chmod 600, or name another"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(failed(path.display(), "it belongs to another user"));
    }
    u64::try_from(stat.st_size)
        .ok()
        .filter(|bytes| *bytes > LOCK_AT + LOCK_BYTES)
        .ok_or_else(|| failed(path.display(), "this is no region of tierKV: name another file"))
}

/// Takes, looks for or gives back a lock on bytes of it.
pub(crate) fn lock_bytes(
    fd: &OwnedFd,
    command: i32,
    kind: i32,
    from: u64,
    bytes: u64,
) -> std::io::Result<libc::flock> {
    // SAFETY: plain numbers; all zeros is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = i64::try_from(from).unwrap_or_default();
    lock.l_len = i64::try_from(bytes).unwrap_or_default();
    // SAFETY: the descriptor is open, the lock our own.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(lock),
    }
}
