//! Owns a region's file apart from its memory: who may have it, and locks on its bytes, which the kernel gives back when a process ends.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;

use rustix::fs::{FileType, Gid, Mode};
use tierkv_core::error::{Code, Error, Result};

use crate::dax::{Described, bytes_of};
use crate::layout::{LOCK_AT, LOCK_BYTES};

/// A group's entry with all its members' names; larger ones are written by number.
const GROUP_BYTES_MAX: usize = 1 << 20;

pub(crate) fn failed(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Error {
    Error::new(Code::ArenaFailed, format!("{what}: {error}"))
}

/// What a group's file has: its users read and write it, others nothing.
const OF_A_GROUP: u32 = 0o660;
/// A folder in which anybody makes files of its group.
const GIVES_TO_STRANGERS: u32 = 0o2002;

/// Memory by its name.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub bytes: u64,
    /// Nobody makes or removes it.
    pub is_device: bool,
}

/// What it is, if it can be a region, and is of this user alone, or of that group's users.
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

/// Gives a file to a group's users, too.
pub(crate) fn give_to(path: &Path, fd: &OwnedFd, group: u32) -> Result<()> {
    check_folder(path)?;
    rustix::fs::fchown(fd, None, Some(Gid::from_raw(group))).map_err(|errno| {
        let text =
            format!("[cluster] group is {group}: {errno}: make this user one of the group's");
        failed(path.display(), text)
    })?;
    // Whatever the umask says.
    rustix::fs::fchmod(fd, Mode::from_raw_mode(OF_A_GROUP))
        .map_err(|errno| failed(path.display(), errno))
}

/// The number of a group that is named, or numbered.
///
/// # Errors
/// `BAD_ARGUMENT` naming what this machine does not know.
pub fn group_id(name: &str) -> Result<u32> {
    let unknown = |why: &str| {
        let text = format!(
            "[cluster] group = \"{name}\": {why}: write one that `getent group` lists, or its number"
        );
        Err(Error::bad_argument(text))
    };
    if let Ok(number) = name.parse() {
        // The last one means that none is given.
        return if number == u32::MAX { unknown("no group has that number") } else { Ok(number) };
    }
    let Ok(text) = CString::new(name) else { return unknown("no name") };
    let mut room = vec![0; GROUP_BYTES_MAX];
    let mut found = MaybeUninit::uninit();
    let mut group = null_mut();
    // SAFETY: a name that ends, room of that length, and places for the answer, all of which outlive the call.
    let code = unsafe {
        let (room, bytes) = (room.as_mut_ptr(), room.len());
        libc::getgrnam_r(text.as_ptr(), found.as_mut_ptr(), room, bytes, &raw mut group)
    };
    match code {
        // SAFETY: the answer is there, as it was found.
        0 if !group.is_null() => Ok(unsafe { (*group).gr_gid }),
        0 => unknown("this machine has no group of that name"),
        code => unknown(&std::io::Error::from_raw_os_error(code).to_string()),
    }
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
