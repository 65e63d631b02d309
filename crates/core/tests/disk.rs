//! Owns the proof of the durable tier: what is durable comes back as it was, what is not sound never does, the budget holds.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::sync::Arc;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::record::{CLASS_KV, CLASS_SSM};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Offer, Options, Scope, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;
const ALL: Scope = Scope { namespace: None, record_class: None, salt: None };

fn ram(max_bytes: u64) -> Options {
    Options { max_bytes, max_record_bytes: max_bytes / 2, record_class: CLASS_ANY }
}

fn options() -> DiskOptions {
    DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group)
}

fn open(folder: &Folder, options: DiskOptions) -> Arc<Store> {
    let store = Store::durable(ram(16 * MIB), folder.path(), options).unwrap();
    store.disk().unwrap().wait_recovered();
    store
}

/// Waits for what happens in the background.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn put_durable(store: &Arc<Store>, numbers: std::ops::Range<u64>) {
    let keys: Vec<_> = numbers.map(key).collect();
    for key in &keys {
        assert_eq!(put(store, *key, &record(key, RECORD)), ItemStatus::Accepted);
    }
    assert!(store.wait_durable(&keys).iter().all(|is_durable| *is_durable));
}

fn assert_served(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let pin = store.pin(&key(number)).unwrap_or_else(|| panic!("{number} is missing"));
        assert_eq!(&*pin, record(&key(number), RECORD), "{number}");
    }
}

#[test]
fn what_is_durable_comes_back_after_a_clean_end() {
    let folder = Folder::new();
    let store = open(&folder, options());
    put_durable(&store, 0..40);
    let stats = store.disk_stats();
    assert_eq!((stats.records, stats.durable_records, stats.queued), (40, 40, 0));
    assert_eq!(stats.durable_bytes, 40 * RECORD as u64);
    drop(store);

    let store = open(&folder, options());
    assert_eq!(store.disk_stats().durable_records, 40);
    assert_eq!(store.stats().records, 0, "nothing is in memory yet");
    assert!(store.contains(&key(7)));
    assert_eq!(put(&store, key(7), &record(&key(7), RECORD)), ItemStatus::Present);
    assert_served(&store, 0..40);
    assert_eq!(store.disk_stats().read, 40);
    assert_served(&store, 0..40);
    assert_eq!(store.disk_stats().read, 40, "what was read is in memory");
}

/// The files as they are while the process lives: what a kill leaves behind.
fn copy(folder: &Folder) -> Folder {
    let copied = Folder::new();
    for path in folder.segments() {
        std::fs::copy(&path, copied.path().join(path.file_name().unwrap())).unwrap();
    }
    let tombstones = folder.path().join("tombstones");
    if tombstones.exists() {
        std::fs::copy(tombstones, copied.path().join("tombstones")).unwrap();
    }
    copied
}

#[test]
fn what_is_durable_comes_back_after_a_kill() {
    let folder = Folder::new();
    let store = open(&folder, options());
    // One sealed segment at least, and one that is not.
    put_durable(&store, 0..40);
    let copied = copy(&folder);
    assert!(copied.segments().len() > 1);
    let again = open(&copied, options());
    assert_eq!(again.disk_stats().durable_records, 40);
    assert_served(&again, 0..40);
    put_durable(&again, 40..50);
    drop(again);
    assert_served(&open(&copied, options()), 0..50);
}

#[test]
fn files_that_are_not_ours_or_half_made_do_no_harm() {
    let folder = Folder::new();
    put_durable(&open(&folder, options()), 0..4);
    std::fs::write(folder.path().join("README"), b"not ours").unwrap();
    let half = folder.path().join("0000ffff-000000000001-0000000000000001.seg");
    std::fs::write(&half, vec![0; 100_000]).unwrap();
    let store = open(&folder, options());
    until("the half-made file goes", || !half.exists());
    assert!(folder.path().join("README").exists());
    assert_served(&store, 0..4);
    assert!(folder.segments().len() == 1);
}

#[test]
fn one_process_at_a_time() {
    let folder = Folder::new();
    let _store = open(&folder, options());
    let second = Store::durable(ram(16 * MIB), folder.path(), options());
    let said = second.err().unwrap().to_string();
    assert!(said.contains("another vault uses it: stop that one, or set another"), "{said}");
}

#[test]
fn the_budget_holds_and_what_is_in_use_stays() {
    let folder = Folder::new();
    let store = open(&folder, options());
    put_durable(&store, 0..4);
    for number in 4..400 {
        put_durable(&store, number..number + 1);
        assert!(store.pin(&key(1)).is_some(), "in use all the time");
        let stats = store.disk_stats();
        assert!(stats.used_bytes <= stats.max_bytes, "{stats:?}");
    }
    let stats = store.disk_stats();
    assert!(stats.evicted > 100 && stats.moved + stats.written >= 400, "{stats:?}");
    drop(store);
    let store = open(&folder, options());
    assert!(store.contains(&key(1)), "it moved along");
    assert!(store.contains(&key(399)) && !store.contains(&key(2)));
}

#[test]
fn what_was_flushed_stays_away() {
    let folder = Folder::new();
    let store = open(&folder, options());
    put_durable(&store, 0..20);
    assert_eq!(
        store.flush(Scope { namespace: Some([9; 32]), record_class: None, salt: None }).records,
        0
    );
    assert_eq!(
        store.flush(Scope { namespace: None, record_class: Some(CLASS_SSM), salt: None }).records,
        0
    );
    let scope = Scope { namespace: Some([1; 32]), record_class: Some(CLASS_KV), salt: None };
    let flushed = store.flush(scope);
    assert_eq!((flushed.records, flushed.is_durable), (20, true));
    assert_eq!(flushed.disk_bytes, 20 * RECORD as u64);
    assert!(!store.contains(&key(3)) && store.pin(&key(3)).is_none());
    put_durable(&store, 3..4);

    // As after a kill at this moment, and after a clean end.
    let copied = copy(&folder);
    drop(store);
    for folder in [&copied, &folder] {
        let store = open(folder, options());
        assert!(store.contains(&key(3)), "written after the flush");
        assert_eq!(store.disk_stats().records, 1);
        assert_eq!(store.flush(ALL).records, 1);
        drop(store);
        let store = open(folder, options());
        assert_eq!(store.disk_stats().records, 0);
        until("empty segments go", || folder.segments().is_empty());
        drop(store);
    }
}

#[test]
fn a_bad_record_is_a_miss_and_stays_away() {
    let folder = Folder::new();
    put_durable(&open(&folder, options()), 0..10);
    let path = folder.segments().remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    // In the payload of the first record, and in the header before the second one.
    bytes[30_000] ^= 1;
    bytes[61_440 + 40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(&folder, options());
    assert!(store.contains(&key(0)), "footers are believed, reads are not");
    assert!(store.pin(&key(0)).is_none() && store.pin(&key(1)).is_none());
    assert!(!store.contains(&key(0)));
    assert_served(&store, 2..10);
    assert_eq!(store.disk_stats().quarantined, 2);
    drop(store);
    let store = open(&folder, options());
    assert!(!store.contains(&key(0)), "after a restart, too");
    put_durable(&store, 0..1);
    assert_served(&store, 0..1);
}

#[test]
fn scrub_finds_what_nobody_asks_for() {
    let folder = Folder::new();
    put_durable(&open(&folder, options()), 0..10);
    let path = folder.segments().remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(&folder, options());
    assert_eq!(store.disk().unwrap().scrub() + store.disk_stats().quarantined, 2);
    assert!(!store.contains(&key(0)));
    assert_served(&store, 1..10);
}

#[test]
fn time_to_live_ends_records_on_disk() {
    let folder = Folder::new();
    let ttl = Some(Duration::from_secs(2));
    let store = open(&folder, DiskOptions { ttl, ..options() });
    put_durable(&store, 0..4);
    assert!(store.disk_stats().records == 4);
    until("they go", || store.disk_stats().records == 0);
    assert_eq!(store.disk_stats().expired, 4);
    until("and their file", || folder.segments().is_empty());
}

#[test]
fn durability_sync_answers_durable() {
    let folder = Folder::new();
    for durability in [Durability::Sync, Durability::Group] {
        let store = open(&folder, DiskOptions { durability, ..options() });
        let key = key(u64::from(durability == Durability::Group));
        let bytes = record(&key, RECORD);
        let Offer::Wanted(mut reservation) = store.reserve(key, RECORD as u64) else {
            panic!("refused")
        };
        assert!(reservation.write(0, &bytes).unwrap());
        let is_sync = durability == Durability::Sync;
        let answer = if is_sync { ItemStatus::Durable } else { ItemStatus::Accepted };
        assert_eq!(reservation.commit_durably(), answer);
        assert!(!is_sync || store.are_durable(&[key]) == [true]);
    }
}

#[test]
fn nothing_is_durable_before_its_segment_is_sealed_where_durability_is_none() {
    let folder = Folder::new();
    let store = open(&folder, DiskOptions { durability: Durability::None, ..options() });
    for number in 0..4 {
        put(&store, key(number), &record(&key(number), RECORD));
    }
    until("they are written", || store.disk_stats().records == 4);
    assert_eq!(store.disk_stats().durable_records, 0);
    assert_eq!(store.wait_durable(&[key(0)]), [false]);
    store.disk().unwrap().drain();
    assert_eq!(store.disk_stats().durable_records, 4);
    assert_eq!(store.wait_durable(&[key(0)]), [true]);
}

#[test]
fn what_the_queue_has_no_room_for_is_written_later() {
    let folder = Folder::new();
    let store = open(&folder, DiskOptions { queue_bytes: 2 * RECORD as u64, ..options() });
    for number in 0..40 {
        put(&store, key(number), &record(&key(number), RECORD));
    }
    until("all are written", || store.disk_stats().records == 40);
    assert!(store.disk_stats().skipped > 0);
}

#[test]
fn a_record_larger_than_a_segment_has_one_of_its_own() {
    let folder = Folder::new();
    let store = open(&folder, options());
    let bytes = record(&key(1), 1_900_000);
    assert_eq!(put(&store, key(1), &bytes), ItemStatus::Accepted);
    assert_eq!(store.wait_durable(&[key(1)]), [true]);
    drop(store);
    assert_eq!(&*open(&folder, options()).pin(&key(1)).unwrap(), bytes);
}

#[test]
fn reads_of_one_record_at_the_same_time_are_one_read() {
    let folder = Folder::new();
    put_durable(&open(&folder, options()), 0..1);
    let store = open(&folder, options());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_served(&store, 0..1));
        }
    });
    assert_eq!(store.disk_stats().read, 1);
}

#[test]
fn eviction_in_both_tiers_never_touches_what_is_being_read() {
    let folder = Folder::new();
    let small = Options { max_record_bytes: MIB, ..ram(2 * MIB) };
    let store = Store::durable(small, folder.path(), options()).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let served = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (store, is_over, served) = (&store, &is_over, &served);
            scope.spawn(move || {
                let mut number = reader;
                while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                    number = (number * 31 + 7) % 600;
                    let Some(pin) = store.pin(&key(number)) else { continue };
                    std::thread::yield_now();
                    assert_eq!(&*pin, record(&key(number), RECORD));
                    served.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                }
            });
        }
        for number in 0..600 {
            put(&store, key(number), &record(&key(number), RECORD));
            let _ = store.wait_durable(&[key(number)]);
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
    });
    let stats = store.disk_stats();
    assert!(stats.evicted > 100 && stats.read > 10 && store.stats().evicted > 100, "{stats:?}");
    assert_eq!((stats.quarantined, stats.alarms), (0, 0), "{stats:?}");
    assert!(served.into_inner() > 100);
}

#[test]
fn options_that_cannot_work_are_refused_by_name() {
    let folder = Folder::new();
    for (options, name) in [
        (DiskOptions { max_bytes: 1000, ..options() }, "diskBytes"),
        (DiskOptions { segment_bytes: 5000, ..options() }, "segmentBytes"),
        (DiskOptions { segment_bytes: 4 * MIB, ..options() }, "segmentBytes"),
    ] {
        let refused = Disk::open(folder.path(), options).err().unwrap().to_string();
        assert!(refused.contains(name), "{refused}");
    }
}
