//! Owns the memory object of an arena: a sealed memfd or a locked file, its mapping, and the sweep of files left behind.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Code, Error, Result};
use crate::limits::SLOT_ALIGN_BYTES;

const FILE_PREFIX: &str = "tierkv-arena-";
/// Names tried before giving up; a name fails only if a sweep has just removed its file.
const NAME_TRIES_MAX: u32 = 16;

fn failed(what: impl std::fmt::Display, errno: rustix::io::Errno) -> Error {
    Error::new(Code::ArenaFailed, format!("{what}: {errno}"))
}

/// The object behind an arena's mapping.
#[derive(Debug)]
pub struct Backing {
    fd: OwnedFd,
    path: String,
    file: Option<PathBuf>,
    unlinked: AtomicBool,
}

impl Backing {
    /// Creates an object of `bytes` bytes, none of them allocated yet.
    pub fn create(dir: Option<&Path>, label: u32, bytes: usize) -> Result<Self> {
        match dir {
            Some(dir) => Self::in_dir(dir, label, bytes),
            None => Self::anonymous(label, bytes),
        }
    }

    #[cfg(target_os = "linux")]
    fn anonymous(label: u32, bytes: usize) -> Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags};
        use std::os::fd::AsRawFd;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(format!("{FILE_PREFIX}{label}"), flags)
            .map_err(|errno| failed("memfd_create for the arena", errno))?;
        size(&fd, bytes)?;
        // A seal against shrinking, because a reader of a shrunk mapping would get a SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| failed("sealing the arena", errno))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        Ok(Self { fd, path, file: None, unlinked: AtomicBool::new(false) })
    }

    #[cfg(not(target_os = "linux"))]
    fn anonymous(label: u32, bytes: usize) -> Result<Self> {
        Self::in_dir(&std::env::temp_dir(), label, bytes)
    }

    fn in_dir(dir: &Path, label: u32, bytes: usize) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..NAME_TRIES_MAX {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{FILE_PREFIX}{}-{number}-{label}", std::process::id());
            let file = dir.join(name);
            let path = file.to_str().map(str::to_owned).ok_or_else(|| {
                Error::bad_argument(format!("arena dir {} is not valid UTF-8", dir.display()))
            })?;
            if let Some(fd) = create_locked(&file)? {
                let made = Self { fd, path, file: Some(file), unlinked: AtomicBool::new(false) };
                return size(&made.fd, bytes).map(|()| made);
            }
        }
        let text = format!("no free arena file name in {} after 16 tries", dir.display());
        Err(Error::new(Code::ArenaFailed, text))
    }

    /// Path at which this machine's tools find the object; no process opens a path that another one sent.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Allocates a range, so that a later access to it cannot fail. The range becomes zeros.
    pub fn allocate(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        #[cfg(target_os = "linux")]
        match self.fallocate(offset, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => (),
            outcome => return outcome,
        }
        self.write_zeros(offset, bytes)
    }

    #[cfg(target_os = "linux")]
    fn fallocate(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let plain = rustix::fs::FallocateFlags::empty();
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.fd, plain, offset, bytes))
    }

    /// Allocates by writing, where the file system or the operating system cannot otherwise.
    fn write_zeros(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let zeros = [0; SLOT_ALIGN_BYTES];
        let mut at = offset;
        while at < offset + bytes {
            let piece = zeros.len().min(usize::try_from(offset + bytes - at).unwrap_or(usize::MAX));
            let written =
                rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, &zeros[..piece], at))?;
            at += written as u64;
        }
        Ok(())
    }

    /// Removes the file, if any, once.
    pub fn unlink(&self) {
        if let Some(file) = &self.file
            && !self.unlinked.swap(true, Ordering::Relaxed)
        {
            // A file already gone is fine; on any other error the next sweep removes it.
            let _ = rustix::fs::unlink(file);
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.unlink();
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn size(fd: &OwnedFd, bytes: usize) -> Result<()> {
    rustix::fs::ftruncate(fd, bytes as u64)
        .map_err(|errno| failed(format_args!("sizing the arena to {bytes} bytes"), errno))
}

/// Creates a file locked by this process; `None` when a sweep took it in between.
fn create_locked(file: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(file, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::EXIST) => return Ok(None),
        Err(errno) => {
            return Err(failed(format_args!("creating the arena file {}", file.display()), errno));
        }
    };
    let locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
    let linked = rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_nlink > 0);
    Ok((locked && linked).then_some(fd))
}

/// Removes the arena files in `dir` that no process has locked; returns how many.
///
/// # Errors
/// `ARENA_FAILED` when the folder cannot be read. A missing folder has no files.
pub fn sweep(dir: &Path) -> Result<u32> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => {
            let text = format!("reading the arena dir {}: {error}", dir.display());
            return Err(Error::new(Code::ArenaFailed, text));
        }
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FILE_PREFIX));
        if is_ours && remove_if_unlocked(&entry.path()) {
            removed += 1;
        }
    }
    Ok(removed)
}

fn remove_if_unlocked(file: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(file, flags, Mode::empty()) else {
        return false;
    };
    // The lock is held while unlinking, so that a creator between open and lock notices the removal.
    rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok()
        && rustix::fs::unlink(file).is_ok()
}

/// A shared mapping of a whole backing.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread and lives until drop; its bytes are accessed only through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above; the slot table decides which thread may write which slot.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all `bytes` of `backing`.
    pub fn new(backing: &Backing, bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range; `bytes` is the object's size.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, backing, 0)
        }
        .map_err(|errno| failed(format_args!("mapping the arena's {bytes} bytes"), errno))?;
        Ok(Self { start, bytes })
    }

    /// Length of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The byte at `offset`, which must lie inside.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes, "offset {offset} lies inside the arena");
        self.start.cast::<u8>().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mmap; every user keeps the arena alive.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_can_be_allocated_by_writing_too() {
        let backing = Backing::create(None, 1, 4 * 8192).unwrap();
        let mapping = Mapping::new(&backing, 4 * 8192).unwrap();
        for edge in [8191, 2 * 8192] {
            // SAFETY: the offset lies in the mapping, which only this test uses.
            unsafe { mapping.at(edge).write(7) };
        }
        backing.write_zeros(8192, 8192).unwrap();
        let blocks = rustix::fs::fstat(&backing).unwrap().st_blocks;
        assert!(blocks * 512 >= 4 * 4096, "both slots' pages and the two edges have memory");
        for edge in [8191, 2 * 8192] {
            // SAFETY: as above.
            let byte = unsafe { mapping.at(edge).read() };
            assert_eq!(byte, 7, "nothing beyond the range is written");
        }
    }
}
