//! Owns the outcome of one item, numbered as `ItemStatus` of proto/tierkv.proto.

/// Outcome of one item of a store, fetch or report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemStatus {
    /// Wanted; no outcome yet.
    Unspecified = 0,
    /// In memory, verified.
    Accepted = 1,
    /// Stored already, or being written by another caller.
    Present = 2,
    /// Not stored.
    Missing = 3,
    /// Header or checksum is wrong.
    BadRecord = 4,
    /// A kv record in an ssm store, or the reverse.
    WrongClass = 5,
    /// The record's identity is not the one offered.
    WrongKey = 6,
    /// Longer than the store takes.
    TooLarge = 7,
    /// No room even after eviction.
    OverBudget = 8,
    /// The record ended before its length.
    Incomplete = 9,
    /// Checked again, bad, removed.
    Quarantined = 10,
    /// Synced to disk.
    Durable = 11,
    /// Made before a flush of its scope.
    Flushed = 12,
    /// The store takes no new records, because its records are being moved away.
    Draining = 13,
}
