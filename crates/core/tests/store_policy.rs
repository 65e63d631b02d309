//! Owns the proof that the store's eviction keeps at least as much of a trace as a plain LRU does.

#[path = "support/lru.rs"]
mod lru;
#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;
#[path = "support/trace.rs"]
mod trace;

use std::sync::Arc;

use lru::LruPolicy;
use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ItemStatus, Options, Store};
use trace::trace;

const RECORD: usize = 4096;
const KEYS: u32 = 20_000;
const LENGTH: u64 = 100_000;

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
            let ours = hits(Store::new(options()).expect("options"), &trace);
            let lru = Store::with_policy(options(), |room| Box::new(LruPolicy::new(room)));
            let lru = hits(lru.expect("options"), &trace);
            assert!(lru > 10_000, "the trace can be cached at all: {lru}");
            let ratio = f64::from(ours) / f64::from(lru);
            assert!(ratio >= least, "scan {scan_every}, seed {seed}: {ours} against {lru}");
        }
    }
}
