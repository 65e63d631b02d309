//! Owns the proof that segments whose file cannot be removed, or whose write failed, stop neither the writer nor the archive.

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;

/// Failpoints hold for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn f143_a_segment_that_was_closed_by_a_failed_write_is_archived() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, far) = (Folder::new(), Folder::new());
    let url = format!("file://{}", far.path().display());
    let (archive, after) = (archive::open(&url).unwrap(), Duration::from_secs(3600));
    let archive = ArchiveOptions { url, archive, max_bytes: 64 * MIB, after };
    let ram = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let mut options = DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group);
    options.retry = Duration::from_millis(20);
    let disk = Disk::open_archived(folder.path(), options, Some(archive)).unwrap();
    let store = Store::on_disk(ram, disk).unwrap();
    let put_durably = |number: u64| {
        let key = key(number);
        assert_eq!(put(&store, key, &record(&key, RECORD)), ItemStatus::Accepted);
        let patience = Instant::now() + Duration::from_secs(20);
        while !store.are_durable(&[key])[0] {
            assert!(Instant::now() < patience, "{:?}", store.disk_stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    put_durably(0);
    fail::cfg("disk.written", "1*return").unwrap();
    put_durably(1);
    fail::remove("disk.written");
    let stats = store.disk_stats();
    assert!(stats.alarms > 0 && stats.segments == 2, "the write failed: {stats:?}");
    // The second segment is open still; the first one was closed early, and goes to the archive by itself.
    let patience = Instant::now() + Duration::from_secs(20);
    while store.disk_stats().archive.unwrap().segments == 0 {
        assert!(Instant::now() < patience, "{:?}", store.disk_stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn others_go_instead_of_a_segment_whose_file_cannot_be_removed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, far) = (Folder::new(), Folder::new());
    let url = format!("file://{}", far.path().display());
    let (archive, after) = (archive::open(&url).unwrap(), Duration::from_millis(50));
    let archive = ArchiveOptions { url, archive, max_bytes: 64 * MIB, after };
    let ram = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let mut options = DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group);
    options.retry = Duration::from_millis(20);
    let disk = Disk::open_archived(folder.path(), options, Some(archive)).unwrap();
    // A writer that is stuck could not be ended, should an assertion fail.
    let store = ManuallyDrop::new(Store::on_disk(ram, disk).unwrap());
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let patience = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < patience, "{what}: {:?}", store.disk_stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let put_ten = |first: u64| {
        let keys: Vec<_> = (first..first + 10).map(key).collect();
        for key in &keys {
            assert_eq!(put(&store, *key, &record(key, RECORD)), ItemStatus::Accepted);
        }
        until("they are durable", &|| store.are_durable(&keys).iter().all(|is| *is));
        store.disk().unwrap().drain();
        until("the archive has them", &|| store.disk_stats().archive.unwrap().pending == 0);
    };
    (0..60).step_by(10).for_each(put_ten);
    // No user, not even root, unlinks a directory.
    let oldest = folder.segments().remove(0);
    std::fs::remove_file(&oldest).unwrap();
    std::fs::create_dir(&oldest).unwrap();
    (60..160).step_by(10).for_each(put_ten);
    let stats = store.disk_stats();
    assert!(stats.alarms > 0 && stats.used_bytes <= stats.max_bytes, "{stats:?}");
    assert!(stats.archive.unwrap().remote_segments > 0, "others went");
    drop(ManuallyDrop::into_inner(store));
}
