//! Owns the interface between the store and what decides who stays.

use std::sync::Arc;

use super::{RecordKey, Stored};

/// An index of records that evicts by its own lights. It never evicts a pinned record.
pub trait Policy: Send {
    /// Records in the index.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the records in the index cost.
    fn resident_bytes(&self) -> u64;

    /// A record, without any effect on who stays.
    fn peek(&self, key: &RecordKey) -> Option<&Arc<Stored>>;

    /// A record that is being used.
    fn touch(&mut self, key: &RecordKey) -> Option<&Arc<Stored>>;

    /// A new record; its room was made by `hold`.
    fn insert(&mut self, key: RecordKey, record: Arc<Stored>);

    /// Takes a record out.
    fn remove(&mut self, key: &RecordKey) -> Option<Arc<Stored>>;

    /// All keys that match.
    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey>;

    /// `bytes` of the room are not for records of the index: evicts until the rest fits.
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Arc<Stored>)>;
}
