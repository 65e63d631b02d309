//! Owns the interface to an archive: objects by name, stored whole, read by range; and the kinds of URLs.

mod credentials;
mod folder;
mod objects;
mod profile;
mod s3;
#[cfg(test)]
mod stand_in;

use std::io;
use std::sync::Arc;

pub use self::credentials::Vars;
pub use self::s3::{Bucket, roots_file};
use crate::error::{Code, Error, Result};

/// Fills a buffer with the bytes of an object from an offset on.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> io::Result<()>;

/// A flat store of objects, which may be slow, remote, or unavailable for a while.
pub trait Archive: Send + Sync {
    /// Names and lengths of the objects.
    ///
    /// # Errors
    /// Errors of the archive; likewise for all methods.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// The length of an object.
    ///
    /// # Errors
    /// `NotFound` when there is no such object.
    fn bytes(&self, name: &str) -> io::Result<u64>;

    /// Reads a range until `buffer` is full or the object ends; returns the bytes read.
    ///
    /// # Errors
    /// `NotFound` when there is no such object.
    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Stores an object of `bytes` bytes, replacing an older one: whole and durable on success, otherwise not at all.
    ///
    /// # Errors
    /// Errors of the archive and of `fill`.
    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()>;

    /// Removes an object; succeeds when there is none.
    ///
    /// # Errors
    /// Errors of the archive.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes what uploads of an ended process left; returns how many there were. Runs while nothing is uploaded.
    ///
    /// # Errors
    /// `PermissionDenied` or `Unsupported` where trying again does not help.
    fn clear(&self) -> io::Result<usize> {
        Ok(0)
    }

    /// Opens its place anew; `None` where it keeps nothing open. A folder stays the one that was opened, although a disk has
    /// been mounted over it since.
    ///
    /// # Errors
    /// Errors of the archive.
    fn anew(&self) -> io::Result<Option<Arc<dyn Archive>>> {
        Ok(None)
    }
}

/// Opens the archive at a URL.
///
/// # Errors
/// `STORE_FAILED` naming URL, reason and fix.
pub fn open(url: &str) -> Result<Arc<dyn Archive>> {
    let refused = |reason: &str| {
        let fix = "write \"s3://bucket/prefix\" or \"file:///directory\"";
        Error::new(Code::StoreFailed, format!("[vault] archive = \"{url}\": {reason}; {fix}"))
    };
    if let Some(path) = url.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err(refused("the directory is not absolute"));
        }
        return Ok(Arc::new(folder::ArchiveFolder::open(path)?));
    }
    let Some(place) = url.strip_prefix("s3://") else { return Err(refused("unknown kind")) };
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(refused("there is no bucket"));
    }
    Ok(Arc::new(Bucket::open("[vault] archive", bucket, prefix)?))
}
