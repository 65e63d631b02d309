//! Owns the proof of what a disk promises: a time to live that no move lengthens, and bounds that hold when it is changed or fails.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod records;
#[path = "support/watched.rs"]
mod watched;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, record};
use tierkv_core::disk::index::Index;
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::limits::DISK_NAMESPACES_MAX;
use tierkv_core::store::{CLASS_ANY, ItemStatus, Offer, Options, RecordKey, Store};
use watched::{Watch, WatchedDisk};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;

fn ram() -> Options {
    Options { max_bytes: 4 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY }
}

fn options(max_bytes: u64) -> DiskOptions {
    let mut options = DiskOptions::new(max_bytes, 16 * MIB, Durability::Group);
    options.retry = Duration::from_millis(20);
    options
}

fn open(folder: &Folder, options: DiskOptions, watch: &Arc<Watch>) -> Arc<Store> {
    let disk = Disk::start(WatchedDisk::open(folder.path(), watch), options).unwrap();
    Store::on_disk(ram(), disk).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn put(store: &Arc<Store>, tenant: u64, numbers: Range<u64>) {
    for number in numbers.clone() {
        let offer = store.reserve_for(tenant, key(number), RECORD as u64);
        let Offer::Wanted(mut reservation) = offer else { panic!("{number} is not wanted") };
        assert!(reservation.write(0, &record(&key(number), RECORD)).unwrap());
        assert_eq!(reservation.commit(), ItemStatus::Accepted);
    }
    let is_there = |number| store.disk().unwrap().locate(&key(number)).is_some();
    until("they are on disk", || numbers.clone().all(is_there));
}

#[test]
fn f142_a_record_in_use_does_not_outlive_its_time_by_moving() {
    let folder = Folder::new();
    let ttl = Some(Duration::from_secs(4));
    let store = open(&folder, DiskOptions { ttl, ..options(2 * MIB) }, &Arc::default());
    put(&store, 0, 0..1);
    let disk = store.disk().unwrap();
    let first = disk.locate(&key(0)).unwrap();
    let mut next = 1;
    // As long as it is there, it is used between all evictions, and so moves each time.
    let patience = Instant::now() + Duration::from_secs(60);
    while disk.locate(&key(0)).is_some() {
        assert!(Instant::now() < patience, "it outlives its time: {:?}", store.disk_stats());
        disk.touch(&key(0));
        put(&store, 0, next..next + 1);
        next += 1;
    }
    let stats = store.disk_stats();
    assert!(stats.moved > 0 && stats.expired > 0, "{stats:?}");
    assert!(stats.written == next, "what moves is not written anew: {stats:?}");
    assert!(folder.segments().len() > 1 && first.segment == 1);
}

/// Bytes of a segment of a disk this large.
fn segment_bytes(max_bytes: u64) -> i64 {
    i64::try_from(options(max_bytes).segment_bytes).unwrap()
}

#[test]
fn f144_a_budget_that_was_lowered_is_kept_without_all_that_moves_in_memory() {
    const LARGE: u64 = 64 * MIB;
    const SMALL: u64 = 8 * MIB;
    let folder = Folder::new();
    let large = DiskOptions { segment_bytes: options(SMALL).segment_bytes, ..options(LARGE) };
    let store = open(&folder, large, &Arc::default());
    // Two accounts' worth: those of the lesser one are protected, and move.
    for first in (0..500).step_by(10) {
        put(&store, 1 << 32, first..first + 8);
        put(&store, 2 << 32, first + 8..first + 10);
    }
    drop(store);
    let watch = Arc::default();
    let store = open(&folder, options(SMALL), &watch);
    store.limit_tenants(MIB, &[]);
    store.disk().unwrap().wait_recovered();
    until("the budget is kept", || store.disk_stats().used_bytes <= SMALL);
    let stats = store.disk_stats();
    let most = watch.held_most.load(Ordering::Acquire);
    let bound = segment_bytes(SMALL) * 3 / 2;
    assert!(stats.moved > 30 && most <= bound, "{most}, not {bound}: {stats:?}");
}

#[test]
fn f145_a_segment_that_cannot_be_read_is_tried_again_ever_more_rarely() {
    let folder = Folder::new();
    let store = open(&folder, options(8 * MIB), &Arc::default());
    put(&store, 0, 0..5);
    drop(store);
    let watch: Arc<Watch> = Arc::default();
    watch.is_broken.store(true, Ordering::Release);
    let begun = Instant::now();
    let store = open(&folder, options(8 * MIB), &watch);
    until("it was tried seven times", || watch.opened.load(Ordering::Acquire) >= 7);
    // Pauses of 20, 40, 80, 160, 320 and 640 ms, in place of six of 20.
    assert!(begun.elapsed() >= Duration::from_millis(1260), "{:?}", begun.elapsed());
    watch.is_broken.store(false, Ordering::Release);
    until("it is read", || store.disk_stats().records == 5);
}

#[test]
fn a_namespace_too_many_is_named() {
    let index = Index::default();
    let of = |number: usize| {
        let mut namespace = [0; 32];
        namespace[..8].copy_from_slice(&(number as u64).to_le_bytes());
        RecordKey { namespace, ..key(0) }
    };
    assert!((0..DISK_NAMESPACES_MAX).all(|number| index.reserve(&of(number))));
    assert_eq!(index.refused(), (0, None));
    let next = of(DISK_NAMESPACES_MAX);
    assert!(!index.reserve(&next) && index.reserve(&RecordKey { group: 1, ..of(0) }));
    assert_eq!(index.refused(), (1, Some(next.namespace)));
}
