//! Owns an archive of which chosen requests fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tierkv_core::archive::{self, Archive, Fill};

use crate::folder::Folder;

/// An archive in a directory of which any request may fail.
pub struct Shaky {
    inner: Arc<dyn Archive>,
    is_down: AtomicBool,
    /// Uploads of segments break in their middle.
    pub is_torn: AtomicBool,
}

impl Shaky {
    /// In that directory.
    pub fn at(folder: &Folder) -> Arc<Self> {
        let inner = archive::open(&format!("file://{}", folder.path().display())).unwrap();
        let (is_down, is_torn) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, is_down, is_torn })
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
        self.inner.remove(name)
    }
}
