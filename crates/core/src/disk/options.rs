//! Owns what the durable tier is made of, and the numbers that say how it is doing.

use std::time::Duration;

use super::archived::ArchiveStats;
use crate::error::{Error, Result};
use crate::limits::{
    DISK_BYTES_MIN, DISK_FULL_PATIENCE_MS, DISK_QUEUE_BYTES_MAX, DISK_RETRY_MS, DISK_SEGMENT_BYTES,
    DISK_SEGMENTS_MIN,
};
use crate::memory::pages::PAGE;

/// When a record is called durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When its segment is full and sealed.
    None,
    /// Some ms after it was accepted: one sync for many records.
    Group,
    /// Before it is answered: the answer is `durable`.
    Sync,
}

/// What the durable tier is made of.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// Bytes on disk, all files together.
    pub max_bytes: u64,
    /// Bytes of one segment; a larger record gets one of its own.
    pub segment_bytes: u64,
    /// When a record is called durable.
    pub durability: Durability,
    /// How long a record stays after it was written.
    pub ttl: Option<Duration>,
    /// Bytes of records that wait to be written.
    pub queue_bytes: u64,
    /// Pause before a disk that failed is tried again.
    pub retry: Duration,
    /// How long a disk may be full of others' files before the oldest of ours go.
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
            // What waits cannot be evicted from the RAM tier.
            queue_bytes: (ram_bytes / 4).min(DISK_QUEUE_BYTES_MAX),
            retry: Duration::from_millis(DISK_RETRY_MS),
            full_patience: Duration::from_millis(DISK_FULL_PATIENCE_MS),
        }
    }
}

/// How the durable tier is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// The budget.
    pub max_bytes: u64,
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Records that can be looked up.
    pub records: u64,
    /// Their bytes.
    pub record_bytes: u64,
    /// Of them, those that survive a power failure.
    pub durable_records: u64,
    /// Their bytes.
    pub durable_bytes: u64,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Records that wait to be written.
    pub queued: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Records written so far, without those that moved.
    pub written: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Bytes written to files so far.
    pub file_bytes: u64,
    /// Records read back so far.
    pub read: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed or were refused.
    pub missed: u64,
    /// Records the queue had no room for.
    pub skipped: u64,
    /// Records found bad and removed.
    pub quarantined: u64,
    /// Records evicted with their segment.
    pub evicted: u64,
    /// Records that moved to a newer segment.
    pub moved: u64,
    /// Records whose time was over.
    pub expired: u64,
    /// Bytes read again in the background.
    pub scrubbed_bytes: u64,
    /// Operations of the disk that failed.
    pub alarms: u64,
    /// Of them, syncs.
    pub syncs_failed: u64,
    /// Segments of the run before are still being read.
    pub is_recovering: bool,
    /// The last write failed; it is tried again.
    pub is_failing: bool,
    /// What the last write that failed said, with its errno; empty: none has failed.
    pub trouble: String,
    /// How the archive is doing; none: there is none.
    pub archive: Option<ArchiveStats>,
}

/// Refuses what cannot work.
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
