//! Owns the proof that memory of records that are gone serves the next ones, within the budget, and shows nothing of who had it.

#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;

use std::collections::HashSet;
use std::sync::Arc;

use random::Random;
use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ItemStatus, Offer, Options, RecordKey, Scope, Store};

const MAX: u64 = 16 << 20;
const LONG: usize = 1 << 20;

fn store() -> Arc<Store> {
    let options = Options { max_bytes: MAX, max_record_bytes: 8 << 20, record_class: CLASS_KV };
    Arc::new(Store::new(options).expect("options"))
}

fn fill(store: &Arc<Store>, numbers: std::ops::Range<u64>, bytes: usize) {
    for number in numbers {
        let record = record(&key(number), bytes);
        assert_eq!(put(store, key(number), &record), ItemStatus::Accepted);
    }
}

/// Room for a record of the length of `fill`'s.
fn wanted(store: &Arc<Store>, key: RecordKey, bytes: usize) -> tierkv_core::store::Reservation {
    let record_bytes = record(&key, bytes).len() as u64;
    match store.reserve(key, record_bytes) {
        Offer::Wanted(reservation) => reservation,
        Offer::Refused(status) => panic!("{status:?}"),
    }
}

#[test]
fn records_of_one_length_take_the_memory_of_those_that_are_gone() {
    let store = store();
    fill(&store, 0..8, LONG);
    let used = store.stats().used_bytes;
    store.flush(Scope::default());
    let kept = store.stats().spare_bytes;
    assert!(kept > 8 * LONG as u64 && kept <= used, "{kept} of {used}");
    fill(&store, 10..14, LONG);
    assert!(store.stats().spare_bytes < kept / 8 * 5, "half of it is in use");
    fill(&store, 20..40, LONG);
    assert!(store.stats().spare_bytes < 2 * LONG as u64, "all of it is in use");
}

#[test]
fn a_record_takes_the_memory_of_the_one_that_gives_way_to_it() {
    let store = store();
    fill(&store, 0..20, LONG);
    assert!(store.stats().evicted > 0, "it is full");
    let place = |number| store.pin_resident(&key(number)).map(|pin| pin.as_ptr());
    let before: HashSet<_> = (0..20).filter_map(place).collect();
    fill(&store, 20..30, LONG);
    assert!((20..30).filter_map(place).all(|place| before.contains(&place)));
}

#[test]
fn another_length_gets_its_room_before_a_record_is_evicted() {
    let store = store();
    fill(&store, 0..8, LONG);
    store.flush(Scope::default());
    let kept = store.stats().spare_bytes;
    fill(&store, 10..14, 3 * LONG);
    let stats = store.stats();
    assert_eq!((stats.records, stats.evicted), (4, 0));
    assert!(stats.spare_bytes < kept / 2 && stats.used_bytes + stats.spare_bytes <= MAX);
}

#[test]
fn what_nobody_needed_for_a_while_is_the_systems_again() {
    let store = store();
    fill(&store, 0..8, LONG);
    store.flush(Scope::default());
    let kept = store.stats().spare_bytes;
    store.trim();
    assert_eq!(store.stats().spare_bytes, kept, "it has just come");
    // Two are in use again, so two of eight were needed.
    fill(&store, 10..12, LONG);
    store.flush(Scope::default());
    store.trim();
    let needed = store.stats().spare_bytes;
    assert!(needed > 0 && needed < kept / 2, "{needed} of {kept}");
    store.trim();
    assert_eq!(store.stats().spare_bytes, 0);
}

#[test]
fn a_record_that_arrives_sees_nothing_of_the_one_before() {
    let store = store();
    fill(&store, 0..4, LONG);
    store.flush(Scope::default());
    let kept = store.stats().spare_bytes;
    let mut reservation = wanted(&store, key(9), LONG);
    assert!(store.stats().spare_bytes < kept, "its memory was another's");
    assert!(reservation.spare(LONG).iter().all(|byte| *byte == 0));
}

#[test]
fn used_and_spare_memory_stay_under_the_budget_together() {
    let store = store();
    let mut random = Random::new(3);
    let mut pins = Vec::new();
    for number in 0..2000 {
        let lengths = [40_000, 200_000, 300_000, LONG];
        let length = lengths[usize::try_from(random.next() % 4).expect("small")];
        let record = record(&key(number), length);
        let said = put(&store, key(number), &record);
        assert!(matches!(said, ItemStatus::Accepted | ItemStatus::OverBudget), "{said:?}");
        // Pins let memory go later than the store does.
        pins.extend(store.pin(&key(number)));
        if pins.len() > 6 {
            pins.swap_remove(usize::try_from(random.next() % 7).expect("small"));
        }
        let stats = store.stats();
        assert!(stats.used_bytes + stats.spare_bytes <= MAX, "{stats:?}");
    }
    assert!(store.stats().evicted > 1000, "it was full most of the time");
}
