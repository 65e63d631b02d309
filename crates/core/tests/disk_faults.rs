//! Owns the proof that a failing disk costs time and nothing else: every operation of a run fails once, and nothing durable is lost.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use faulty::{Fault, Faults, FaultyDisk};
use folder::Folder;
use records::{key, put, record};
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::limits::DISK_STALL_MS;
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, RecordKey, Scope, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 30_000;
const RAM: Options =
    Options { max_bytes: 16 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };

fn options() -> DiskOptions {
    let retry = Duration::from_millis(2);
    DiskOptions { retry, ..DiskOptions::new(2 * MIB, RAM.max_bytes, Durability::Sync) }
}

fn open(folder: &Folder, faults: &Arc<Faults>) -> Arc<Store> {
    let disk = Disk::start(FaultyDisk::open(folder.path(), faults), options()).unwrap();
    Store::on_disk(RAM, disk).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_served(store: &Store, key: &RecordKey) -> bool {
    let pin = store.pin(key);
    pin.is_some_and(|pin| {
        assert_eq!(&*pin, record(key, RECORD), "never other bytes");
        true
    })
}

/// Puts, syncs, reads, flushes and reopens; what the disk called durable is in the ledger.
fn script(folder: &Folder, faults: &Arc<Faults>) -> BTreeSet<u64> {
    let mut ledger = BTreeSet::new();
    for run in 0..2 {
        let store = open(folder, faults);
        for number in run * 10..run * 10 + 10 {
            assert_eq!(
                put(&store, key(number), &record(&key(number), RECORD)),
                ItemStatus::Accepted
            );
            if store.wait_durable(&[key(number)]) == [true] {
                ledger.insert(number);
            }
            assert!(is_served(&store, &key(number)), "the RAM tier serves on");
        }
        if run == 1 {
            // Of another namespace: nothing goes, but the file of tombstones is written.
            let scope = Scope { namespace: Some([9; 32]), record_class: None, salt: None };
            assert_eq!(store.flush(scope).records, 0);
            for number in 0..10 {
                is_served(&store, &key(number));
            }
        }
    }
    ledger
}

fn check(folder: &Folder, ledger: &BTreeSet<u64>, what: &str) {
    let store = open(folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    store.disk().unwrap().wait_recovered();
    for number in 0..20 {
        let served = is_served(&store, &key(number));
        assert!(served || !ledger.contains(&number), "{what}: {number} was durable and is lost");
    }
    until("files of nothing go", || folder.segments().len() as u64 == store.disk_stats().segments);
}

fn every_operation_once(kind: Fault) {
    let faults = Faults::new(kind, u64::MAX, 0);
    let folder = Folder::new();
    assert_eq!(script(&folder, &faults).len(), 20, "without faults all is durable");
    let operations = faults.count();
    assert!(operations > 5, "{operations}");
    for number in 1..=operations {
        let folder = Folder::new();
        let ledger = script(&folder, &Faults::new(kind, number, 1));
        check(&folder, &ledger, &format!("{kind:?} at operation {number} of {operations}"));
    }
}

#[test]
fn f12_a_disk_that_has_room_again_is_trusted_again_while_nothing_waits() {
    let folder = Folder::new();
    let faults = Faults::new(Fault::Enospc, 1, 600);
    let store = open(&folder, &faults);
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
    until("it is full", || store.disk_stats().is_failing);
    store.flush(Scope { namespace: None, record_class: None, salt: None });
    assert!(faults.count() < 600 && store.disk_stats().queued == 0, "nothing waits");
    until("it has room", || !store.disk_stats().is_failing);
    assert!(faults.count() >= 600, "it was asked until it had");
    assert_eq!(store.disk_stats().records, 0);
    assert_eq!(put(&store, key(2), &record(&key(2), RECORD)), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(2)]), [true]);
}

#[test]
fn f13_every_operation_fails_once_with_eio() {
    every_operation_once(Fault::Eio);
}

#[test]
fn f12_every_growth_fails_once_for_want_of_room() {
    every_operation_once(Fault::Enospc);
}

#[test]
fn f13_every_write_is_short_once() {
    every_operation_once(Fault::ShortWrite);
}

#[test]
fn f13_every_sync_fails_once() {
    every_operation_once(Fault::Sync);
}

#[test]
fn a_disk_that_fails_for_a_while_is_found_again_without_a_restart() {
    for kind in [Fault::Eio, Fault::Enospc, Fault::ShortWrite, Fault::Sync] {
        let folder = Folder::new();
        let store = open(&folder, &Faults::new(kind, 2, 40));
        let keys: Vec<_> = (0..20).map(key).collect();
        for key in &keys {
            assert_eq!(put(&store, *key, &record(key, RECORD)), ItemStatus::Accepted, "{kind:?}");
            assert!(is_served(&store, key), "{kind:?}: the RAM tier serves on");
        }
        until("all is durable in the end", || {
            store.wait_durable(&keys).iter().all(|is_durable| *is_durable)
        });
        // Known to be durable a moment before the writer has looked up from it.
        until("the disk is trusted again", || !store.disk_stats().is_failing);
        assert!(store.disk_stats().alarms > 0, "{kind:?}");
        drop(store);
        check(&folder, &(0..20).collect(), &format!("{kind:?} for a while"));
    }
}

#[test]
fn a_disk_that_stays_full_of_others_takes_new_records_for_old_ones() {
    let folder = Folder::new();
    let disk = DiskOptions { full_patience: Duration::from_millis(50), ..options() };
    // Two segments are made; the next tries fail.
    let faults = Faults::new(Fault::Enospc, 25, 200);
    let disk = Disk::start(FaultyDisk::open(folder.path(), &faults), disk).unwrap();
    let store = Store::on_disk(RAM, disk).unwrap();
    let keys: Vec<_> = (0..40).map(key).collect();
    for key in &keys {
        put(&store, *key, &record(key, RECORD));
        let _ = store.wait_durable(&[*key]);
    }
    until("the newest is durable", || store.wait_durable(&keys[39..]) == [true]);
    assert!(store.disk_stats().evicted > 0, "{:?}", store.disk_stats());
    assert!(is_served(&store, &key(0)), "the RAM tier serves on");
}

#[test]
fn f13_after_a_failed_sync_nothing_of_its_segment_is_durable_until_it_moved() {
    let folder = Folder::new();
    let healthy = Faults::new(Fault::Sync, u64::MAX, 0);
    let store = open(&folder, &healthy);
    assert_eq!(put(&store, key(0), &record(&key(0), RECORD)), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(0)]), [true]);
    let syncs = healthy.count();
    drop((store, folder));

    let folder = Folder::new();
    let store = open(&folder, &Faults::new(Fault::Sync, syncs + 1, 30));
    assert_eq!(put(&store, key(0), &record(&key(0), RECORD)), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(0)]), [true]);
    put(&store, key(1), &record(&key(1), RECORD));
    until("the sync fails", || store.disk_stats().syncs_failed > 0);
    until("both are durable again", || store.wait_durable(&[key(0), key(1)]) == [true, true]);
    assert!(store.disk_stats().moved >= 1, "the first one came along: {:?}", store.disk_stats());
}

/// A store on a device that hangs could not be closed, should an assertion fail.
struct Released(Arc<Faults>);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[test]
fn f14_what_is_not_found_yet_is_a_miss_at_once() {
    let folder = Folder::new();
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    let put_durable = |store: &Arc<Store>, number| {
        assert_eq!(put(store, key(number), &record(&key(number), RECORD)), ItemStatus::Accepted);
        store.wait_durable(&[key(number)]) == [true]
    };
    assert!((0..4).all(|number| put_durable(&store, number)));
    drop(store);

    let faults = Faults::new(Fault::Hang, u64::MAX, 0);
    let store = open(&folder, &faults);
    let released = Released(faults);
    assert!(store.disk_stats().is_recovering);
    assert!(store.pin(&key(0)).is_none() && !store.contains(&key(1)), "nobody waits for the disk");
    assert_eq!(store.contains_all(&[key(0), key(1)]), [false, false]);
    assert!(put_durable(&store, 7), "and it takes new records meanwhile");
    assert!(store.disk_stats().is_recovering);
    drop(released);
    until("the rest is found", || !store.disk_stats().is_recovering);
    assert!([0, 1, 2, 3, 7].iter().all(|number| is_served(&store, &key(*number))));
}

#[test]
fn f14_nobody_waits_for_what_others_wait_for_on_a_disk_that_hangs() {
    let keys: Vec<_> = (0..20).map(key).collect();
    let folder = Folder::new();
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    for key in &keys {
        assert_eq!(put(&store, *key, &record(key, RECORD)), ItemStatus::Accepted);
    }
    assert!(store.wait_durable(&keys).iter().all(|is_durable| *is_durable));
    drop(store);

    let faults = Faults::new(Fault::Hang, u64::MAX, 0);
    faults.release();
    let store = open(&folder, &faults);
    until("all is found", || !store.disk_stats().is_recovering);
    faults.hold();
    let released = Released(Arc::clone(&faults));
    std::thread::scope(|scope| {
        for key in &keys {
            scope.spawn(|| store.pin(key));
        }
        until("reads hang", || faults.hung() > 0);
        std::thread::sleep(Duration::from_millis(DISK_STALL_MS) * 3 / 2);
        let begun = Instant::now();
        assert!(keys.iter().all(|key| store.pin(key).is_none()));
        // Each was waited for on its own before: ten times this long.
        assert!(begun.elapsed() < Duration::from_millis(DISK_STALL_MS) * 2);
        drop(released);
    });
    assert!(keys.iter().all(|key| is_served(&store, key)), "and then it gives them");
}

#[test]
fn what_came_before_the_disk_was_known_is_written_by_an_end_right_after() {
    let folder = Folder::new();
    let faults = Faults::new(Fault::HangAtStart, u64::MAX, 0);
    let store = open(&folder, &faults);
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
    std::thread::scope(|scope| {
        scope.spawn(|| store.disk().unwrap().close());
        // Either way round it must hold; nearly always the end comes first.
        std::thread::sleep(Duration::from_millis(50));
        faults.release();
    });
    drop(store);
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    until("it is found", || !store.disk_stats().is_recovering);
    assert!(is_served(&store, &key(1)));
}

#[test]
fn what_is_read_while_it_is_flushed_does_not_stay_in_memory() {
    let folder = Folder::new();
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(1)]), [true]);
    drop(store);

    let faults = Faults::new(Fault::HangAtFlush, u64::MAX, 0);
    let store = open(&folder, &faults);
    store.disk().unwrap().wait_recovered();
    let flushed = std::thread::scope(|scope| {
        let released = Released(Arc::clone(&faults));
        let flush = scope.spawn(|| store.flush(Scope::default()));
        until("memory is flushed, and the disk is not", || faults.count() > 0);
        is_served(&store, &key(1));
        drop(released);
        flush.join().unwrap()
    });
    assert_eq!((flushed.records, flushed.is_durable), (1, true));
    assert!(!store.contains(&key(1)) && !is_served(&store, &key(1)));
}

#[test]
fn what_was_flushed_before_the_disk_was_known_does_not_come_back() {
    let folder = Folder::new();
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    assert_eq!(put(&store, key(1), &record(&key(1), RECORD)), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(1)]), [true]);
    drop(store);

    let faults = Faults::new(Fault::HangAtStart, u64::MAX, 0);
    let store = open(&folder, &faults);
    let released = Released(faults);
    assert_eq!(put(&store, key(2), &record(&key(2), RECORD)), ItemStatus::Accepted);
    assert!(!store.flush(Scope::default()).is_durable, "the disk does not answer");
    assert_eq!(put(&store, key(3), &record(&key(3), RECORD)), ItemStatus::Accepted);
    drop(released);
    until("what came later is durable", || store.wait_durable(&[key(3)]) == [true]);
    store.disk().unwrap().wait_recovered();
    let held = |store: &Store| store.contains_all(&[key(1), key(2), key(3)]);
    assert_eq!(held(&store), [false, false, true]);
    drop(store);
    let store = open(&folder, &Faults::new(Fault::Eio, u64::MAX, 0));
    store.disk().unwrap().wait_recovered();
    assert_eq!(held(&store), [false, false, true], "nor after a restart");
}
