//! Owns an archive of which chosen requests fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use tierkv_core::archive::{self, Archive, Fill};

use crate::folder::Folder;

/// An archive in a directory of which any request may fail.
pub struct Shaky {
    inner: Arc<dyn Archive>,
    is_down: AtomicBool,
    /// Uploads of segments break in their middle.
    pub is_torn: AtomicBool,
    /// Removals are forbidden, as a bucket's policy may have it.
    pub keeps_all: AtomicBool,
    /// Milliseconds that each read takes.
    pub slow_ms: AtomicU64,
    reading: AtomicU64,
    /// The most reads under way at once.
    pub reading_most: AtomicU64,
}

impl Shaky {
    /// In that directory.
    pub fn at(folder: &Folder) -> Arc<Self> {
        let inner = archive::open(&format!("file://{}", folder.path().display())).unwrap();
        Arc::new(Self {
            inner,
            is_down: false.into(),
            is_torn: false.into(),
            keeps_all: false.into(),
            slow_ms: 0.into(),
            reading: 0.into(),
            reading_most: 0.into(),
        })
    }

    /// From now on every request fails, or none.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Release);
    }

    fn answers(&self) -> io::Result<()> {
        let is_down = self.is_down.load(Ordering::Acquire);
        if is_down { Err(io::Error::other("503 SlowDown")) } else { Ok(()) }
    }
}

impl Archive for Shaky {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.answers()?;
        self.inner.list()
    }

    fn bytes(&self, name: &str) -> io::Result<u64> {
        self.answers()?;
        self.inner.bytes(name)
    }

    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.answers()?;
        let reading = self.reading.fetch_add(1, Ordering::AcqRel) + 1;
        self.reading_most.fetch_max(reading, Ordering::AcqRel);
        sleep(Duration::from_millis(self.slow_ms.load(Ordering::Acquire)));
        self.reading.fetch_sub(1, Ordering::AcqRel);
        self.inner.read(name, buffer, offset)
    }

    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()> {
        self.answers()?;
        let is_segment = name.split('.').next_back() == Some("seg");
        let breaks = is_segment && self.is_torn.load(Ordering::Acquire);
        self.inner.put(name, bytes, &mut |buffer, offset| {
            fill(buffer, offset)?;
            if breaks { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.answers()?;
        if self.keeps_all.load(Ordering::Acquire) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.inner.remove(name)
    }
}
