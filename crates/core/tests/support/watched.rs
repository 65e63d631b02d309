//! Owns a disk that is watched: how many reads run at once, how much the writer holds, and reads that are slow or fail.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tierkv_core::disk::storage::{Access, Directory, DiskFile, Storage};

/// Name of the thread that writes.
const WRITER: &str = "tierkv-disk";

/// What was seen, and what goes wrong.
#[derive(Default)]
pub struct Watch {
    /// Reads of segments fail.
    pub is_broken: AtomicBool,
    /// Time of each read of one page, in ms.
    pub slow_ms: AtomicU64,
    /// Segments opened for reading.
    pub opened: AtomicU64,
    reading: AtomicU64,
    /// Most reads at the same time.
    pub reading_most: AtomicU64,
    /// Bytes that the writer has read and not written yet; what it writes of others counts, too.
    held: AtomicI64,
    /// Most of them.
    pub held_most: AtomicI64,
}

pub struct WatchedDisk {
    inner: Directory,
    watch: Arc<Watch>,
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    watch: Arc<Watch>,
    is_segment: bool,
}

impl WatchedDisk {
    pub fn open(path: &Path, watch: &Arc<Watch>) -> Arc<Self> {
        let inner = Directory::open(path).expect("a directory");
        Arc::new(Self { inner, watch: Arc::clone(watch) })
    }

    fn file(&self, inner: Arc<dyn DiskFile>, name: &str) -> Arc<dyn DiskFile> {
        let is_segment = Path::new(name).extension().is_some_and(|suffix| suffix == "seg");
        Arc::new(WatchedFile { inner, watch: Arc::clone(&self.watch), is_segment })
    }
}

impl Storage for WatchedDisk {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.inner.create(name)?, name))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.file(self.inner.open(name, access)?, name);
        if access == Access::Direct && Path::new(name).extension().is_some_and(|is| is == "seg") {
            self.watch.opened.fetch_add(1, Ordering::AcqRel);
        }
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

fn is_writer() -> bool {
    std::thread::current().name() == Some(WRITER)
}

impl DiskFile for WatchedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.inner.bytes()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.inner.allocate(bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.inner.truncate(bytes)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let watch = &*self.watch;
        if self.is_segment && watch.is_broken.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let now = watch.reading.fetch_add(1, Ordering::AcqRel) + 1;
        watch.reading_most.fetch_max(now, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(watch.slow_ms.load(Ordering::Acquire)));
        let read = self.inner.read(buffer, offset);
        watch.reading.fetch_sub(1, Ordering::AcqRel);
        if self.is_segment && is_writer() {
            let bytes = i64::try_from(*read.as_ref().unwrap_or(&0)).expect("small");
            let held = watch.held.fetch_add(bytes, Ordering::AcqRel) + bytes;
            watch.held_most.fetch_max(held, Ordering::AcqRel);
        }
        read
    }

    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let written = self.inner.write(parts, offset);
        if self.is_segment && is_writer() {
            let bytes = i64::try_from(*written.as_ref().unwrap_or(&0)).expect("small");
            self.watch.held.fetch_sub(bytes, Ordering::AcqRel);
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}
