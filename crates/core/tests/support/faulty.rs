//! Owns a disk on which chosen operations fail.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tierkv_core::disk::storage::{Access, Directory, DiskFile, Storage};

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every kind of operation: the device answers with an error.
    Eio,
    /// Creating, setting aside and writing: the disk is full.
    Enospc,
    /// Writing: half of it arrives, then the device fails.
    ShortWrite,
    /// Syncing.
    Sync,
    /// Reading: the device does not answer until it is released.
    Hang,
    /// Listing what is there: the same.
    HangAtStart,
    /// Creating the file of tombstones: the same.
    HangAtFlush,
}

/// What goes wrong, and when.
pub struct Faults {
    kind: Fault,
    /// Operations of that kind so far.
    count: AtomicU64,
    /// The first one that fails, and how many follow it.
    first: u64,
    length: u64,
    is_released: Mutex<bool>,
    released: Condvar,
    /// Operations that hang now.
    hung: AtomicU64,
}

impl Faults {
    /// From the `first` operation on (counted from 1), `length` of them fail.
    pub fn new(kind: Fault, first: u64, length: u64) -> Arc<Self> {
        let hangs = matches!(kind, Fault::Hang | Fault::HangAtStart | Fault::HangAtFlush);
        let (is_released, released) = (Mutex::new(!hangs), Condvar::new());
        let [count, hung] = [(); 2].map(|()| AtomicU64::new(0));
        Arc::new(Self { kind, count, first, length, is_released, released, hung })
    }

    /// A device that hangs answers again.
    pub fn release(&self) {
        *self.is_released.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.released.notify_all();
    }

    /// It does not answer any more.
    pub fn hold(&self) {
        *self.is_released.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn hang(&self) {
        let mut is_released = self.is_released.lock().unwrap_or_else(PoisonError::into_inner);
        self.hung.fetch_add(1, Ordering::AcqRel);
        while !*is_released {
            is_released = self.released.wait(is_released).unwrap_or_else(PoisonError::into_inner);
        }
        self.hung.fetch_sub(1, Ordering::AcqRel);
    }

    /// Operations that hang now.
    pub fn hung(&self) -> u64 {
        self.hung.load(Ordering::Acquire)
    }

    /// Operations of the kind so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn strikes(&self) -> bool {
        let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        number >= self.first && number - self.first < self.length
    }

    fn any(&self) -> io::Result<()> {
        if self.kind == Fault::Eio && self.strikes() {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    fn grow(&self) -> io::Result<()> {
        if self.kind == Fault::Enospc && self.strikes() {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.any()
    }

    fn sync(&self) -> io::Result<()> {
        if self.kind == Fault::Sync && self.strikes() {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.any()
    }
}

/// A directory with faults.
pub struct FaultyDisk {
    inner: Directory,
    faults: Arc<Faults>,
}

struct FaultyFile {
    inner: Arc<dyn DiskFile>,
    faults: Arc<Faults>,
}

impl FaultyDisk {
    /// The directory at `path`.
    pub fn open(path: &std::path::Path, faults: &Arc<Faults>) -> Arc<Self> {
        let inner = Directory::open(path).expect("a directory");
        Arc::new(Self { inner, faults: Arc::clone(faults) })
    }

    fn file(&self, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FaultyFile { inner, faults: Arc::clone(&self.faults) })
    }
}

impl Storage for FaultyDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        if self.faults.kind == Fault::HangAtStart {
            self.faults.hang();
        }
        self.faults.any()?;
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if self.faults.kind == Fault::HangAtFlush && name == "tombstones" {
            self.faults.strikes();
            self.faults.hang();
        }
        self.faults.grow()?;
        Ok(self.file(self.inner.create(name)?))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.any()?;
        Ok(self.file(self.inner.open(name, access)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults.any()?;
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.any()?;
        self.inner.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.sync()?;
        self.inner.sync()
    }
}

impl DiskFile for FaultyFile {
    fn bytes(&self) -> io::Result<u64> {
        self.faults.any()?;
        self.inner.bytes()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.faults.grow()?;
        self.inner.allocate(bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.faults.any()?;
        self.inner.truncate(bytes)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.faults.kind != Fault::HangAtFlush {
            self.faults.hang();
        }
        self.faults.any()?;
        self.inner.read(buffer, offset)
    }

    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.faults.grow()?;
        if self.faults.kind == Fault::ShortWrite && self.faults.strikes() {
            // Half of it reaches the medium, and the caller hears of none.
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            self.inner.write(&[IoSlice::new(&bytes[..bytes.len() / 2])], offset)?;
            return Ok(0);
        }
        self.inner.write(parts, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.sync()?;
        self.inner.sync()
    }
}
