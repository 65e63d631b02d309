//! Owns a policy that the store's own is measured against: `quick_cache` (Clock-PRO kin of S3-FIFO), made to share its room.

use std::collections::HashSet;

use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use tierkv_core::store::{Policy, RecordKey, Stored};

/// A record's key, or the ballast's.
///
/// `quick_cache` evicts on insertion only, against a capacity that is best left fixed (changing it drops
/// its memory of evicted keys). So what takes room beside the records stands in it as one pinned entry.
type Key = Option<RecordKey>;
const BALLAST: Key = None;

/// Weightless entries leave the rings of `quick_cache`, so the ballast weighs at least this.
const WEIGHT_MIN: u64 = 1;

#[derive(Debug)]
enum Entry {
    Record(Stored),
    Ballast(u64),
}

#[derive(Debug, Clone)]
struct ByCharge;

impl Weighter<Key, Entry> for ByCharge {
    fn weight(&self, _key: &Key, entry: &Entry) -> u64 {
        match entry {
            Entry::Record(record) => record.charge(),
            Entry::Ballast(bytes) => (*bytes).max(WEIGHT_MIN),
        }
    }
}

#[derive(Debug, Clone)]
struct Evictions;

impl Lifecycle<Key, Entry> for Evictions {
    type RequestState = Vec<(RecordKey, Stored)>;

    fn is_pinned(&self, _key: &Key, entry: &Entry) -> bool {
        match entry {
            Entry::Record(record) => record.is_pinned(),
            Entry::Ballast(_) => true,
        }
    }

    fn on_evict(&self, evicted: &mut Self::RequestState, key: Key, entry: Entry) {
        if let (Some(key), Entry::Record(record)) = (key, entry) {
            evicted.push((key, record));
        }
    }
}

/// Scan-resistant, constant time per operation.
pub struct QuickPolicy {
    cache: Cache<Key, Entry, ByCharge, DefaultHashBuilder, Evictions>,
    ballast_bytes: u64,
}

impl QuickPolicy {
    /// Room for `bytes` bytes of records and others; remembers `ghosts` evicted keys.
    ///
    /// # Panics
    /// Never: all options are given.
    pub fn new(bytes: u64, ghosts: u64) -> Self {
        let ghosts = usize::try_from(ghosts).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(ghosts)
            .ghost_allocation(1.0)
            .weight_capacity(bytes + WEIGHT_MIN)
            .build()
            .expect("all options are given");
        let hasher = DefaultHashBuilder::default();
        let mut policy = Self {
            cache: Cache::with_options(options, ByCharge, hasher, Evictions),
            ballast_bytes: WEIGHT_MIN,
        };
        policy.hold(0);
        policy
    }
}

fn record_of(entry: &Entry) -> Option<&Stored> {
    match entry {
        Entry::Record(record) => Some(record),
        Entry::Ballast(_) => None,
    }
}

impl Policy for QuickPolicy {
    fn len(&self) -> usize {
        self.cache.len() - 1
    }

    fn namespaces(&self) -> usize {
        let keys = self.cache.iter().filter_map(|(key, _)| *key);
        keys.map(|key| key.namespace).collect::<HashSet<_>>().len()
    }

    fn resident_bytes(&self) -> u64 {
        self.cache.weight() - self.ballast_bytes
    }

    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        self.cache.peek(&Some(*key)).and_then(record_of)
    }

    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        self.cache.get(&Some(*key)).and_then(record_of)
    }

    fn insert(&mut self, key: RecordKey, record: Stored, _: u16) {
        // Pinned while it enters: a record of nearly the whole room would be turned away otherwise.
        let _entering = record.pin();
        self.cache.insert(Some(key), Entry::Record(record));
    }

    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        match self.cache.remove(&Some(*key))?.1 {
            Entry::Record(record) => Some(record),
            Entry::Ballast(_) => None,
        }
    }

    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        let all = self.cache.iter().filter_map(|(key, _)| *key);
        all.filter(matches).collect()
    }

    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)> {
        let mut evicted = Vec::new();
        self.cache.insert_with_lifecycle(BALLAST, Entry::Ballast(bytes), &mut evicted);
        self.ballast_bytes = bytes.max(WEIGHT_MIN);
        evicted
    }
}
