//! Owns the outcome of one item, numbered as `ItemStatus` of proto/tierkv.proto.

/// Why one item of a store, fetch or report went the way it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemStatus {
    /// Wanted: nothing is decided yet.
    Unspecified = 0,
    /// In memory, verified.
    Accepted = 1,
    /// Was there already, or is being written by somebody else.
    Present = 2,
    /// Not there.
    Missing = 3,
    /// Header or checksum does not verify.
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
    /// Made before a flush that it belongs to.
    Flushed = 12,
    /// The store takes no new records: those it has are moving away.
    Draining = 13,
}
