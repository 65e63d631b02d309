//! Owns the plain LRU policy that the store's own is measured against.

use std::collections::{BTreeMap, HashMap, HashSet};
use tierkv_core::store::{Policy, RecordKey, Stored};

/// Evicts what was used longest ago.
pub struct LruPolicy {
    room: u64,
    held: u64,
    resident: u64,
    clock: u64,
    records: HashMap<RecordKey, (u64, Stored)>,
    by_age: BTreeMap<u64, RecordKey>,
}

impl LruPolicy {
    /// Room for `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self {
            room: bytes,
            held: 0,
            resident: 0,
            clock: 0,
            records: HashMap::new(),
            by_age: BTreeMap::new(),
        }
    }
}

impl Policy for LruPolicy {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn namespaces(&self) -> usize {
        self.records.keys().map(|key| key.namespace).collect::<HashSet<_>>().len()
    }

    fn resident_bytes(&self) -> u64 {
        self.resident
    }

    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        self.records.get(key).map(|(_, record)| record)
    }

    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        let (age, record) = self.records.get_mut(key)?;
        self.by_age.remove(age);
        self.clock += 1;
        *age = self.clock;
        self.by_age.insert(self.clock, *key);
        Some(record)
    }

    fn insert(&mut self, key: RecordKey, record: Stored, _: u16) {
        self.clock += 1;
        self.resident += record.charge();
        self.by_age.insert(self.clock, key);
        self.records.insert(key, (self.clock, record));
    }

    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        let (age, record) = self.records.remove(key)?;
        self.by_age.remove(&age);
        self.resident -= record.charge();
        Some(record)
    }

    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        self.records.keys().filter(|key| matches(key)).copied().collect()
    }

    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)> {
        self.held = bytes;
        let mut evicted = Vec::new();
        let mut pinned_until = 0;
        while self.resident + self.held > self.room {
            let Some((age, key)) = self.by_age.range(pinned_until..).next() else { break };
            let (age, key) = (*age, *key);
            pinned_until = age + 1;
            if !self.records[&key].1.is_pinned() {
                evicted.extend(self.remove(&key).map(|record| (key, record)));
            }
        }
        evicted
    }
}
