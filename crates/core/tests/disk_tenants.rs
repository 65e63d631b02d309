//! Owns the proof that tenants keep what is theirs on disk: through floods, in segments shared with others, and after a restart.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod folder;
#[path = "support/records.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod records;

use std::ops::Range;
use std::sync::Arc;

use folder::Folder;
use records::{key, record};
use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Offer, Options, Store, tenant_of};

const MIB: u64 = 1 << 20;
const RAM: u64 = 16 * MIB;
const DISK: u64 = 16 * MIB;
const RECORD: usize = 60_000;
/// Of the same account as those who flood.
const VICTIM: u64 = (1 << 32) - 1;
const FLOODERS: Range<u64> = 1..5;
/// Percent of what the disk can hold; five of them fit.
const SHARE: u64 = 19;
/// Records that lie within it.
const KEPT: u64 = 36;

fn open(folder: &Folder, share: u64) -> Arc<Store> {
    let in_memory = Options { max_bytes: RAM, max_record_bytes: RAM / 2, record_class: CLASS_ANY };
    let on_disk = DiskOptions::new(DISK, RAM, Durability::Group);
    let store = Store::durable(in_memory, folder.path(), on_disk).unwrap();
    store.limit_tenants(RAM * share / 100, &[]);
    store.disk().unwrap().wait_recovered();
    store
}

fn put(store: &Arc<Store>, tenant: u64, numbers: Range<u64>) {
    for number in numbers.clone() {
        let Offer::Wanted(mut reservation) = store.reserve_for(tenant, key(number), RECORD as u64)
        else {
            panic!("{number} is not wanted");
        };
        assert!(reservation.write(0, &record(&key(number), RECORD)).unwrap());
        assert_eq!(reservation.commit(), ItemStatus::Accepted);
    }
    let keys: Vec<_> = numbers.map(key).collect();
    let durable = store.wait_durable(&keys);
    assert!(durable.iter().all(|is_durable| *is_durable), "{durable:?} {:?}", store.disk_stats());
}

/// Three times what the disk holds, by four tenants in turns.
fn flood(store: &Arc<Store>, from: u64) {
    let round = 16;
    for turn in 0..3 * DISK / (round * RECORD as u64) {
        let first = from + turn * round;
        put(store, FLOODERS.start + turn % 4, first..first + round);
    }
}

fn on_disk(store: &Store, numbers: Range<u64>) -> u64 {
    let disk = store.disk().unwrap();
    numbers.map(|number| u64::from(disk.locate(&key(number)).is_some())).sum()
}

#[test]
fn f41_a_flood_by_four_leaves_a_fifth_what_is_in_its_share_and_without_shares_nothing() {
    for (share, least, most) in [(SHARE, KEPT, KEPT), (0, 0, 4)] {
        let folder = Folder::new();
        let store = open(&folder, share);
        put(&store, VICTIM, 0..KEPT);
        flood(&store, 1000);
        let left = on_disk(&store, 0..KEPT);
        assert!((least..=most).contains(&left), "{share}: {left} of {KEPT} are left");
        assert!(store.disk_stats().used_bytes <= DISK, "the budget holds");
        assert!(store.disk_stats().evicted > 500);
        if share == 0 {
            continue;
        }
        // Whose they are is known after a restart, too.
        assert_eq!(store.disk().unwrap().used_by(VICTIM), KEPT * RECORD as u64);
        drop(store);
        let store = open(&folder, share);
        assert_eq!(store.disk().unwrap().used_by(VICTIM), KEPT * RECORD as u64);
        flood(&store, 100_000);
        assert_eq!(on_disk(&store, 0..KEPT), KEPT);
        for number in 0..KEPT {
            assert_eq!(&*store.pin(&key(number)).unwrap(), record(&key(number), RECORD));
        }
        assert!(store.used_by(VICTIM) > 0, "read back it is the tenant's in memory, too");
    }
}

#[test]
fn records_among_those_of_others_move_when_their_segment_goes() {
    let folder = Folder::new();
    let store = open(&folder, SHARE);
    // One in ten of what is written.
    for turn in 0..KEPT {
        put(&store, VICTIM, turn..turn + 1);
        let first = 1000 + turn * 9;
        put(&store, FLOODERS.start + turn % 4, first..first + 9);
    }
    flood(&store, 10_000);
    assert_eq!(on_disk(&store, 0..KEPT), KEPT);
    assert!(store.disk_stats().used_bytes <= DISK);
}

#[test]
fn who_is_over_its_share_gives_way_and_so_does_everybody_where_nobody_is() {
    let folder = Folder::new();
    let store = open(&folder, SHARE);
    // The victim's own flood takes from the victim first.
    put(&store, FLOODERS.start, 0..KEPT);
    for turn in 0..60 {
        put(&store, VICTIM, 1000 + turn * 16..1016 + turn * 16);
    }
    assert_eq!(on_disk(&store, 0..KEPT), KEPT);
    assert!(on_disk(&store, 1000..1960) > 100, "what nobody keeps is anybody's");
    // Shares of more than the disk holds: nobody is over, and the oldest goes.
    store.limit_tenants(RAM, &[]);
    for turn in 0..60 {
        put(&store, VICTIM, 5000 + turn * 16..5016 + turn * 16);
    }
    assert!(on_disk(&store, 0..KEPT) < 4);
    assert!(store.disk_stats().used_bytes <= DISK);
}

#[test]
fn f41_a_thousand_made_up_names_of_one_credential_take_nothing_from_another_on_disk() {
    const KEPT_OF_ONE: u64 = 90;
    let folder = Folder::new();
    // What each tenant keeps is so much that nobody is over it.
    let store = open(&folder, 95);
    // What waits to be written is bounded.
    for first in (0..KEPT_OF_ONE).step_by(15) {
        put(&store, tenant_of(2, 77), first..first + 15);
    }
    for salt in 1..=1000 {
        let first = 10_000 + salt * 2;
        put(&store, tenant_of(1, salt << 20), first..first + 2);
    }
    assert!(store.disk_stats().evicted > 500, "{:?}", store.disk_stats());
    assert_eq!(on_disk(&store, 0..KEPT_OF_ONE), KEPT_OF_ONE);
    drop(store);
    // Whose they are is known after a restart, too.
    let store = open(&folder, 95);
    for salt in 1..=300 {
        let first = 100_000 + salt * 2;
        put(&store, tenant_of(1, salt << 20), first..first + 2);
    }
    assert_eq!(on_disk(&store, 0..KEPT_OF_ONE), KEPT_OF_ONE);
}
