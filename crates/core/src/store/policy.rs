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

    /// A record that nobody can use as things are: unless it is pinned, it goes before others of its tenant; one that is used
    /// meanwhile stays. Whether it does now and did not before.
    fn demote(&mut self, _key: &RecordKey) -> bool {
        false
    }

    /// Never evicts a record until `unkeep`, if what is kept costs no more than `most` then, and of a tenant's quota the same share.
    fn keep(&mut self, _key: &RecordKey, _most: u64) {}

    /// It may be evicted again.
    fn unkeep(&mut self, _key: &RecordKey) {}

    /// Whether a record is kept.
    fn is_kept(&self, _key: &RecordKey) -> bool {
        false
    }

    /// What kept records cost.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// A new record of a tenant, by the number that `set_aside` answered; its room was made by `hold`.
    fn insert(&mut self, key: RecordKey, record: Stored, tenant: u16);

    /// What each tenant keeps whatever others do, in bytes, and what some keep instead; 0: tenants are not told apart.
    fn limit_tenants(&mut self, _each: u64, _own: &[(u64, u64)]) {}

    /// What a tenant has in memory, records in the middle of arriving included; 0 where tenants are not told apart.
    fn used_by(&self, _tenant: u64) -> u64 {
        0
    }

    /// Whether a tenant may have `bytes` bytes more in the middle of arriving.
    fn may_set_aside(&self, _tenant: u64, _bytes: u64) -> bool {
        true
    }

    /// So many bytes of a tenant are in the middle of arriving; the answer is its number until they are put back.
    fn set_aside(&mut self, _tenant: u64, _bytes: u64) -> u16 {
        0
    }

    /// They are not any more.
    fn put_back(&mut self, _tenant: u16, _bytes: u64) {}

    /// Takes a record out.
    fn remove(&mut self, key: &RecordKey) -> Option<Stored>;

    /// All keys that match.
    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey>;

    /// Those of records that were used again since they came, or are kept.
    fn hot_keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        self.keys(&|key| self.is_kept(key) && matches(key))
    }

    /// `bytes` of the room are not for records of the index: evicts until the rest fits.
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)>;
}
