//! Owns the proof that eviction never races a read, and that any history of the index is the one that a plain LRU has, too.

#[path = "support/lru.rs"]
mod lru;
#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruPolicy;
use proptest::prelude::*;
use random::Random;
use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{Options, Policy, RecordKey, S3Fifo, Scope, Store};

const MIB: u64 = 1 << 20;

fn options(max_bytes: u64) -> Options {
    Options { max_bytes, max_record_bytes: MIB, record_class: CLASS_KV }
}

/// Length of a record by its number.
fn length(number: u64) -> usize {
    400 + usize::try_from(number * 7919 % 20_000).expect("small")
}

/// A hundred times what fits, put and read by several threads; pins outlive eviction and flush.
#[test]
fn what_is_pinned_is_what_was_put() {
    let store = Arc::new(Store::new(options(MIB)).expect("options"));
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let (store, hits) = (&store, &hits);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut held = Vec::new();
                for _ in 0..4_000 {
                    let number = random.next() % 300;
                    if let Some(pin) = store.pin(&key(number)) {
                        hits.fetch_add(1, Ordering::Relaxed);
                        held.push((number, pin));
                    } else {
                        let _may_be_full =
                            put(store, key(number), &record(&key(number), length(number)));
                    }
                    if held.len() > 8 {
                        let (number, pin) = held.swap_remove(0);
                        assert_eq!(&*pin, record(&key(number), length(number)));
                    }
                    if random.next().is_multiple_of(1000) {
                        store.flush(Scope::default());
                    }
                    assert!(store.stats().used_bytes <= MIB);
                }
            });
        }
    });
    assert!(hits.into_inner() > 100 && store.stats().evicted > 100, "both happened");
    store.flush(Scope::default());
    assert_eq!((store.stats().used_bytes, store.stats().reserved_bytes), (0, 0), "nothing leaked");
}

fn named(number: u64) -> RecordKey {
    let namespace = [u8::try_from(number % 3).expect("small"); 32];
    RecordKey { namespace, group: u16::try_from(number % 2).expect("small"), ..key(number / 6) }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64),
    Pin(u64),
    Flush(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..300_u64).prop_map(Step::Put),
        10 => (0..300_u64).prop_map(Step::Pin),
        1 => (0..3_u8).prop_map(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// With room for all, both policies hold the same; with little, neither holds what was not put.
    #[test]
    fn any_history_is_that_of_the_oracle(
        steps in prop::collection::vec(step(), 1..600),
        has_room in any::<bool>(),
    ) {
        let options = options(if has_room { 64 * MIB } else { MIB });
        let ours: fn(u64) -> Box<dyn Policy> = |room| Box::new(S3Fifo::new(room, 64));
        let lru: fn(u64) -> Box<dyn Policy> = |room| Box::new(LruPolicy::new(room));
        let stores = [ours, lru]
            .map(|make| Arc::new(Store::with_policy(options, make).expect("options")));
        let mut model = std::collections::BTreeSet::new();
        for step in &steps {
            for store in &stores {
                match *step {
                    Step::Put(number) => {
                        put(store, named(number), &record(&named(number), length(number)));
                        model.insert(number);
                    }
                    Step::Pin(number) => drop(store.pin(&named(number))),
                    Step::Flush(namespace) => {
                        let scope = Scope { namespace: Some([namespace; 32]), record_class: None, salt: None };
                        store.flush(scope);
                        model.retain(|number| number % 3 != u64::from(namespace));
                    }
                }
            }
        }
        let keys: Vec<RecordKey> = (0..300).map(named).collect();
        let put: Vec<bool> = (0..300).map(|number| model.contains(&number)).collect();
        for store in &stores {
            let held = store.contains_all(&keys);
            let one_by_one: Vec<bool> = keys.iter().map(|key| store.contains(key)).collect();
            prop_assert_eq!(&held, &one_by_one);
            let stats = store.stats();
            let namespaces: std::collections::BTreeSet<u64> =
                (0..300).filter(|number| held[usize::try_from(*number).expect("small")]).map(|number| number % 3).collect();
            prop_assert_eq!(stats.namespaces, namespaces.len() as u64);
            prop_assert_eq!(stats.records, held.iter().filter(|is_held| **is_held).count() as u64);
            if has_room {
                prop_assert_eq!(&held, &put);
            } else {
                prop_assert!(held.iter().zip(&put).all(|(held, put)| *put || !held));
            }
        }
    }
}
