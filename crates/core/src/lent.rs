//! Owns memory that a process lends to others for reading: the object, its descriptor for readers, and the mapping of a lent one.
//!
//! Nobody but its owner writes such memory. A reader copies a record once, and checks what it copied, because the owner may
//! reuse the place at any time.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// An object whose memory others may map for reading. Its size is sealed, so that no access of a reader can fail.
#[derive(Debug)]
pub struct Lendable {
    fd: OwnedFd,
}

#[cfg(target_os = "linux")]
impl Lendable {
    /// Creates an object of `bytes` bytes without memory; `None` where the system refuses.
    #[cfg(not(loom))]
    pub(crate) fn create(name: &str, bytes: usize) -> Option<Self> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).ok()?;
        rustix::fs::ftruncate(&fd, bytes as u64).ok()?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).ok()?;
        Some(Self { fd })
    }

    /// Maps all of it for the owner; the caller unmaps it.
    #[cfg(not(loom))]
    pub(crate) fn map(&self, bytes: usize) -> Option<NonNull<c_void>> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range, and the object has that size.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &self.fd, 0) };
        NonNull::new(start.ok()?)
    }

    /// Returns the memory of whole pages to the system; they then read as zeros. False where the system keeps it.
    pub(crate) fn empty(&self, offset: usize, bytes: usize) -> bool {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.fd, flags, offset as u64, bytes as u64).is_ok()
    }

    /// A descriptor that maps for reading only.
    ///
    /// # Errors
    /// Errors of the system, for one without `/proc`.
    pub fn for_readers(&self) -> io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// Elsewhere nothing is lent.
#[cfg(not(target_os = "linux"))]
impl Lendable {
    pub(crate) fn empty(&self, _: usize, _: usize) -> bool {
        false
    }

    /// # Errors
    /// Always.
    pub fn for_readers(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()?;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Where bytes lie in memory that can be lent.
#[derive(Debug, Clone, Copy)]
pub struct LentPlace<'a> {
    /// Object of the memory.
    pub lendable: &'a Lendable,
    /// Offset in it.
    pub offset: u64,
}

/// Memory lent by another process, mapped for reading until it is dropped, also when its owner has ended.
#[derive(Debug)]
pub struct Borrowed {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread and is only read.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Maps what a peer lends.
    ///
    /// # Errors
    /// `Unsupported` for an object whose size may change, and errors of the system.
    #[cfg(target_os = "linux")]
    pub fn map(fd: &OwnedFd) -> io::Result<Self> {
        use rustix::fs::SealFlags;
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let sealed = rustix::fs::fcntl_get_seals(fd)?;
        let bytes = usize::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if !sealed.contains(SealFlags::SHRINK) || bytes == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the kernel chooses an unused range; the object has that size for ever.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, fd, 0) }?;
        // Another process's memory has no place in a dump of ours.
        // SAFETY: the mapping is ours, and the advice changes no contents.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxDontDump) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { start, bytes })
    }

    /// # Errors
    /// Always, because nothing is lent here.
    #[cfg(not(target_os = "linux"))]
    pub fn map(_: &OwnedFd) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// `bytes` bytes at `place`, which their owner may write at any time: copy each once, and check the copy. `None` where the
    /// memory has no such part.
    #[must_use]
    pub fn part(&self, place: u64, bytes: u64) -> Option<&[u8]> {
        let (place, bytes) = (usize::try_from(place).ok()?, usize::try_from(bytes).ok()?);
        if place.checked_add(bytes)? > self.bytes {
            return None;
        }
        let start = self.start.cast::<u8>().as_ptr().wrapping_add(place);
        // SAFETY: the part lies within the mapping, which is readable and cannot shrink.
        Some(unsafe { std::slice::from_raw_parts(start, bytes) })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; no part outlives the borrow of `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const BYTES: usize = 8 * 4096;

    #[test]
    fn a_reader_sees_what_its_owner_writes_and_cannot_write() {
        let lendable = Lendable::create("tierkv-test", BYTES).unwrap();
        let start = lendable.map(BYTES).unwrap();
        let fd = lendable.for_readers().unwrap();
        let borrowed = Borrowed::map(&fd).unwrap();
        // SAFETY: the mapping is ours and so long.
        unsafe { start.cast::<u8>().as_ptr().wrapping_add(4096).write(7) };
        assert_eq!(borrowed.part(4096, 2), Some([7, 0].as_slice()));
        assert!(lendable.empty(4096, 4096));
        assert_eq!(borrowed.part(4096, 1), Some([0].as_slice()));
        let protection = rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: the kernel chooses an unused range.
        let written =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, protection, flags, &fd, 0) };
        assert_eq!(written, Err(rustix::io::Errno::ACCESS));
        assert_eq!(rustix::fs::ftruncate(&lendable.fd, 0), Err(rustix::io::Errno::PERM));
        for (place, bytes) in [(0, BYTES as u64 + 1), (BYTES as u64, 1), (u64::MAX, 2)] {
            assert!(borrowed.part(place, bytes).is_none());
        }
        // SAFETY: mapped with this length, and not used any more.
        unsafe { rustix::mm::munmap(start.as_ptr(), BYTES) }.unwrap();
        drop((lendable, fd));
        assert_eq!(borrowed.part(0, 1), Some([0].as_slice()), "its owner has gone");
    }

    #[test]
    fn an_object_that_may_shrink_is_not_mapped() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("tierkv-test", flags).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert_eq!(Borrowed::map(&fd).unwrap_err().kind(), io::ErrorKind::Unsupported);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Borrowed::map(&file.into()).is_err(), "not an object of memory at all");
    }
}
