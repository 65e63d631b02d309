//! Owns the interface between the store and what decides who stays.

use super::{RecordKey, Stored};

/// An index of records that evicts by its own lights. It never evicts a pinned record.
pub trait Policy: Send {
    /// Records in the index.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Namespaces they belong to.
    fn namespaces(&self) -> usize;

    /// What the records in the index cost.
    fn resident_bytes(&self) -> u64;

    /// A record, without any effect on who stays.
    fn peek(&self, key: &RecordKey) -> Option<&Stored>;

    /// Sets the flag of each key whose record is in the index, without any effect on who stays. Set ones stay set.
    fn find_all(&self, keys: &[RecordKey], found: &mut [bool]) {
        for (key, found) in keys.iter().zip(found) {
            *found = *found || self.peek(key).is_some();
        }
    }

    /// A record that is being used.
    fn touch(&mut self, key: &RecordKey) -> Option<&Stored>;

    /// A new record; its room was made by `hold`.
    fn insert(&mut self, key: RecordKey, record: Stored);

    /// Takes a record out.
    fn remove(&mut self, key: &RecordKey) -> Option<Stored>;

    /// All keys that match.
    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey>;

    /// `bytes` of the room are not for records of the index: evicts until the rest fits.
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)>;
}
