//! Owns the proof that demoted records go first, and stay where somebody uses them: halves of boundaries whose other half is gone.

#[path = "support/records.rs"]
mod records;

use std::sync::Arc;

use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ENTRY_BYTES, Options, RecordKey, Scope, Store};

const RECORD: usize = 4096;
/// Blocks of attention of a boundary; one state stands behind them.
const BLOCKS: usize = 3;
/// Whole boundaries; as many are torn.
const BOUNDARIES: u32 = 20;
/// Of the halves that are flushed.
const LOST: [u8; 32] = [9; 32];

/// A store with room for about `records` records.
fn roomy(records: u64) -> Arc<Store> {
    let max_bytes = (1 << 20) + records * (RECORD as u64 + ENTRY_BYTES);
    let options = Options { max_bytes, max_record_bytes: RECORD as u64, record_class: CLASS_KV };
    Arc::new(Store::new(options).expect("options"))
}

fn store_one(store: &Arc<Store>, key: RecordKey) {
    put(store, key, &record(&key, RECORD));
}

/// Its attention blocks, then its state.
fn boundary(number: u32) -> Vec<RecordKey> {
    (0..=BLOCKS as u64).map(|block| key((1 << 32) + u64::from(number) * 8 + block)).collect()
}

fn is_held(store: &Store, keys: &[RecordKey]) -> bool {
    store.contains_all(keys).iter().all(|is_held| *is_held)
}

fn use_all(store: &Store, keys: &[RecordKey]) {
    for key in keys {
        assert!(store.pin(key).is_some());
    }
}

/// How many whole boundaries are whole, and how many records of torn ones are left, after a stream of records that nobody asks
/// for again. `lost`: what of a boundary is gone; what is left is demoted when it is looked up, and fetched if `is_used`.
fn outcome(lost: std::ops::Range<usize>, is_demoted: bool, is_used: bool) -> (usize, usize) {
    let store = roomy(220);
    let whole: Vec<_> = (0..BOUNDARIES).map(boundary).collect();
    let mut torn: Vec<_> = (BOUNDARIES..2 * BOUNDARIES).map(boundary).collect();
    for key in torn.iter_mut().flat_map(|keys| &mut keys[lost.clone()]) {
        key.namespace = LOST;
    }
    for key in whole.iter().chain(&torn).flatten() {
        store_one(&store, *key);
        assert!(store.pin(key).is_some(), "each is used once");
    }
    store.flush(Scope { namespace: Some(LOST), record_class: None, salt: None });
    let left: Vec<RecordKey> =
        torn.iter().flatten().filter(|key| key.namespace != LOST).copied().collect();
    assert!(is_held(&store, &left));
    let mut fresh = 0;
    for _ in 0..60 {
        for keys in &whole {
            if is_held(&store, keys) {
                use_all(&store, keys);
            }
        }
        drop(store.contains_all(&left));

        if is_demoted {
            store.demote(&left, false);
        }
        if is_used {
            use_all(&store, &left);
        }
        for _ in 0..20 {
            fresh += 1;
            store_one(&store, key(fresh));
        }
    }
    let is_whole = whole.iter().filter(|keys| is_held(&store, keys)).count();
    (is_whole, store.contains_all(&left).iter().filter(|is_held| **is_held).count())
}

const STATE: std::ops::Range<usize> = BLOCKS..BLOCKS + 1;
const ATTENTION: std::ops::Range<usize> = 0..BLOCKS;
const WHOLE: usize = BOUNDARIES as usize;

#[test]
fn halves_that_are_demoted_go_and_whole_ones_stay() {
    assert_eq!(outcome(STATE, true, false), (WHOLE, 0));
    assert_eq!(outcome(ATTENTION, true, false), (WHOLE, 0));
}

#[test]
fn without_that_what_was_used_once_outlives_any_stream() {
    assert_eq!(outcome(ATTENTION, false, false), (WHOLE, WHOLE), "why they are demoted at all");
}

#[test]
fn demoted_ones_that_are_used_again_stay() {
    assert_eq!(outcome(STATE, true, true), (WHOLE, WHOLE * BLOCKS));
    assert_eq!(outcome(ATTENTION, true, true), (WHOLE, WHOLE));
}

#[test]
fn pinned_and_unknown_ones_are_left_alone_and_nothing_is_removed() {
    let store = roomy(20);
    let keys: Vec<RecordKey> = (0..4).map(key).collect();
    for key in &keys[..3] {
        store_one(&store, *key);
    }
    let pin = store.pin(&keys[0]).expect("it is there");
    assert_eq!(store.demote(&keys, false), 2);
    assert_eq!(store.demote(&keys, false), 0, "they are already");
    assert_eq!(store.contains_all(&keys), [true, true, true, false]);
    drop(pin);
    assert_eq!(store.demote(&keys, false), 1);
    assert_eq!(store.stats().records, 3);
}

#[test]
fn those_that_were_ever_used_are_left_alone_where_only_unused_ones_are_meant() {
    let store = roomy(20);
    let keys: Vec<RecordKey> = (0..3).map(key).collect();
    for key in &keys {
        store_one(&store, *key);
    }
    use_all(&store, &keys[..1]);
    assert_eq!(store.demote(&keys, true), 2);
    use_all(&store, &keys[1..2]);
    let mut fresh = 100;
    while store.contains(&keys[2]) {
        store_one(&store, key(fresh));
        fresh += 1;
    }
    assert!(is_held(&store, &keys[..2]), "one used before, one after");
    // The second had its use counted when it gave way to nobody; it is among those used again now.
    assert_eq!(store.demote(&keys[1..2], true), 0);
    assert_eq!(store.demote(&keys[1..2], false), 1);
}

#[test]
fn they_go_before_the_oldest() {
    let store = roomy(20);
    let keys: Vec<RecordKey> = (0..20).map(key).collect();
    let mut stored = Vec::new();
    while store.stats().evicted == 0 {
        let next = key(1000 + stored.len() as u64);
        store_one(&store, next);
        stored.push(next);
    }
    let last = stored[stored.len() - 2];
    assert!(store.pin(&last).is_some(), "uses before count no more");
    assert_eq!(store.demote(&[last], false), 1);
    store_one(&store, keys[0]);
    let gone: Vec<_> = stored.iter().filter(|key| !store.contains(key)).collect();
    assert_eq!(gone, [&stored[0], &last]);
}
