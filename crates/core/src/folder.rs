//! Owns a directory that belongs to this user alone: checked when opened, its files accessed through its descriptor.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Code, Error, Result};

/// Mode bits that let other users write.
const FOREIGN_WRITE: u32 = 0o022;
/// Root is trusted, because it can do all of this anyway.
const ROOT: u32 = 0;
/// Suffix of a file's name while it is written, before it replaces the old one.
const FRESH: &str = ".new";

/// A directory, kept by descriptor, so that later changes of its path do not matter.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

impl Folder {
    /// Opens the directory at `path`; creates it with mode 0700 when it does not exist.
    ///
    /// # Errors
    /// `DISK_FAILED` naming path, owner or mode, and the fix: when another user owns it, others may write in it, or the
    /// path ends in another user's link.
    pub fn open(path: &Path) -> Result<Self> {
        let path = place_of(path)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| refused(&path, &error.to_string(), FIX_ANOTHER))?;
        Self::at(path)
    }

    /// Opens the directory at `path`, which must exist.
    ///
    /// # Errors
    /// As `open`, and where there is none.
    pub fn open_existing(path: &Path) -> Result<Self> {
        Self::at(place_of(path)?)
    }

    fn at(path: PathBuf) -> Result<Self> {
        let failed = |errno: Errno| refused(&path, &errno.to_string(), FIX_ANOTHER);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
        let found = rustix::fs::fstat(&fd).map_err(failed)?;
        if found.st_uid != own_uid() {
            let text = format!("it belongs to user {}, this is user {}", found.st_uid, own_uid());
            return Err(refused(&path, &text, FIX_ANOTHER));
        }
        if mode_of(&found) & FOREIGN_WRITE != 0 {
            let text = format!("it has mode {:o}, so others may write there", mode_of(&found));
            return Err(refused(&path, &text, &format!("run `chmod 700 {}`", path.display())));
        }
        Ok(Self { path, fd })
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks every entry whose name is one of ours.
    ///
    /// # Errors
    /// `DISK_FAILED` naming the first entry that is not a file of this user alone, and the fix.
    pub fn check(&self, is_ours: impl Fn(&str) -> bool) -> Result<()> {
        let unread = |error: io::Error| refused(&self.path, &error.to_string(), FIX_ANOTHER);
        for (name, found) in self.entries().map_err(unread)? {
            if is_ours(&name)
                && let Some(reason) = foreign(&found)
            {
                return Err(refused(&self.path.join(name), &reason, FIX_REMOVE));
            }
        }
        Ok(())
    }

    /// Names and lengths of its files, without links, pipes and the like.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let is_file = |found: &Stat| FileType::from_raw_mode(found.st_mode).is_file();
        let files = self.entries()?.into_iter().filter(|(_, found)| is_file(found));
        Ok(files.map(|(name, found)| (name, found.st_size.cast_unsigned())).collect())
    }

    /// Opens a file of this user alone; never waits for the other end of a pipe.
    ///
    /// # Errors
    /// Errors of the file system; `PermissionDenied` naming path, reason and fix for a file that is not ours.
    pub fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let deny = |reason: &str| {
            let text = refused(&self.path.join(name), reason, FIX_REMOVE).text;
            io::Error::new(io::ErrorKind::PermissionDenied, text)
        };
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            // A pipe without a reader, or a socket.
            Err(Errno::NXIO) => return Err(deny("it is no regular file")),
            Err(Errno::LOOP) => return Err(deny("it is a link")),
            opened => opened?,
        };
        let found = rustix::fs::fstat(&fd)?;
        match foreign(&found) {
            Some(reason) => Err(deny(&reason)),
            None => Ok(File::from(fd)),
        }
    }

    /// Creates a file that must not exist yet, for this user alone.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(&self, name: &str) -> io::Result<File> {
        self.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Removes a file or a link, never a link's target; succeeds when there is none.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Renames a file over another.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Makes created, renamed and removed names durable.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Reads a small file; `None` when there is none.
    ///
    /// # Errors
    /// As `file`; `FileTooLarge` above `most` bytes.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.file(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            let text = format!("{name} is longer than {most} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(Some(bytes))
    }

    /// Replaces a small file atomically; durable once this returns `Ok`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let fresh = format!("{name}{FRESH}");
        self.remove(&fresh)?;
        let mut file = self.create(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        self.rename(&fresh, name)?;
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// All entries but directories.
    fn entries(&self) -> io::Result<Vec<(String, Stat)>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let name: CString = entry?.file_name().to_owned();
            let Ok(text) = name.to_str() else { continue };
            match rustix::fs::statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {}
                Ok(stat) => found.push((text.to_owned(), stat)),
                // The entry was removed in between.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(found)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const FIX_ANOTHER: &str = "name a directory of this user's that others may not write";
const FIX_REMOVE: &str = "move it out of this directory";

/// Reason why a file does not belong to this user alone; `None` if it does.
#[must_use]
pub fn foreign(found: &Stat) -> Option<String> {
    if !FileType::from_raw_mode(found.st_mode).is_file() {
        return Some("it is no regular file".to_owned());
    }
    if found.st_uid != own_uid() {
        return Some(format!("it belongs to user {}, this is user {}", found.st_uid, own_uid()));
    }
    if mode_of(found) & FOREIGN_WRITE != 0 {
        return Some(format!("it has mode {:o}, so others may write it", mode_of(found)));
    }
    (found.st_nlink > 1).then(|| "it has another name elsewhere (a hard link)".to_owned())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg_attr(not(target_os = "macos"), expect(clippy::useless_conversion, reason = "16 bits there"))]
fn mode_of(found: &Stat) -> u32 {
    u32::from(found.st_mode) & 0o7777
}

/// The directory that a path names, without a trailing slash, which would follow a link.
fn place_of(path: &Path) -> Result<PathBuf> {
    let path: PathBuf = path.components().collect();
    followed(&path)
}

/// Follows a link at the path's end if root or we own it, because no other user can redirect it.
fn followed(path: &Path) -> Result<PathBuf> {
    let Ok(found) = rustix::fs::lstat(path) else { return Ok(path.to_owned()) };
    if !FileType::from_raw_mode(found.st_mode).is_symlink() {
        return Ok(path.to_owned());
    }
    if found.st_uid != own_uid() && found.st_uid != ROOT {
        let text = format!("it is a link of user {}", found.st_uid);
        return Err(refused(path, &text, FIX_ANOTHER));
    }
    path.canonicalize().map_err(|error| refused(path, &error.to_string(), FIX_ANOTHER))
}

fn refused(path: &Path, reason: &str, fix: &str) -> Error {
    Error::new(Code::DiskFailed, format!("{}: {reason}; {fix}", path.display()))
}
