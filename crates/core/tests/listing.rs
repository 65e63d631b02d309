//! Owns the proof that a listing is whole, reads slow tiers side by side, and does not scan all records for each page.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod folder;
#[path = "support/lru.rs"]
mod lru;
#[path = "support/records.rs"]
mod records;
#[path = "support/shaky.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod shaky;
#[path = "support/watched.rs"]
mod watched;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use folder::Folder;
use lru::LruPolicy;
use records::{key, put, record};
use shaky::Shaky;
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::limits::STORE_LIST_MAX;
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{
    CLASS_ANY, ItemStatus, Listed, Options, Policy, RecordKey, Store, Stored,
};
use watched::{Watch, WatchedDisk};

const MIB: u64 = 1 << 20;
const ROW_BYTES: usize = 84;

fn in_namespace(namespace: u8, number: u64) -> RecordKey {
    RecordKey { namespace: [namespace; 32], ..key(number) }
}

/// All rows with their namespaces, page by page, and the number of pages.
fn list(store: &Store, of: Listed) -> (Vec<(u8, Vec<u8>)>, usize) {
    let (mut rows, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = store.list(CLASS_KV, after.as_ref(), of);
        let Some(last) = page.last else { return (rows, pages) };
        pages += 1;
        assert!(page.rows.len() <= STORE_LIST_MAX * ROW_BYTES);
        let (packed, rest) = page.rows.as_chunks::<ROW_BYTES>();
        assert!(rest.is_empty());
        rows.extend(packed.iter().map(|row| (page.namespace[0], row.to_vec())));
        after = Some(last);
    }
}

/// Says how often all keys were looked at.
struct Counting(LruPolicy, Arc<AtomicUsize>);

impl Policy for Counting {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn namespaces(&self) -> usize {
        self.0.namespaces()
    }
    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }
    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        self.0.peek(key)
    }
    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        self.0.touch(key)
    }
    fn insert(&mut self, key: RecordKey, record: Stored, tenant: u16) {
        self.0.insert(key, record, tenant);
    }
    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        self.0.remove(key)
    }
    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        self.1.fetch_add(1, Ordering::AcqRel);
        self.0.keys(matches)
    }
    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)> {
        self.0.hold(bytes)
    }
}

#[test]
fn pages_do_not_each_scan_all_records_and_each_record_is_listed_once() {
    let options = Options { max_bytes: 64 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let scans = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&scans);
    let make = |room| Box::new(Counting(LruPolicy::new(room), counted)) as Box<dyn Policy>;
    let store = Arc::new(Store::with_policy(options, make).unwrap());
    let all: Vec<_> =
        (0..6000).map(|number| in_namespace(1 + u8::from(number > 4000), number)).collect();
    for key in &all {
        assert_eq!(put(&store, *key, &record(key, 500)), ItemStatus::Accepted);
    }
    scans.store(0, Ordering::Release);
    let (rows, pages) = list(&store, Listed::All);
    // One scan finds the keys of all pages, another one that nothing follows.
    assert_eq!((pages, scans.load(Ordering::Acquire)), (6, 2));
    let listed: BTreeSet<_> = rows.iter().map(|(of, row)| (*of, &row[..32])).collect();
    let stored: BTreeSet<_> =
        all.iter().map(|key| (key.namespace[0], &key.block_hash[..])).collect();
    assert_eq!(rows.len(), all.len());
    assert_eq!(listed, stored);
    // What goes between two pages is not listed.
    let first = store.list(CLASS_KV, None, Listed::All);
    let _ = store.flush(tierkv_core::store::Scope::default());
    let next = store.list(CLASS_KV, first.last.as_ref(), Listed::All);
    assert!(!first.rows.is_empty() && next.rows.is_empty());
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Memory for few of the records.
const RAM: Options = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
const RECORDS: u64 = 300;
const SLOW_MS: u64 = 40;
/// Reads at once that show that they do not wait for one another.
const READS_LEAST: u64 = 16;

fn put_all(store: &Arc<Store>) {
    for key in (0..RECORDS).map(key) {
        let _ = put(store, key, &record(&key, 20_000));
        until("it is written", || store.disk().unwrap().locate(&key).is_some());
    }
}

fn assert_all_are_listed(store: &Store) {
    let (rows, _) = list(store, Listed::All);
    assert_eq!(rows.len() as u64, RECORDS);
    assert!(rows.iter().all(|(_, row)| row[68..72] == [0; 4]), "each header was read");
}

#[test]
fn f148_headers_on_a_slow_disk_are_read_side_by_side() {
    let (folder, watch) = (Folder::new(), Arc::<Watch>::default());
    let options = DiskOptions::new(64 * MIB, 16 * MIB, Durability::Group);
    let disk = Disk::start(WatchedDisk::open(folder.path(), &watch), options).unwrap();
    let store = Store::on_disk(RAM, disk).unwrap();
    put_all(&store);
    watch.slow_ms.store(SLOW_MS, Ordering::Release);
    assert_all_are_listed(&store);
    let most = watch.reading_most.load(Ordering::Acquire);
    assert!(most >= READS_LEAST, "{most} reads at once");
}

#[test]
fn f148_headers_in_a_slow_archive_are_read_side_by_side() {
    let far = Folder::new();
    let archive = Shaky::at(&far);
    let open = |folder: &Folder| {
        let (url, after) = ("s3://test".to_owned(), Duration::from_millis(50));
        let archive = ArchiveOptions { url, archive: archive.clone(), max_bytes: 64 * MIB, after };
        let options = DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group);
        let disk = Disk::open_archived(folder.path(), options, Some(archive)).unwrap();
        let store = Store::on_disk(RAM, disk).unwrap();
        store.disk().unwrap().wait_recovered();
        store
    };
    let first = Folder::new();
    let store = open(&first);
    put_all(&store);
    store.disk().unwrap().drain();
    until("all is in the archive", || {
        let archived = store.disk_stats().archive.unwrap();
        archived.pending == 0 && archived.segments > 0
    });
    drop(store);
    // Its disk is lost, so that the archive alone has them.
    let second = Folder::new();
    let store = open(&second);
    archive.slow_ms.store(SLOW_MS, Ordering::Release);
    archive.reading_most.store(0, Ordering::Release);
    assert_all_are_listed(&store);
    let most = archive.reading_most.load(Ordering::Acquire);
    assert!(most >= READS_LEAST, "{most} reads at once");
}
