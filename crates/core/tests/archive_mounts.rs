//! Owns the proof that an archive which is away, or another's, costs misses and no record, and is found again without a restart.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, ArchiveStats, Disk, DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;

struct Vault(Arc<Store>);

impl Vault {
    fn open(disk: &Folder, place: &Path) -> Self {
        let url = format!("file://{}", place.display());
        let (archive, after) = (archive::open(&url).unwrap(), Duration::from_millis(50));
        let archive = ArchiveOptions { url, archive, max_bytes: 64 * MIB, after };
        let ram = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
        let mut options = DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group);
        options.retry = Duration::from_millis(20);
        let disk = Disk::open_archived(disk.path(), options, Some(archive)).unwrap();
        Self(Store::on_disk(ram, disk).unwrap())
    }

    /// Leaves 300 records in the archive at `place`, the newest of them on the disk, too.
    fn leave(disk: &Folder, place: &Path) {
        Self::open(disk, place).recovered().fill();
    }

    /// Once it has tried to read the segments of the previous run.
    fn recovered(self) -> Self {
        self.0.disk().unwrap().wait_recovered();
        self
    }

    fn archive(&self) -> ArchiveStats {
        self.0.disk_stats().archive.unwrap()
    }

    fn records(&self) -> u64 {
        self.0.disk_stats().records
    }

    /// Stores more than the disk holds, all of it in the archive.
    fn fill(&self) {
        for first in (0..300).step_by(10) {
            let keys: Vec<_> = (first..first + 10).map(key).collect();
            for key in &keys {
                assert_eq!(put(&self.0, *key, &record(key, RECORD)), ItemStatus::Accepted);
            }
            until("they are durable", || self.0.are_durable(&keys).iter().all(|is| *is));
            self.0.disk().unwrap().drain();
            until("all is in the archive", || self.archive().pending == 0);
        }
        assert!(self.archive().remote_segments > 5, "{:?}", self.archive());
    }

    /// How many of the records are served.
    fn served(&self) -> usize {
        let keys = (0..300).map(key);
        keys.filter(|key| {
            let pin = self.0.pin(key);
            pin.is_some_and(|pin| *pin == *record(key, RECORD))
        })
        .count()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A place where a disk is mounted and unmounted: the folder behind the path becomes another, and stays for who has it open.
struct Mount {
    place: Folder,
    away: Folder,
}

impl Mount {
    fn new() -> Self {
        Self { place: Folder::new(), away: Folder::new() }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    /// Shows the empty folder below the mount.
    fn unmount(&self) {
        std::fs::rename(self.path(), self.away.path().join("mounted")).unwrap();
        std::fs::create_dir(self.path()).unwrap();
    }

    fn mount(&self) {
        std::fs::rename(self.path(), self.away.path().join("below")).unwrap();
        std::fs::rename(self.away.path().join("mounted"), self.path()).unwrap();
    }
}

#[test]
fn a_disk_mounted_after_the_start_is_found_and_no_record_was_dropped() {
    let (disk, mount) = (Folder::new(), Mount::new());
    Vault::leave(&disk, mount.path());
    mount.unmount();
    let vault = Vault::open(&disk, mount.path()).recovered();
    let all = vault.records();
    assert_eq!(all, 300);
    let served = vault.served();
    assert!((100..300).contains(&served), "those on this disk: {served}");
    until("it says so", || vault.archive().trouble.contains("is its place mounted"));
    assert_eq!(vault.records(), all, "a miss drops no record");
    assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), 0, "nothing is written there");

    mount.mount();
    until("it is well", || !vault.archive().is_failing);
    assert_eq!((vault.served(), vault.records()), (300, all));
    assert_eq!(vault.0.disk_stats().quarantined, 0);
}

#[test]
fn a_place_that_is_gone_is_not_made_and_is_found_when_it_is_back() {
    let (disk, mount) = (Folder::new(), Mount::new());
    Vault::leave(&disk, mount.path());
    mount.unmount();
    let vault = Vault::open(&disk, mount.path()).recovered();
    std::fs::remove_dir(mount.path()).unwrap();
    assert!(vault.served() < 300);
    until("it says so", || vault.archive().trouble.contains("No such file"));
    assert!(!mount.path().exists());
    std::fs::create_dir(mount.path()).unwrap();
    mount.mount();
    until("it is well", || !vault.archive().is_failing);
    assert_eq!((vault.served(), vault.records()), (300, 300));
}

/// A new disk knows the segments by name alone, and reads their footers in the archive.
#[test]
fn segments_that_a_new_disk_has_not_read_yet_wait_for_the_archive() {
    let (disk, mount, new) = (Folder::new(), Mount::new(), Folder::new());
    Vault::leave(&disk, mount.path());
    drop(Vault::open(&new, mount.path()).recovered());
    for entry in std::fs::read_dir(new.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|extension| extension == "idx") {
            std::fs::write(&entry, "").unwrap();
        }
    }
    mount.unmount();
    let vault = Vault::open(&new, mount.path()).recovered();
    assert_eq!(vault.records(), 0);
    mount.mount();
    until("all are found", || vault.records() == 300);
    assert_eq!(vault.served(), 300);
}

#[test]
fn what_the_right_archive_lacks_is_forgotten_and_what_is_damaged_there_too() {
    let (disk, mount, new) = (Folder::new(), Mount::new(), Folder::new());
    Vault::leave(&disk, mount.path());
    let vault = Vault::open(&new, mount.path()).recovered();
    assert_eq!(vault.records(), 300);
    let objects = mount.place.segments();
    std::fs::remove_file(&objects[0]).unwrap();
    let mut bytes = std::fs::read(&objects[1]).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&objects[1], bytes).unwrap();
    let served = vault.served();
    let stats = vault.0.disk_stats();
    assert!((250..299).contains(&served), "{served}");
    assert_eq!((stats.records, stats.quarantined), (served as u64, 1));
}
