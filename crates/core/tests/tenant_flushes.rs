//! Owns the proof that a flush takes a tenant's records wherever they are, and no other's.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/faulty.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod faulty;
#[path = "support/folder.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod folder;
#[path = "support/records.rs"]
#[expect(dead_code, reason = "records here are of tenants")]
mod records;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use faulty::{Fault, Faults, FaultyDisk};
use folder::Folder;
use records::{key, record};
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::limits::STORE_TENANTS_MAX;
use tierkv_core::store::{
    CLASS_ANY, Flushed, ItemStatus, MADE_NOW, Offer, Options, Reservation, Scope, Store, salt_of,
    tenant_of,
};

const MIB: u64 = 1 << 20;
const RAM: u64 = 32 * MIB;
const RECORD: usize = 1_000;
const GONE: u64 = 5;
const OTHER: u64 = 6;

fn in_memory() -> Options {
    Options { max_bytes: RAM, max_record_bytes: MIB, record_class: CLASS_ANY }
}

fn on_disk() -> DiskOptions {
    DiskOptions::new(64 * MIB, RAM, Durability::Group)
}

fn open(folder: &Folder, disk: DiskOptions) -> Arc<Store> {
    let store = Store::durable(in_memory(), folder.path(), disk).unwrap();
    store.disk().unwrap().wait_recovered();
    store
}

fn arriving(store: &Arc<Store>, known: u64, tenant: u64, number: u64) -> Option<Reservation> {
    match store.reserve_since(known, tenant, key(number), RECORD as u64) {
        Offer::Wanted(mut reservation) => {
            reservation.write(0, &record(&key(number), RECORD)).unwrap();
            Some(reservation)
        }
        Offer::Refused(status) => {
            assert_eq!(status, ItemStatus::Flushed);
            None
        }
    }
}

fn put(store: &Arc<Store>, tenant: u64, numbers: Range<u64>) {
    for number in numbers {
        let reservation = arriving(store, MADE_NOW, tenant, number).unwrap();
        assert_eq!(reservation.commit(), ItemStatus::Accepted);
    }
}

fn put_durable(store: &Arc<Store>, tenant: u64, numbers: Range<u64>) {
    put(store, tenant, numbers.clone());
    let keys: Vec<_> = numbers.map(key).collect();
    assert!(store.wait_durable(&keys).iter().all(|is_durable| *is_durable));
}

fn held(store: &Store, numbers: Range<u64>) -> usize {
    numbers.filter(|number| store.contains(&key(*number))).count()
}

fn flush(store: &Store, salt: u64) -> Flushed {
    store.flush(Scope { salt: Some(salt_of(salt)), ..Scope::default() })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn f70_in_memory_a_tenant_goes_alone_from_every_account_with_quotas_and_without() {
    for quota in [0, RAM / 4] {
        let store = Arc::new(Store::new(in_memory()).unwrap());
        store.limit_tenants(quota, &[]);
        put(&store, tenant_of(0, GONE), 0..4);
        put(&store, tenant_of(9, GONE), 4..8);
        put(&store, tenant_of(0, OTHER), 10..14);
        put(&store, tenant_of(9, OTHER), 14..18);
        put(&store, 0, 20..24);
        let other_class =
            Scope { record_class: Some(2), salt: Some(salt_of(GONE)), ..Scope::default() };
        assert_eq!(store.flush(other_class).records, 0);
        assert_eq!(flush(&store, GONE).records, 8);
        assert_eq!((held(&store, 0..8), held(&store, 10..24)), (0, 12));
        assert_eq!(flush(&store, GONE).records, 0);
        put(&store, tenant_of(0, GONE), 0..4);
        assert_eq!(held(&store, 0..4), 4, "what is made now is stored");
    }
}

#[test]
fn f70_what_a_tenant_made_before_is_refused_when_offered_or_whole_and_others_are_stored() {
    let store = Arc::new(Store::new(in_memory()).unwrap());
    let both: Vec<_> =
        [(GONE, 1), (OTHER, 2)].map(|(tenant, number)| arriving(&store, 9, tenant, number)).into();
    store.flush_as(10, Scope { salt: Some(salt_of(GONE)), ..Scope::default() });
    let whole: Vec<_> = both.into_iter().map(|arriving| arriving.unwrap().commit()).collect();
    assert_eq!(whole, [ItemStatus::Flushed, ItemStatus::Accepted]);
    assert!(arriving(&store, 9, tenant_of(3, GONE), 3).is_none());
    assert!(arriving(&store, 9, OTHER, 3).is_some());
    assert!(arriving(&store, 10, GONE, 3).is_some());
}

#[test]
fn f70_on_disk_a_tenant_goes_alone_and_stays_away_after_a_restart() {
    let folder = Folder::new();
    let store = open(&folder, on_disk());
    put_durable(&store, tenant_of(0, GONE), 0..20);
    put_durable(&store, tenant_of(9, GONE), 20..30);
    put_durable(&store, OTHER, 100..120);
    put_durable(&store, 0, 200..210);
    let flushed = flush(&store, GONE);
    assert_eq!((flushed.records, flushed.is_durable), (30, true));
    assert_eq!(flushed.disk_bytes, 30 * RECORD as u64);
    put_durable(&store, GONE, 3..4);
    drop(store);
    let store = open(&folder, on_disk());
    assert_eq!((held(&store, 0..30), held(&store, 100..120), held(&store, 200..210)), (1, 20, 10));
    // Read back, they are the tenant's in memory as well.
    for number in (0..30).chain(100..120) {
        assert_eq!(store.pin(&key(number)).is_some(), number == 3 || number >= 100);
    }
    assert_eq!(flush(&store, OTHER).records, 20);
    assert!((100..120).all(|number| store.pin(&key(number)).is_none()));
    assert_eq!((held(&store, 3..4), held(&store, 200..210)), (1, 10));
}

#[test]
fn f70_a_tenant_beyond_the_table_goes_alone_too() {
    let first = STORE_TENANTS_MAX as u64 + 100;
    let folder = Folder::new();
    let store = open(&folder, on_disk());
    store.limit_tenants(MIB, &[]);
    // One record each: so many salts are not told apart by number.
    for salt in 1..first + 10 {
        put(&store, salt, salt..salt + 1);
    }
    let keys: Vec<_> = (1..first + 10).map(key).collect();
    assert!(store.wait_durable(&keys).iter().all(|is_durable| *is_durable));
    assert_eq!(flush(&store, first).records, 1);
    drop(store);
    let store = open(&folder, on_disk());
    assert_eq!((held(&store, first..first + 1), held(&store, 1..first + 10)), (0, keys.len() - 1));
    assert_eq!(flush(&store, first + 1).records, 1);
    assert_eq!(held(&store, first + 1..first + 2), 0);
}

#[test]
fn f70_a_record_that_moved_is_still_its_tenants() {
    let folder = Folder::new();
    let small = DiskOptions::new(2 * MIB, RAM, Durability::Group);
    let store = open(&folder, small);
    put_durable(&store, GONE, 0..1);
    for first in (100..1_500).step_by(20) {
        put_durable(&store, OTHER, first..first + 20);
        assert!(store.pin(&key(0)).is_some(), "in use all the time");
    }
    assert!(store.disk_stats().moved + store.disk_stats().evicted > 100);
    drop(store);
    let store = open(&folder, small);
    assert_eq!(held(&store, 0..1), 1, "it moved along");
    assert_eq!(flush(&store, GONE).records, 1);
    assert_eq!(held(&store, 0..1), 0);
}

#[test]
fn f70_what_waits_for_a_disk_that_fails_goes_too() {
    let folder = Folder::new();
    let faults = Faults::new(Fault::Enospc, 1, u64::MAX);
    let retry = Duration::from_millis(2);
    let options = DiskOptions { retry, ..on_disk() };
    let disk = Disk::start(FaultyDisk::open(folder.path(), &faults), options).unwrap();
    let store = Store::on_disk(in_memory(), disk).unwrap();
    put(&store, GONE, 0..4);
    put(&store, OTHER, 10..13);
    until("all wait", || store.disk_stats().queued == 7);
    let flushed = flush(&store, GONE);
    assert_eq!((flushed.records, flushed.is_durable), (4, false));
    until("the others wait", || store.disk_stats().queued == 3);
    assert_eq!((held(&store, 0..4), held(&store, 10..13)), (0, 3));
}
