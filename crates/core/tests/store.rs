//! Owns the proof of the store: put-if-absent, nothing unverified, never above the budget, pins hold.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

#[path = "support/lru.rs"]
mod lru;
#[path = "support/records.rs"]
mod records;

use std::collections::BTreeMap;
use std::sync::Arc;

use lru::LruPolicy;
use proptest::prelude::*;
use records::{header, key, put, record};
use tierkv_core::crc32c;
use tierkv_core::record::{CLASS_KV, CLASS_SSM, HEADER_BYTES, Header};
use tierkv_core::store::{
    CLASS_ANY, ENTRY_BYTES, Flushed, ItemStatus, Offer, Options, Pin, RecordKey, Reservation,
    Scope, Store,
};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;
/// What one takes at most: its pages, and its line of the index.
const TAKEN: u64 = (RECORD as u64).next_multiple_of(4096) + 1024;

fn options() -> Options {
    Options { max_bytes: MIB, max_record_bytes: MIB / 2, record_class: CLASS_KV }
}

fn store() -> Arc<Store> {
    Arc::new(Store::new(options()).unwrap())
}

fn wanted(store: &Arc<Store>, key: RecordKey, bytes: u64) -> Reservation {
    match store.reserve(key, bytes) {
        Offer::Wanted(reservation) => reservation,
        Offer::Refused(status) => panic!("refused: {status:?}"),
    }
}

fn refused(store: &Arc<Store>, key: RecordKey, bytes: u64) -> ItemStatus {
    match store.reserve(key, bytes) {
        Offer::Wanted(_) => panic!("wanted"),
        Offer::Refused(status) => status,
    }
}

#[test]
fn a_record_is_there_once_it_is_committed_and_no_sooner() {
    let store = store();
    let bytes = record(&key(1), RECORD);
    let mut reservation = wanted(&store, key(1), RECORD as u64);
    assert_eq!(refused(&store, key(1), RECORD as u64), ItemStatus::Present, "somebody writes it");
    assert!(!reservation.write(0, &bytes[..100]).unwrap());
    assert!(reservation.write(99, &bytes[99..]).is_err(), "pieces must ascend");
    assert!(reservation.write(100, &bytes[100..]).unwrap());
    assert!(!store.contains(&key(1)));
    assert!(store.pin(&key(1)).is_none());
    assert!(store.stats().reserved_bytes >= RECORD as u64);

    assert_eq!(reservation.commit(), ItemStatus::Accepted);
    assert!(store.contains(&key(1)));
}

#[test]
fn a_record_can_be_received_in_place() {
    let store = store();
    let bytes = record(&key(1), RECORD);
    let mut reservation = wanted(&store, key(1), RECORD as u64);
    for part in bytes.chunks(RECORD / 3 + 1) {
        let spare = reservation.spare(RECORD / 3 + 1);
        assert_eq!(spare.len(), part.len(), "never more than the record has left");
        spare.copy_from_slice(part);
        let complete = reservation.advance(part.len()).unwrap();
        assert_eq!(complete, reservation.progress() == (RECORD, RECORD));
    }
    assert!(reservation.spare(1).is_empty());
    assert!(reservation.advance(1).is_err(), "nothing is left");
    assert_eq!(reservation.commit(), ItemStatus::Accepted);
    assert_eq!(&*store.pin(&key(1)).unwrap(), bytes);
}

#[test]
fn a_committed_record_is_counted_and_comes_back_as_it_was() {
    let store = store();
    let bytes = record(&key(1), RECORD);
    assert_eq!(put(&store, key(1), &bytes), ItemStatus::Accepted);
    assert_eq!(&*store.pin(&key(1)).unwrap(), bytes);
    assert_eq!(refused(&store, key(1), RECORD as u64), ItemStatus::Present);
    let stats = store.stats();
    assert_eq!((stats.records, stats.namespaces, stats.inserted), (1, 1, 1));
    assert_eq!(stats.reserved_bytes, 0);
    assert!(stats.used_bytes >= RECORD as u64 + ENTRY_BYTES);
}

#[test]
fn what_does_not_verify_is_never_there() {
    let store = store();
    let of = |edit: &dyn Fn(&mut Header), payload: &[u8]| {
        let mut header = header(&key(1), payload.len());
        edit(&mut header);
        [&header.encode(crc32c::checksum(payload)), payload].concat()
    };
    let payload = [9_u8; 1000];
    let sound = of(&|_| (), &payload);
    let mut flipped = sound.clone();
    flipped[HEADER_BYTES + 500] ^= 1;
    let cases = [
        (ItemStatus::BadRecord, flipped),
        (ItemStatus::BadRecord, [sound.as_slice(), &[0]].concat()),
        (ItemStatus::BadRecord, vec![0; 500]),
        (ItemStatus::WrongClass, of(&|header| header.record_class = CLASS_SSM, &payload)),
        (ItemStatus::WrongKey, of(&|header| header.block_hash[31] ^= 1, &payload)),
        (ItemStatus::WrongKey, of(&|header| header.namespace[0] ^= 1, &payload)),
        (ItemStatus::WrongKey, of(&|header| header.group ^= 1, &payload)),
        (ItemStatus::WrongKey, of(&|h| (h.shard, h.shard_count) = (1, 2), &payload)),
    ];
    for (status, bytes) in cases {
        assert_eq!(put(&store, key(1), &bytes), status);
        assert!(!store.contains(&key(1)));
        assert_eq!(store.stats().used_bytes, 0, "its room is given back");
    }
    let mut cut = wanted(&store, key(1), sound.len() as u64);
    cut.write(0, &sound[..sound.len() - 1]).unwrap();
    assert_eq!(cut.commit(), ItemStatus::Incomplete);
    assert_eq!(put(&store, key(1), &sound), ItemStatus::Accepted, "a failed try blocks nobody");
}

#[test]
fn a_store_of_any_class_takes_both_and_checks_all_the_rest() {
    let store = Arc::new(Store::new(Options { record_class: CLASS_ANY, ..options() }).unwrap());
    let of = |number: u64, class: u8| {
        let payload = [9_u8; 1000];
        let mut header = header(&key(number), payload.len());
        header.record_class = class;
        [header.encode(crc32c::checksum(&payload)).as_slice(), &payload].concat()
    };
    assert_eq!(put(&store, key(1), &of(1, CLASS_KV)), ItemStatus::Accepted);
    assert_eq!(put(&store, key(2), &of(2, CLASS_SSM)), ItemStatus::Accepted);
    assert_eq!(put(&store, key(3), &of(4, CLASS_KV)), ItemStatus::WrongKey);
    assert_eq!(put(&store, key(3), &of(3, 3)), ItemStatus::BadRecord, "no such class");
    for number in [1, 2] {
        assert_eq!(store.recheck(&key(number)), ItemStatus::Present);
    }
    assert!(Store::new(Options { record_class: 3, ..options() }).is_err());
}

#[test]
fn impossible_lengths_are_refused() {
    let store = store();
    assert_eq!(refused(&store, key(1), MIB / 2 + 1), ItemStatus::TooLarge);
    assert_eq!(refused(&store, key(1), u64::MAX), ItemStatus::TooLarge);
    assert_eq!(refused(&store, key(1), 0), ItemStatus::BadRecord);
    assert_eq!(refused(&store, key(1), HEADER_BYTES as u64), ItemStatus::BadRecord);
}

#[test]
fn a_reservation_ends_with_its_writer() {
    let store = store();
    drop(wanted(&store, key(1), RECORD as u64));
    assert_eq!(store.stats().used_bytes, 0);
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
}

#[test]
fn reservations_and_pins_are_never_evicted() {
    let store = store();
    let count = MIB / TAKEN;
    for number in 0..count {
        assert_eq!(put(&store, key(number), &record(&key(number), RECORD)), ItemStatus::Accepted);
    }
    let pins: Vec<Pin> = (0..count).map(|number| store.pin(&key(number)).unwrap()).collect();
    assert_eq!(refused(&store, key(99), RECORD as u64), ItemStatus::OverBudget);
    assert_eq!(store.stats().records, count, "nothing was evicted in vain");

    let mut pins = pins.into_iter();
    drop(pins.next());
    let reservation = wanted(&store, key(99), RECORD as u64);
    assert!(!store.contains(&key(0)), "the one that was not pinned went");
    assert_eq!(refused(&store, key(100), RECORD as u64), ItemStatus::OverBudget);
    drop(reservation);
    for (number, pin) in (1..).zip(pins) {
        assert_eq!(&*pin, record(&key(number), RECORD), "pinned bytes stay what they were");
    }
}

#[test]
fn nothing_is_evicted_for_what_can_never_fit() {
    let store = store();
    for number in 0..4 {
        put(&store, key(number), &record(&key(number), 200_000));
    }
    let _pins: Vec<_> = (0..3).map(|number| store.pin(&key(number)).unwrap()).collect();
    assert_eq!(refused(&store, key(9), MIB / 2), ItemStatus::OverBudget);
    assert!(store.contains(&key(3)), "the one that could go would not have been enough");
}

#[test]
fn others_go_for_a_record_whatever_is_reserved_meanwhile() {
    let store = store();
    let _reserved = [wanted(&store, key(0), 200_000), wanted(&store, key(1), 200_000)];
    for number in 2..20 {
        let status = put(&store, key(number), &record(&key(number), 200_000));
        assert_eq!(status, ItemStatus::Accepted, "record {number}");
    }
    assert_eq!(store.stats().evicted, 15);
}

#[test]
fn a_pinned_record_that_is_flushed_keeps_its_memory_and_its_count() {
    let store = store();
    put(&store, key(1), &record(&key(1), RECORD));
    let pin = store.pin(&key(1)).unwrap();
    let used = store.stats().used_bytes;
    assert_eq!(
        store.flush(Scope::default()),
        Flushed { records: 1, bytes: used, disk_bytes: 0, is_durable: true }
    );
    assert!(!store.contains(&key(1)));
    assert_eq!(store.stats().used_bytes, used);
    assert_eq!(&*pin, record(&key(1), RECORD));
    drop(pin);
    assert_eq!(store.stats().used_bytes, 0);
}

#[test]
fn a_bad_record_is_quarantined_and_a_good_one_stays() {
    let store = store();
    for number in 0..3 {
        put(&store, key(number), &record(&key(number), RECORD));
    }
    assert!(store.corrupt(&key(1), 5000));
    assert!(store.corrupt(&key(2), 70), "in the header, too");
    assert_eq!(store.recheck(&key(0)), ItemStatus::Present);
    for number in [1, 2] {
        assert_eq!(store.recheck(&key(number)), ItemStatus::Quarantined);
        assert_eq!(store.recheck(&key(number)), ItemStatus::Missing);
    }
    let stats = store.stats();
    assert_eq!((stats.records, stats.quarantined), (1, 2));
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted, "again");
}

#[test]
fn namespaces_are_flushed_apart() {
    let store = store();
    let other = |number| RecordKey { namespace: [5; 32], ..key(number) };
    for number in 0..4 {
        put(&store, key(number), &record(&key(number), 1000));
        put(&store, other(number), &record(&other(number), 1000));
    }
    assert_eq!(store.stats().namespaces, 2);
    let scope = Scope { namespace: Some([5; 32]), ..Scope::default() };
    assert_eq!(store.flush(scope).records, 4);
    assert_eq!(store.flush(scope).records, 0);
    assert!(store.contains(&key(0)) && !store.contains(&other(0)));
    assert_eq!((store.stats().records, store.stats().namespaces), (4, 1));
}

#[test]
fn options_are_refused_by_name() {
    for (field, options) in [
        ("maxBytes", Options { max_bytes: MIB - 1, ..options() }),
        ("maxRecordBytes", Options { max_record_bytes: 0, ..options() }),
        ("maxRecordBytes", Options { max_record_bytes: MIB + 1, ..options() }),
        ("recordClass", Options { record_class: 3, ..options() }),
    ] {
        let error = Store::new(options).err().unwrap().to_string();
        assert!(error.starts_with(&format!("BAD_ARGUMENT: {field} is ")), "{error}");
    }
}

/// A record of nearly the whole budget is taken, although others must go for it.
#[test]
fn a_record_as_large_as_the_budget_is_taken() {
    let store = Arc::new(Store::new(Options { max_record_bytes: MIB, ..options() }).unwrap());
    put(&store, key(1), &record(&key(1), RECORD));
    let whole = MIB as usize - 8192;
    assert_eq!(put(&store, key(2), &record(&key(2), whole)), ItemStatus::Accepted);
    assert!(store.contains(&key(2)) && !store.contains(&key(1)));
    assert_eq!(put(&store, key(3), &record(&key(3), RECORD)), ItemStatus::Accepted);
    assert!(store.stats().used_bytes <= MIB);
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64, usize),
    Reserve(u64, usize),
    Drop(usize),
    Commit(usize),
    Pin(u64),
    Unpin(usize),
    Flush,
    Corrupt(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..40_u64;
    let bytes = 193..150_000_usize;
    let index = 0..64_usize;
    prop_oneof![
        10 => (number.clone(), bytes.clone()).prop_map(|(number, bytes)| Step::Put(number, bytes)),
        4 => (number.clone(), bytes).prop_map(|(number, bytes)| Step::Reserve(number, bytes)),
        2 => index.clone().prop_map(Step::Drop),
        4 => index.clone().prop_map(Step::Commit),
        4 => number.clone().prop_map(Step::Pin),
        3 => index.prop_map(Step::Unpin),
        1 => Just(Step::Flush),
        1 => number.prop_map(Step::Corrupt),
    ]
}

#[derive(Default)]
struct Open {
    reservations: Vec<(Reservation, Vec<u8>)>,
    pins: Vec<(u64, Pin)>,
    lengths: BTreeMap<u64, usize>,
}

fn apply(store: &Arc<Store>, open: &mut Open, step: &Step) {
    match *step {
        Step::Put(number, bytes) => {
            if put(store, key(number), &record(&key(number), bytes)) == ItemStatus::Accepted {
                open.lengths.insert(number, bytes);
            }
        }
        Step::Reserve(number, bytes) => {
            if let Offer::Wanted(reservation) = store.reserve(key(number), bytes as u64) {
                open.reservations.push((reservation, record(&key(number), bytes)));
                open.lengths.insert(number, bytes);
            }
        }
        Step::Drop(index) if index < open.reservations.len() => {
            drop(open.reservations.swap_remove(index));
        }
        Step::Commit(index) if index < open.reservations.len() => {
            let (mut reservation, bytes) = open.reservations.swap_remove(index);
            assert!(reservation.write(0, &bytes).unwrap());
            assert_eq!(reservation.commit(), ItemStatus::Accepted);
        }
        Step::Pin(number) => open.pins.extend(store.pin(&key(number)).map(|pin| (number, pin))),
        Step::Unpin(index) if index < open.pins.len() => drop(open.pins.swap_remove(index)),
        Step::Flush => {
            store.flush(Scope::default());
        }
        Step::Corrupt(number) => {
            store.corrupt(&key(number), 192);
            store.recheck(&key(number));
        }
        Step::Drop(_) | Step::Commit(_) | Step::Unpin(_) => (),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_stays_within_the_budget(
        steps in prop::collection::vec(step(), 1..150),
        lru in any::<bool>(),
    ) {
        let store = if lru {
            Store::with_policy(options(), |room| Box::new(LruPolicy::new(room)))
        } else {
            Store::new(options())
        };
        let store = Arc::new(store.unwrap());
        let mut open = Open::default();
        for step in &steps {
            apply(&store, &mut open, step);
            let stats = store.stats();
            prop_assert!(stats.used_bytes <= MIB, "{stats:?}");
            for (number, pin) in &open.pins {
                prop_assert_eq!(pin[96], *number as u8, "a pin shows the record it was made for");
            }
        }
        open = Open::default();
        store.flush(Scope::default());
        let stats = store.stats();
        prop_assert_eq!(stats.used_bytes, 0, "nothing leaked");
        prop_assert_eq!((stats.records, stats.namespaces, stats.reserved_bytes), (0, 0, 0));
        drop(open);
    }
}
