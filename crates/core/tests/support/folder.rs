//! Owns directories that tests write to, removed at their end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static LAST: AtomicU32 = AtomicU32::new(0);

/// An empty directory of its own.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one; on a memory file system when `TMPDIR` says so.
    pub fn new() -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("tierkv-disk-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its segments, the oldest first.
    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("it is there");
        let mut found: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
        found.sort();
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
