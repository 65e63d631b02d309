//! Owns the access rules of a region's file, and locks on its bytes, which the kernel releases when a process ends.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Gid, Mode};
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{SHM_LOCK_LOOK_MS, SHM_OPEN_LOCK_MS};

use crate::dax::{Described, bytes_of};
use crate::layout::{HOSTS_MAX, LOCK_AT, LOCK_BYTES, MEMBERS_MAX};

/// Room for a group's entry with all members' names; larger groups are given by number.
const GROUP_BYTES_MAX: usize = 1 << 20;

pub(crate) fn failed(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Error {
    Error::new(Code::ArenaFailed, format!("{what}: {error}"))
}

/// Mode of a group's file: its members read and write it, other users have no access.
const OF_A_GROUP: u32 = 0o660;
/// Mode bits of a folder in which any user can create files of its group.
const GIVES_TO_STRANGERS: u32 = 0o2002;

/// Memory under a path.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub bytes: u64,
    /// A device is neither created nor removed.
    pub is_device: bool,
}

/// Checks that a file can be a region and belongs to this user alone, or to the given group.
pub(crate) fn check_file(
    path: &Path,
    fd: &OwnedFd,
    group: Option<u32>,
    described: Described,
) -> Result<Place> {
    let in_words = |errno| failed(path.display(), errno);
    let refused = |text: String| Err(failed(path.display(), text));
    let stat = rustix::fs::fstat(fd).map_err(in_words)?;
    let device = described(&stat).map(|described| bytes_of(path, &described)).transpose()?;
    if device.is_none() && FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("this is no regular file".to_owned());
    }
    if stat.st_nlink > 1 {
        return refused("it has another name, too: remove one of them".to_owned());
    }
    let (user, mode) = (rustix::process::geteuid().as_raw(), stat.st_mode & 0o777);
    match group {
        None if mode & 0o077 != 0 => {
            return refused("others may open it: chmod 600, name another, or write the [cluster] group it is for".to_owned());
        }
        None if stat.st_uid != user => {
            return refused(format!(
                "it belongs to user {}, this is user {user}: name another, or share one by [cluster] group",
                stat.st_uid
            ));
        }
        Some(group) if stat.st_gid != group || mode & 0o077 != OF_A_GROUP & 0o077 => {
            return refused(format!(
                "it has group {} and mode {mode:o}, [cluster] group is {group}: chgrp {group} and chmod 660 it, or name another",
                stat.st_gid
            ));
        }
        Some(_) => check_folder(path)?,
        None => {}
    }
    let bytes = device.unwrap_or(u64::try_from(stat.st_size).unwrap_or_default());
    if bytes <= LOCK_AT + LOCK_BYTES {
        return refused("this is no region of tierKV: name another file".to_owned());
    }
    Ok(Place { bytes, is_device: device.is_some() })
}

fn check_folder(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    let stat = rustix::fs::stat(folder).map_err(|errno| failed(path.display(), errno))?;
    if stat.st_mode & GIVES_TO_STRANGERS != GIVES_TO_STRANGERS {
        return Ok(());
    }
    let text =
        format!("anybody may make files of its group in {0}: chmod o-w {0}", folder.display());
    Err(failed(path.display(), text))
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Gives a file to a group.
pub(crate) fn give_to(path: &Path, fd: &OwnedFd, group: u32) -> Result<()> {
    check_folder(path)?;
    rustix::fs::fchown(fd, None, Some(Gid::from_raw(group))).map_err(|errno| {
        let text =
            format!("[cluster] group is {group}: {errno}: make this user one of the group's");
        failed(path.display(), text)
    })?;
    // Sets the mode explicitly, because the umask may have removed bits.
    rustix::fs::fchmod(fd, Mode::from_raw_mode(OF_A_GROUP))
        .map_err(|errno| failed(path.display(), errno))
}

/// Returns the number of a group given by name or number.
///
/// # Errors
/// `BAD_ARGUMENT` naming the unknown group.
pub fn group_id(name: &str) -> Result<u32> {
    let unknown = |why: &str| {
        let text = format!(
            "[cluster] group = \"{name}\": {why}: write one that `getent group` lists, or its number"
        );
        Err(Error::bad_argument(text))
    };
    if let Ok(number) = name.parse() {
        // The last number means that no group is given.
        return if number == u32::MAX { unknown("no group has that number") } else { Ok(number) };
    }
    let Ok(text) = CString::new(name) else { return unknown("no name") };
    let mut room = vec![0; GROUP_BYTES_MAX];
    let mut found = MaybeUninit::uninit();
    let mut group = null_mut();
    // SAFETY: a terminated name, room of that length, and places for the answer, all of which outlive the call.
    let code = unsafe {
        let (room, bytes) = (room.as_mut_ptr(), room.len());
        libc::getgrnam_r(text.as_ptr(), found.as_mut_ptr(), room, bytes, &raw mut group)
    };
    match code {
        // SAFETY: the pointer is not null, and the answer is still alive.
        0 if !group.is_null() => Ok(unsafe { (*group).gr_gid }),
        0 => unknown("this machine has no group of that name"),
        code => unknown(&std::io::Error::from_raw_os_error(code).to_string()),
    }
}

/// Byte whose lock admits one maker of a device's region at a time. The first bytes are the members', then one for each host.
pub(crate) const MAKER_BYTE: u64 = MEMBERS_MAX + HOSTS_MAX;

/// Byte whose lock admits one process of a host to its joining of the lock between hosts.
pub(crate) fn host_byte(number: u64) -> u64 {
    MEMBERS_MAX + number
}

/// Byte whose lock admits one process of a host to the lock of a dead owner, or to a member's place.
pub(crate) fn takeover_byte(host: Option<u64>) -> u64 {
    MAKER_BYTE + 1 + host.unwrap_or(HOSTS_MAX)
}

/// Locks bytes of the file; false if another open file has one of them.
pub(crate) fn try_lock_bytes(fd: &OwnedFd, from: u64, bytes: u64) -> std::io::Result<bool> {
    match fcntl(fd, libc::F_OFD_SETLK, libc::F_WRLCK, from, bytes) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Waits for the lock on a byte, within a limit, because any process that may open the file can keep it.
pub(crate) fn lock_byte(path: impl std::fmt::Display, fd: &OwnedFd, byte: u64) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(SHM_OPEN_LOCK_MS);
    while !try_lock_bytes(fd, byte, 1).map_err(|error| failed(&path, error))? {
        if Instant::now() >= until {
            return Err(failed(path, "another process opens it and does not go on: end it"));
        }
        sleep(Duration::from_millis(SHM_LOCK_LOOK_MS));
    }
    Ok(())
}

/// Releases locks on bytes, which cannot fail for bytes that exist.
pub(crate) fn unlock_bytes(fd: &OwnedFd, from: u64, bytes: u64) {
    let _ = fcntl(fd, libc::F_OFD_SETLK, libc::F_UNLCK, from, bytes);
}

/// Whether another open file has the lock on a byte.
pub(crate) fn is_locked(fd: &OwnedFd, byte: u64) -> std::io::Result<bool> {
    let lock = fcntl(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte, 1)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn fcntl(
    fd: &OwnedFd,
    command: i32,
    kind: i32,
    from: u64,
    bytes: u64,
) -> std::io::Result<libc::flock> {
    // SAFETY: plain numbers; all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or_default();
    lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = i64::try_from(from).unwrap_or_default();
    lock.l_len = i64::try_from(bytes).unwrap_or_default();
    // SAFETY: the descriptor is open, and the lock is our own.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(lock),
    }
}
