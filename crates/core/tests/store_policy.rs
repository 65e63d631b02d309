//! Owns the proof that the store's eviction keeps at least as much of a trace as a plain LRU does.

#[path = "support/lru.rs"]
mod lru;
#[path = "support/prompts.rs"]
mod prompts;
#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;
#[path = "support/trace.rs"]
mod trace;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lru::LruPolicy;
use prompts::{SHARED_BLOCKS, follower, prompts};
use records::{key, put, record};
use tierkv_core::disk::index::{Index, Place};
use tierkv_core::disk::{Resident, Residents};
use tierkv_core::limits::{STORE_SCAN_PIECES, STORE_SPARED_MS};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{
    ENTRY_BYTES, ItemStatus, Options, Policy, RecordKey, S3Fifo, Store, Stored,
};
use trace::trace;

const RECORD: usize = 4096;
const KEYS: u32 = 20_000;
const LENGTH: u64 = 100_000;
const GHOSTS: u64 = 2048;

fn options() -> Options {
    let max_bytes = u64::from(KEYS) / 12 * (RECORD as u64 + 340);
    Options { max_bytes, max_record_bytes: RECORD as u64, record_class: CLASS_KV }
}

/// Hits of a cache that is asked for each key, and given those it does not have.
fn hits(store: Store, trace: &[u64]) -> u32 {
    let store = Arc::new(store);
    let mut hits = 0;
    for number in trace {
        if store.pin(&key(*number)).is_some() {
            hits += 1;
        } else {
            let status = put(&store, key(*number), &record(&key(*number), RECORD));
            assert_eq!(status, ItemStatus::Accepted);
        }
    }
    hits
}

#[test]
fn at_least_as_good_as_lru() {
    for (scan_every, least) in [(0, 1.02), (5_000, 1.02)] {
        for seed in [1, 2] {
            let trace = trace(KEYS, 0.9, LENGTH, scan_every, seed);
            let ours = Store::with_policy(options(), |room| Box::new(S3Fifo::new(room, GHOSTS)));
            let ours = hits(ours.expect("options"), &trace);
            let lru = Store::with_policy(options(), |room| Box::new(LruPolicy::new(room)));
            let lru = hits(lru.expect("options"), &trace);
            assert!(lru > 10_000, "the trace can be cached at all: {lru}");
            let ratio = f64::from(ours) / f64::from(lru);
            assert!(ratio >= least, "scan {scan_every}, seed {seed}: {ours} against {lru}");
        }
    }
}

/// A store with room for about `records` records.
fn roomy(records: u64, make: impl FnOnce(u64) -> Box<dyn Policy>) -> Arc<Store> {
    let max_bytes = (1 << 20) + records * (RECORD as u64 + ENTRY_BYTES);
    let options = Options { max_bytes, max_record_bytes: RECORD as u64, record_class: CLASS_KV };
    Arc::new(Store::with_policy(options, make).expect("options"))
}

fn put_prompt(store: &Arc<Store>, numbers: &[u64]) {
    for (index, number) in numbers.iter().enumerate() {
        let parent = index.checked_sub(1).map(|before| numbers[before]);
        let (key, record) = follower(*number, parent, RECORD);
        put(store, key, &record);
    }
}

/// Blocks of prompts up to the first one that is missing.
fn prompt_hits(store: &Arc<Store>, prompts: &[Vec<u64>]) -> usize {
    let hits = |prompt: &Vec<u64>| {
        let is_held = |number: &&u64| store.pin(&key(**number)).is_some();
        let held = prompt.iter().take_while(is_held).count();
        put_prompt(store, prompt);
        held
    };
    prompts.iter().map(hits).sum()
}

#[test]
fn on_prompts_that_share_prefixes_ours_is_better_than_lru() {
    let prompts = prompts(2_000, 3);
    for part in [20, 8] {
        let records = SHARED_BLOCKS / part;
        let ours = roomy(records, |room| Box::new(S3Fifo::new(room, GHOSTS)));
        let lru = roomy(records, |room| Box::new(LruPolicy::new(room)));
        let [ours, lru] = [ours, lru].map(|store| prompt_hits(&store, &prompts));
        assert!(ours * 100 >= lru * 105, "1/{part}: {ours} against {lru}");
    }
}

/// Prompts of a fifth of a store that is full of used records: how much of each is there when it is asked for.
fn new_prompts(spared: Duration) -> Vec<usize> {
    let store = roomy(1000, |room| Box::new(S3Fifo::new(room, GHOSTS).sparing(spared)));
    let old: Vec<u64> = (0..1000).collect();
    put_prompt(&store, &old);
    assert!(old.iter().all(|number| store.pin(&key(*number)).is_some()));
    let held = |round: u64| {
        let prompt: Vec<u64> = (round * 1000..round * 1000 + 200).collect();
        put_prompt(&store, &prompt);
        prompt_hits(&store, &[prompt])
    };
    (1..6).map(held).collect()
}

#[test]
fn a_full_store_keeps_a_new_prompt_of_a_fifth_of_it_whole() {
    assert_eq!(new_prompts(Duration::from_millis(STORE_SPARED_MS)), [200; 5]);
    // By itself the policy gives first blocks away for last ones; the first prompt meets a store that has some room.
    assert_eq!(new_prompts(Duration::ZERO)[1], 0);
}

/// Entries of a scan's pieces.
const IN_ONE_HOLD: usize = STORE_SCAN_PIECES * 1024;

/// A policy whose owner may visit only a part of it in one hold of the lock.
struct Parts(S3Fifo);

impl Policy for Parts {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn namespaces(&self) -> usize {
        self.0.namespaces()
    }
    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }
    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        self.0.peek(key)
    }
    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        self.0.touch(key)
    }
    fn insert(&mut self, key: RecordKey, record: Stored, tenant: u16) {
        self.0.insert(key, record, tenant);
    }
    fn set_aside(&mut self, tenant: u64, bytes: u64) -> u16 {
        self.0.set_aside(tenant, bytes)
    }
    fn put_back(&mut self, tenant: u16, bytes: u64) {
        self.0.put_back(tenant, bytes);
    }
    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        self.0.remove(key)
    }
    fn keys(&self, _: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        panic!("all records are visited in one hold of the lock")
    }
    fn scan(&self, from: usize, visit: &mut dyn FnMut(&RecordKey, bool)) -> Option<usize> {
        let mut visited = 0;
        let next = self.0.scan(from, &mut |key, is_hot| {
            visited += 1;
            visit(key, is_hot);
        });
        assert!(visited <= IN_ONE_HOLD, "{visited} entries in one hold of the lock");
        next
    }
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)> {
        self.0.hold(bytes)
    }
}

#[test]
fn what_the_disk_lacks_is_found_in_short_holds_each_record_once() {
    const COUNT: u64 = 3 * IN_ONE_HOLD as u64 + 100;
    const STEP: u64 = 100 * RECORD as u64;
    let on_disk = |number: u64| number.is_multiple_of(3);
    let index = Index::default();
    for number in (0..COUNT).filter(|number| on_disk(*number)) {
        let place =
            Place { segment: 1, page: 0, record_bytes: 1, record_class: 1, tenant: 0, salt: 0 };
        assert!(index.publish(&key(number), place, |_| true).is_some());
    }
    let options = Options { max_bytes: 2 * COUNT * RECORD as u64, ..options() };
    let parts = |room| Box::new(Parts(S3Fifo::new(room, 0))) as Box<dyn Policy>;
    {
        let store = Arc::new(Store::with_policy(options, parts).expect("options"));
        for number in 0..COUNT {
            assert_eq!(
                put(&store, key(number), &record(&key(number), RECORD)),
                ItemStatus::Accepted
            );
        }
        let (mut found, mut next) = (HashSet::new(), Some(0));
        while let Some(from) = next {
            let (step, after) = store.not_on_disk(&index, from, STEP);
            next = after;
            // A part of the index is taken whole.
            let most = 100 + IN_ONE_HOLD;
            assert!(step.len() <= most && (step.len() >= 100 || next.is_none()), "{}", step.len());
            for Resident { key, record, .. } in step {
                assert!(found.insert(key) && record.len() == RECORD);
            }
        }
        let wanted: HashSet<_> = (0..COUNT).filter(|number| !on_disk(*number)).map(key).collect();
        assert_eq!(found, wanted);
    }
}
