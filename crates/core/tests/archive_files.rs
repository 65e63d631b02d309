//! Owns the proof that an archived segment whose file cannot be removed does not stop the writer.

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;

#[test]
fn others_go_instead_of_a_segment_whose_file_cannot_be_removed() {
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
