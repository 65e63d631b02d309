//! Owns the proof that what was made before a flush that takes it is not stored after it, in memory or on disk.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/records.rs"]
mod records;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use records::{key, put, record};
use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::record::{CLASS_KV, CLASS_SSM};
use tierkv_core::store::{
    CLASS_ANY, ItemStatus, MADE_NOW, Offer, Options, RecordKey, Reservation, Scope, Store,
};

const MIB: u64 = 1 << 20;
const RECORD: usize = 6_000;
/// Held by each test with a disk, because one of them stops the writers of all.
static DISK: Mutex<()> = Mutex::new(());
const ALL: Scope = Scope { namespace: None, record_class: None, salt: None };

fn options() -> Options {
    Options { max_bytes: 16 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY }
}

fn store() -> Arc<Store> {
    Arc::new(Store::new(options()).unwrap())
}

fn arriving(store: &Arc<Store>, known: u64, key: RecordKey) -> Reservation {
    match store.reserve_since(known, 0, key, RECORD as u64) {
        Offer::Wanted(reservation) => reservation,
        Offer::Refused(status) => panic!("refused: {status:?}"),
    }
}

fn store_as(store: &Arc<Store>, known: u64, key: RecordKey) -> ItemStatus {
    match store.reserve_since(known, 0, key, RECORD as u64) {
        Offer::Refused(status) => status,
        Offer::Wanted(mut reservation) => {
            reservation.write(0, &record(&key, RECORD)).unwrap();
            reservation.commit()
        }
    }
}

#[test]
fn what_was_made_before_a_flush_is_refused_when_it_is_offered() {
    let store = store();
    assert_eq!(store.flush_as(10, ALL).records, 0);
    assert_eq!(store_as(&store, 9, key(1)), ItemStatus::Flushed);
    assert_eq!(store_as(&store, 10, key(1)), ItemStatus::Accepted);
    assert_eq!(store_as(&store, MADE_NOW, key(2)), ItemStatus::Accepted);
    store.forget_flushes(20);
    assert_eq!(store_as(&store, 19, key(3)), ItemStatus::Flushed, "nobody knows what it missed");
    store.note_flush(30, Scope { namespace: Some([9; 32]), record_class: None, salt: None });
    assert_eq!(store_as(&store, 29, key(3)), ItemStatus::Accepted, "of another namespace");
}

#[test]
fn what_is_in_the_middle_of_arriving_is_refused_when_it_is_whole() {
    let store = store();
    let before = store.stats();
    let mut reservations: Vec<_> = (0..3).map(|index| arriving(&store, 0, key(index))).collect();
    store.flush_as(10, Scope { namespace: None, record_class: Some(CLASS_SSM), salt: None });
    let mut settle = |index: usize| {
        let mut reservation = reservations.remove(0);
        reservation.write(0, &record(&key(index as u64), RECORD)).unwrap();
        reservation.commit()
    };
    assert_eq!(settle(0), ItemStatus::Accepted, "of the other class");
    store.flush_as(11, Scope { namespace: None, record_class: Some(CLASS_KV), salt: None });
    assert_eq!(settle(1), ItemStatus::Flushed);
    assert_eq!(settle(2), ItemStatus::Flushed);
    assert!(!store.contains(&key(1)) && !store.contains(&key(0)));
    store.trim();
    store.trim();
    assert_eq!((store.stats().used_bytes, store.stats().reserved_bytes), (before.used_bytes, 0));
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
}

/// A commit that has told memory and not yet the disk must not slip past a flush.
#[test]
fn a_flush_beside_stores_leaves_nothing_of_before_in_either_tier() {
    let _alone = DISK.lock();
    let path: PathBuf = std::env::temp_dir().join(format!("tierkv-flushes-{}", std::process::id()));
    let disk = DiskOptions::new(64 * MIB, options().max_bytes, Durability::Group);
    let store = Store::durable(options(), &path, disk).unwrap();
    let mut last = 0_u64;
    for round in 1..=12_u64 {
        let is_over = AtomicBool::new(false);
        let first = last;
        let made = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2_u64)
                .map(|writer| {
                    let (store, is_over) = (&store, &is_over);
                    scope.spawn(move || {
                        let mut number = first + writer;
                        while !is_over.load(Ordering::Acquire) {
                            store_as(store, round - 1, key(number));
                            number += 2;
                        }
                        number
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(2));
            store.flush_as(round, ALL);
            is_over.store(true, Ordering::Release);
            writers.into_iter().map(|writer| writer.join().unwrap()).max().unwrap()
        });
        store.disk().unwrap().drain();
        let left = (first..made).filter(|number| store.contains(&key(*number))).count();
        assert_eq!(left, 0, "round {round}: {left} of {} records", made - first);
        last = made;
    }
    drop(store);
    std::fs::remove_dir_all(path).unwrap();
}

/// A flush empties memory first, and then waits for the disk.
#[test]
fn what_is_read_from_disk_while_a_flush_waits_for_it_does_not_outlive_the_flush() {
    let _alone = DISK.lock();
    let path = std::env::temp_dir().join(format!("tierkv-flush-reads-{}", std::process::id()));
    let open = || {
        let disk = DiskOptions::new(64 * MIB, options().max_bytes, Durability::Group);
        Store::durable(options(), &path, disk).unwrap()
    };
    assert_eq!(store_as(&open(), 0, key(1)), ItemStatus::Accepted);
    let store = open();
    store.disk().unwrap().wait_recovered();
    let (begun, begins) = channel();
    let (ends, ended) = channel::<()>();
    let ended = Mutex::new(ended);
    // The writer is busy until this test says otherwise.
    let busy = move || {
        let _ = begun.send(());
        let _ = ended.lock().unwrap().recv();
    };
    fail::cfg_callback("disk.append", busy).unwrap();
    assert_eq!(store_as(&store, 0, key(2)), ItemStatus::Accepted);
    begins.recv().unwrap();
    fail::remove("disk.append");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| store.flush_as(1, ALL));
        while store_as(&store, 0, key(3)) != ItemStatus::Flushed {
            std::thread::yield_now();
        }
        drop(store.pin(&key(1)));
        drop(ends);
        flush.join().unwrap();
    });
    assert!(!store.contains(&key(1)), "it came back");
    drop(store);
    std::fs::remove_dir_all(path).unwrap();
}
