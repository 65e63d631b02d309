//! Owns the options of the durable tier, and its counters and gauges.

use std::time::Duration;

use super::archived::ArchiveStats;
use crate::error::{Error, Result};
use crate::limits::{
    DISK_BYTES_MIN, DISK_FULL_PATIENCE_MS, DISK_QUEUE_BYTES_MAX, DISK_RETRY_MS, DISK_SEGMENT_BYTES,
    DISK_SEGMENTS_MIN,
};
use crate::memory::pages::PAGE;
use crate::record::Hash;

/// Point in time at which a record counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When its segment is full and sealed.
    None,
    /// A few ms after it was accepted, with one sync for many records.
    Group,
    /// Before it is answered, with status `durable`.
    Sync,
}

/// Options of the durable tier.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// Budget in bytes on disk, all files together.
    pub max_bytes: u64,
    /// Bytes of one segment; a larger record gets one of its own.
    pub segment_bytes: u64,
    /// Point in time at which a record counts as durable.
    pub durability: Durability,
    /// Lifetime of a record after it was written.
    pub ttl: Option<Duration>,
    /// Most bytes of queued records.
    pub queue_bytes: u64,
    /// Pause before a failed disk is tried again.
    pub retry: Duration,
    /// Time for which a disk may be full of other programs' files before our oldest segments are removed.
    pub full_patience: Duration,
}

impl DiskOptions {
    /// Options for `max_bytes` bytes on disk behind a RAM tier of `ram_bytes`.
    #[must_use]
    pub fn new(max_bytes: u64, ram_bytes: u64, durability: Durability) -> Self {
        let share = max_bytes / DISK_SEGMENTS_MIN / PAGE as u64 * PAGE as u64;
        Self {
            max_bytes,
            segment_bytes: share.min(DISK_SEGMENT_BYTES),
            durability,
            ttl: None,
            // Queued records cannot be evicted from the RAM tier.
            queue_bytes: (ram_bytes / 4).min(DISK_QUEUE_BYTES_MAX),
            retry: Duration::from_millis(DISK_RETRY_MS),
            full_patience: Duration::from_millis(DISK_FULL_PATIENCE_MS),
        }
    }
}

/// Counters and gauges of the durable tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Budget in bytes.
    pub max_bytes: u64,
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Records that can be looked up.
    pub records: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// Records among them that survive a power failure.
    pub durable_records: u64,
    /// Bytes of the durable records.
    pub durable_bytes: u64,
    /// Memory of the index, in bytes.
    pub index_bytes: u64,
    /// Records queued for writing.
    pub queued: u64,
    /// Bytes of the queued records.
    pub queued_bytes: u64,
    /// Records written so far, without moved ones.
    pub written: u64,
    /// Bytes of the written records.
    pub written_bytes: u64,
    /// Bytes written to files so far.
    pub file_bytes: u64,
    /// Records read back so far.
    pub read: u64,
    /// Bytes of the records read.
    pub read_bytes: u64,
    /// Reads that failed or were refused.
    pub missed: u64,
    /// Records refused because the queue was full, or there are too many namespaces.
    pub skipped: u64,
    /// Namespace of the last record that was refused because the disk has records of too many.
    pub refused_namespace: Option<Hash>,
    /// Records found bad and removed.
    pub quarantined: u64,
    /// Records evicted with their segment.
    pub evicted: u64,
    /// Records that moved to a newer segment.
    pub moved: u64,
    /// Records removed because they expired.
    pub expired: u64,
    /// Bytes read again in the background.
    pub scrubbed_bytes: u64,
    /// Failed operations of the disk.
    pub alarms: u64,
    /// Failed syncs, part of `alarms`.
    pub syncs_failed: u64,
    /// Whether segments of the previous run are still being read.
    pub is_recovering: bool,
    /// Whether the last write failed; the disk is tried again.
    pub is_failing: bool,
    /// Error text of the last failed write, with its errno; empty without any.
    pub trouble: String,
    /// Whether directory and archive have recorded every flush so far; false also while one is carried out.
    pub are_flushes_recorded: bool,
    /// State of the archive, if any.
    pub archive: Option<ArchiveStats>,
}

/// Refuses impossible options.
pub(super) fn check(options: &DiskOptions) -> Result<()> {
    if options.max_bytes < DISK_BYTES_MIN {
        let text =
            format!("diskBytes is {}: it must be at least {DISK_BYTES_MIN}", options.max_bytes);
        return Err(Error::bad_argument(text));
    }
    let page = PAGE as u64;
    let fits = options.segment_bytes <= options.max_bytes / 4;
    if !fits || options.segment_bytes < 4 * page || !options.segment_bytes.is_multiple_of(page) {
        return Err(Error::bad_argument(format!(
            "segmentBytes is {}: it must be pages of {page}, at least 4, at most a quarter of diskBytes",
            options.segment_bytes
        )));
    }
    Ok(())
}
