//! Owns the border to an archive: objects by name, put there whole, read by ranges; and which kind a URL means.

mod folder;
mod s3;

use std::io;
use std::sync::Arc;

use crate::error::{Code, Error, Result};

/// Fills a buffer with what an object holds from an offset on.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> io::Result<()>;

/// A flat place of objects, which may be slow, far away, or gone for a while.
pub trait Archive: Send + Sync {
    /// Names and lengths of its objects.
    ///
    /// # Errors
    /// What the archive answers; so everywhere here.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// The length of an object.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn bytes(&self, name: &str) -> io::Result<u64>;

    /// Reads a range: `buffer` is full afterwards, or the object ends.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Puts an object of `bytes` bytes there, over what was there: whole and durable when this succeeds, else not at all.
    ///
    /// # Errors
    /// That of `fill`, too.
    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()>;

    /// Removes an object; it is no error when there is none.
    ///
    /// # Errors
    /// What the archive answers.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// The archive at a URL.
///
/// # Errors
/// `DISK_FAILED` naming URL, reason and fix.
pub fn open(url: &str) -> Result<Arc<dyn Archive>> {
    let refused = |reason: &str| {
        let fix = "write \"s3://bucket/prefix\" or \"file:///directory\"";
        Error::new(Code::DiskFailed, format!("[vault] archive = \"{url}\": {reason}; {fix}"))
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
    Ok(Arc::new(s3::Bucket::open(bucket, prefix)?))
}
