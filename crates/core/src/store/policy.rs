//! Owns the interface between the store and its eviction policy.

use super::{RecordKey, Stored};

/// An index of records that chooses victims, never a pinned record.
pub trait Policy: Send {
    /// Records in the index.
    fn len(&self) -> usize;

    /// Whether the index has no record.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Namespaces of the records.
    fn namespaces(&self) -> usize;

    /// Memory of the records in the index, in bytes.
    fn resident_bytes(&self) -> u64;

    /// Returns a record; does not count as a use.
    fn peek(&self, key: &RecordKey) -> Option<&Stored>;

    /// Sets the flag of each key whose record is in the index, and leaves the other flags; does not count as a use.
    fn find_all(&self, keys: &[RecordKey], found: &mut [bool]) {
        for (key, found) in keys.iter().zip(found) {
            *found = *found || self.peek(key).is_some();
        }
    }

    /// Returns a record and counts a use.
    fn touch(&mut self, key: &RecordKey) -> Option<&Stored>;

    /// Puts a record that no request can use now before the others of its tenant, unless it is pinned; a use takes it back.
    /// Returns whether the record newly goes first.
    fn demote(&mut self, _key: &RecordKey) -> bool {
        false
    }

    /// Protects a record from eviction until `unkeep`, if kept records then cost at most `most`, and that share of their tenant's quota.
    fn keep(&mut self, _key: &RecordKey, _most: u64) {}

    /// Ends the protection of `keep`.
    fn unkeep(&mut self, _key: &RecordKey) {}

    /// Whether a record is kept.
    fn is_kept(&self, _key: &RecordKey) -> bool {
        false
    }

    /// Memory of kept records, in bytes.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Inserts a record of a tenant, by the number `set_aside` returned; `hold` has made the room.
    fn insert(&mut self, key: RecordKey, record: Stored, tenant: u16);

    /// Sets the guaranteed bytes per tenant, with overrides in `own`; 0: tenants are not told apart.
    fn limit_tenants(&mut self, _each: u64, _own: &[(u64, u64)]) {}

    /// Memory of a tenant in bytes, arriving records included; 0 where tenants are not told apart.
    fn used_by(&self, _tenant: u64) -> u64 {
        0
    }

    /// Whether a tenant may have `bytes` more in arriving records.
    fn may_set_aside(&self, _tenant: u64, _bytes: u64) -> bool {
        true
    }

    /// Charges a tenant for arriving bytes; returns the tenant's number, valid until they are put back.
    fn set_aside(&mut self, _tenant: u64, _bytes: u64) -> u16 {
        0
    }

    /// Ends the charge of `set_aside`.
    fn put_back(&mut self, _tenant: u16, _bytes: u64) {}

    /// Removes a record.
    fn remove(&mut self, key: &RecordKey) -> Option<Stored>;

    /// Returns all keys that match.
    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey>;

    /// Visits some records from position `from` on, each with whether it was used again since it came or is kept; returns the
    /// next position, `None` at the end. A record that stays is visited once, whatever comes and goes between the calls.
    fn scan(&self, from: usize, visit: &mut dyn FnMut(&RecordKey, bool)) -> Option<usize> {
        debug_assert_eq!(from, 0, "one call visits all");
        for key in self.keys(&|_| true) {
            visit(&key, self.is_kept(&key));
        }
        None
    }

    /// Reserves `bytes` of the room for other uses: evicts until the index fits in the rest.
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)>;
}
