//! Owns the bindings of an archive's options and counters.

use std::time::Duration;

use napi_derive::napi;
use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, ArchiveStats};
use tierkv_core::error::Result;

use crate::ffi::{count, number};

/// Options of an archive of full segments.
#[napi(object)]
pub struct StoreArchiveOptions {
    /// `s3://bucket/prefix` or `file:///directory`.
    pub url: String,
    pub max_bytes: f64,
    /// Longest wait of a record until its segment may be uploaded.
    pub after_ms: f64,
}

/// Counters and gauges of an archive.
#[napi(object)]
pub struct StoreArchiveStats {
    pub max_bytes: f64,
    pub used_bytes: f64,
    pub segments: f64,
    pub remote_segments: f64,
    pub pending: f64,
    pub pending_bytes: f64,
    pub sent_bytes: f64,
    pub read: f64,
    pub read_bytes: f64,
    pub removed: f64,
    pub failures: f64,
    pub is_failing: bool,
    pub trouble: String,
}

impl StoreArchiveOptions {
    pub fn read(self) -> Result<ArchiveOptions> {
        Ok(ArchiveOptions {
            archive: archive::open(&self.url)?,
            url: self.url,
            max_bytes: count("maxBytes", self.max_bytes)?,
            after: Duration::from_millis(count("afterMs", self.after_ms)?),
        })
    }
}

impl From<ArchiveStats> for StoreArchiveStats {
    fn from(stats: ArchiveStats) -> Self {
        Self {
            max_bytes: number(stats.max_bytes),
            used_bytes: number(stats.used_bytes),
            segments: number(stats.segments),
            remote_segments: number(stats.remote_segments),
            pending: number(stats.pending),
            pending_bytes: number(stats.pending_bytes),
            sent_bytes: number(stats.sent_bytes),
            read: number(stats.read),
            read_bytes: number(stats.read_bytes),
            removed: number(stats.removed),
            failures: number(stats.failures),
            is_failing: stats.is_failing,
            trouble: stats.trouble,
        }
    }
}
