//! Owns the archive in a directory, for example on NFS: objects are files, written under another name first.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{Archive, Fill};
use crate::error::Result;
use crate::folder::Folder;
use crate::limits::ARCHIVE_PART_BYTES;
use crate::memory::pages::Pages;

/// Suffix of an object's name before it is complete.
const FRESH: &str = ".new";

pub(super) struct ArchiveFolder {
    /// As given: a link in it may lead elsewhere later.
    path: PathBuf,
    folder: Folder,
}

impl ArchiveFolder {
    pub(super) fn open(path: &str) -> Result<Self> {
        let path = PathBuf::from(path);
        let folder = Folder::open(&path)?;
        Ok(Self { path, folder })
    }
}

impl Archive for ArchiveFolder {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = self.folder.list()?;
        files.retain(|(name, _)| !name.ends_with(FRESH));
        Ok(files)
    }

    fn bytes(&self, name: &str) -> io::Result<u64> {
        Ok(self.folder.file(name, OFlags::RDONLY)?.metadata()?.len())
    }

    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.folder.file(name, OFlags::RDONLY)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()> {
        let fresh = format!("{name}{FRESH}");
        self.folder.remove(&fresh)?;
        let written = self.folder.create(&fresh)?;
        let mut part = part_for(bytes)?;
        let mut offset = 0;
        while offset < bytes {
            let length = part.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
            fill(&mut part[..length], offset)?;
            written.write_all_at(&part[..length], offset)?;
            offset += length as u64;
        }
        written.sync_all()?;
        self.folder.rename(&fresh, name)?;
        self.folder.sync()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        // A torn upload left its bytes under the other name.
        self.folder.remove(&format!("{name}{FRESH}"))?;
        self.folder.remove(name)
    }

    fn clear(&self) -> io::Result<usize> {
        let mut left = self.folder.list()?;
        left.retain(|(name, _)| name.ends_with(FRESH));
        for (name, _) in &left {
            self.folder.remove(name)?;
        }
        Ok(left.len())
    }

    fn anew(&self) -> io::Result<Option<Arc<dyn Archive>>> {
        // A missing folder is not made: objects in it would lie hidden below a disk that is mounted there later.
        let folder = Folder::open_existing(&self.path);
        let folder = folder.map_err(|error| io::Error::other(error.text))?;
        Ok(Some(Arc::new(Self { path: self.path.clone(), folder })))
    }
}

/// Page-aligned memory for the parts of an object, because disks are read past the page cache.
pub(super) fn part_for(bytes: u64) -> io::Result<Pages> {
    let bytes = bytes.clamp(1, ARCHIVE_PART_BYTES);
    let pages = usize::try_from(bytes).ok().and_then(Pages::new);
    pages.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
