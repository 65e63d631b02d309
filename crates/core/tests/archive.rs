//! Owns the proof of the archive: a lost disk comes back from it, a full one reads through it, what was flushed never returns.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;
#[path = "support/shaky.rs"]
mod shaky;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use shaky::Shaky;
use tierkv_core::archive::{self, Archive};
use tierkv_core::disk::{ArchiveOptions, ArchiveStats, Disk, DiskOptions, Durability};
use tierkv_core::error::Result;
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Scope, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;
const DISK: u64 = 8 * MIB;
const ALL: Scope = Scope { namespace: None, record_class: None, salt: None };

struct Vault {
    store: Arc<Store>,
    /// A disk of its own.
    _disk: Option<Folder>,
}

impl Vault {
    fn open(disk: &Folder, archive: &Arc<Shaky>) -> Self {
        Self::with(disk, archive, 64 * MIB).unwrap()
    }

    /// On an empty disk.
    fn anew(archive: &Arc<Shaky>) -> Self {
        let disk = Folder::new();
        let Self { store, .. } = Self::open(&disk, archive);
        Self { store, _disk: Some(disk) }
    }

    fn with(disk: &Folder, archive: &Arc<Shaky>, max_bytes: u64) -> Result<Self> {
        Self::at_url(disk, archive, max_bytes, "s3://test")
    }

    fn at_url(disk: &Folder, archive: &Arc<Shaky>, max_bytes: u64, url: &str) -> Result<Self> {
        Self::sized(disk, archive, DISK, max_bytes, url)
    }

    /// `disk_bytes`: budget of the disk; segments are as large as those of `DISK`.
    fn sized(
        disk: &Folder,
        archive: &Arc<Shaky>,
        disk_bytes: u64,
        max_bytes: u64,
        url: &str,
    ) -> Result<Self> {
        let (url, archive) = (url.to_owned(), Arc::clone(archive) as Arc<dyn Archive>);
        let after = Duration::from_millis(50);
        let archive = ArchiveOptions { url, archive, max_bytes, after };
        // Less memory than disk: what is asked for comes from below.
        let ram = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
        let mut options = DiskOptions::new(DISK, 16 * MIB, Durability::Group);
        options.max_bytes = disk_bytes;
        options.retry = Duration::from_millis(20);
        let disk = Disk::open_archived(disk.path(), options, Some(archive))?;
        let store = Store::on_disk(ram, disk)?;
        store.disk().unwrap().wait_recovered();
        Ok(Self { store, _disk: None })
    }

    fn put(&self, numbers: std::ops::Range<u64>) {
        let keys: Vec<_> = numbers.map(key).collect();
        // Memory must have room for those that wait for the disk.
        for keys in keys.chunks(10) {
            for key in keys {
                assert_eq!(put(&self.store, *key, &record(key, RECORD)), ItemStatus::Accepted);
            }
            until("they are durable", || self.store.are_durable(keys).iter().all(|is| *is));
        }
    }

    fn archive(&self) -> ArchiveStats {
        self.store.disk_stats().archive.unwrap()
    }

    /// All that was stored is in the archive.
    fn settle(&self) {
        let records = self.store.disk_stats().records;
        self.store.disk().unwrap().drain();
        until("all is in the archive", || {
            let stats = self.archive();
            stats.pending == 0 && (stats.segments > 0 || records == 0)
        });
    }

    fn assert_served(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let pin = self.store.pin(&key(number));
            let pin = pin.unwrap_or_else(|| panic!("{number} is missing"));
            assert_eq!(&*pin, record(&key(number), RECORD), "{number}");
        }
    }

    fn holds(&self, number: u64) -> bool {
        self.store.contains(&key(number)) || self.store.pin(&key(number)).is_some()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn objects(folder: &Folder) -> usize {
    folder.segments().len()
}

#[test]
fn f80_a_lost_disk_comes_back_from_the_archive() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..60);
    vault.settle();
    assert_eq!(vault.archive().failures, 0);
    drop(vault);

    let new = Folder::new();
    let vault = Vault::open(&new, &archive);
    assert_eq!(vault.store.disk_stats().durable_records, 60);
    vault.assert_served(0..60);
    let stats = vault.archive();
    assert!(stats.read >= 60 && stats.remote_segments == stats.segments, "{stats:?}");
    // Its numbers go on behind those that are there.
    vault.put(60..80);
    vault.settle();
    drop(vault);
    assert!(!new.segments().is_empty());

    // Footers lie here, too: this start asks the archive for nothing.
    archive.set_down(true);
    let vault = Vault::open(&new, &archive);
    assert_eq!(vault.store.disk_stats().records, 80);
    vault.assert_served(60..80);
    archive.set_down(false);
    vault.assert_served(0..60);
    drop(vault);
    let vault = Vault::anew(&archive);
    vault.assert_served(0..80);
}

#[test]
fn what_was_flushed_does_not_come_back_from_the_archive() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..20);
    vault.settle();
    // The archive has these, and the next ones are not there yet.
    vault.put(20..24);
    let flushed = vault.store.flush(ALL);
    assert_eq!(flushed.records, 24);
    until("the archive knows of the flush", || vault.store.flush(ALL).is_durable);
    vault.put(24..30);
    vault.settle();
    drop(vault);

    for _ in 0..2 {
        let new = Folder::new();
        let vault = Vault::open(&new, &archive);
        assert_eq!(vault.store.disk_stats().records, 6);
        assert!((0..24).all(|number| !vault.holds(number)));
        vault.assert_served(24..30);
        until("objects without a record go", || {
            let stats = vault.archive();
            let is_small = stats.used_bytes < 12 * RECORD as u64;
            is_small && objects(&far) as u64 == stats.segments
        });
    }
    let vault = Vault::anew(&archive);
    until("the archive knows of the flush", || vault.store.flush(ALL).is_durable);
    drop(vault);
    assert_eq!(Vault::anew(&archive).store.disk_stats().records, 0);
}

/// The back-up's directory notes objects that the flush removed from the archive, and no flush.
#[test]
fn f210_a_directory_restored_from_a_back_up_is_archived_again() {
    for had_flush in [false, true] {
        let (disk, far, kept) = (Folder::new(), Folder::new(), Folder::new());
        let archive = Shaky::at(&far);
        let vault = Vault::open(&disk, &archive);
        if had_flush {
            vault.put(90..91);
            vault.store.flush(ALL);
        }
        vault.put(0..40);
        vault.settle();
        drop(vault);
        for file in std::fs::read_dir(disk.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), Path::new(kept.path()).join(file.file_name())).unwrap();
        }
        let vault = Vault::open(&disk, &archive);
        assert_eq!(vault.store.flush(ALL).records, 40);
        until("the flush is known", || vault.store.flush(ALL).is_durable && objects(&far) == 0);
        drop((vault, disk));

        let vault = Vault::open(&kept, &archive);
        assert_eq!(vault.store.disk_stats().records, 40);
        until("its segments are in the archive", || {
            vault.archive().pending == 0 && objects(&far) as u64 == vault.archive().segments
        });
        drop((vault, kept));
        Vault::anew(&archive).assert_served(0..40);
    }
}

#[test]
fn an_archive_that_forbids_removals_gets_segments() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    archive.keeps_all.store(true, Ordering::Release);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..20);
    vault.settle();
    assert_eq!(vault.archive().failures, 0);
    drop((vault, disk));
    Vault::anew(&archive).assert_served(0..20);
}

#[test]
fn f210_what_another_program_removed_from_the_archive_is_sent_again_or_forgotten() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..200);
    vault.settle();
    let stats = vault.archive();
    assert!(stats.remote_segments > 0 && stats.remote_segments < stats.segments, "{stats:?}");
    drop(vault);
    for name in far.segments() {
        std::fs::remove_file(Path::new(far.path()).join(name)).unwrap();
    }
    let vault = Vault::open(&disk, &archive);
    until("what the disk has is sent again", || {
        let now = vault.archive();
        now.pending == 0
            && now.segments == stats.segments - stats.remote_segments
            && objects(&far) as u64 == now.segments
    });
    assert!(!vault.holds(0), "only the archive had it");
    vault.assert_served(199..200);
}

#[test]
fn a_flush_that_the_archive_does_not_know_is_not_called_durable() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..10);
    vault.settle();
    archive.set_down(true);
    let flushed = vault.store.flush(ALL);
    assert_eq!((flushed.records, flushed.is_durable), (10, false));
    let stats = vault.archive();
    assert!(stats.is_failing && stats.failures > 0 && stats.trouble.contains("503"), "{stats:?}");
    drop(vault);
    // It is told at the next start, and after that a lost disk brings nothing back.
    archive.set_down(false);
    let vault = Vault::open(&disk, &archive);
    until("the object goes", || objects(&far) == 0);
    drop(vault);
    assert_eq!(Vault::anew(&archive).store.disk_stats().records, 0);
}

#[test]
fn a_flush_counts_as_recorded_once_the_archive_has_what_the_disk_could_not_write_at_first() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..10);
    vault.settle();
    let is_recorded = || vault.store.disk_stats().are_flushes_recorded;
    until("no flush is open", is_recorded);
    let tombstones = disk.path().join("tombstones");
    std::fs::create_dir(&tombstones).unwrap();
    archive.set_down(true);
    assert!(!vault.store.flush(ALL).is_durable);
    assert!(!is_recorded());
    std::fs::remove_dir(&tombstones).unwrap();
    until("the disk has it", || {
        vault.put(20..21);
        tombstones.is_file()
    });
    assert!(!is_recorded(), "the archive has not");
    archive.set_down(false);
    until("the archive has it, too", is_recorded);
    drop(vault);
    let vault = Vault::anew(&archive);
    assert!((0..10).all(|number| !vault.holds(number)));
}

#[test]
fn a_full_disk_leaves_to_the_archive_and_reads_through_it() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    for first in (0..400).step_by(10) {
        vault.put(first..first + 10);
        vault.settle();
        let stats = vault.store.disk_stats();
        assert!(stats.used_bytes <= stats.max_bytes, "{stats:?}");
    }
    let stats = vault.store.disk_stats();
    assert_eq!((stats.records, stats.evicted, stats.alarms), (400, 0, 0), "{stats:?}");
    assert!(vault.archive().remote_segments > 10);
    vault.assert_served(0..400);
    assert_eq!(vault.store.disk_stats().quarantined, 0);
    // The newest are on this disk: they need no archive.
    archive.set_down(true);
    vault.assert_served(390..400);
    assert!(vault.store.pin(&key(0)).is_none(), "a miss, not an error");
    let failures = vault.archive().failures;
    assert!(failures > 0 && vault.store.disk_stats().alarms == 0);
    archive.set_down(false);
    vault.assert_served(0..10);
}

#[test]
fn f106_what_only_the_archive_has_is_known_to_be_far_and_how_long_it_takes() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..60);
    vault.settle();
    let keys: Vec<_> = (0..61).map(key).collect();
    let far = |vault: &Vault| {
        let held = vault.store.contains_all(&keys);
        vault.store.far_all(&keys, &held).iter().filter(|is_far| **is_far).count()
    };
    let pace = |vault: &Vault| vault.store.disk().unwrap().archive_pace(Instant::now());
    // The archive has them, and so has the disk.
    assert_eq!((far(&vault), pace(&vault)), (0, None));
    drop(vault);

    let vault = Vault::anew(&archive);
    assert_eq!((far(&vault), pace(&vault)), (60, None));
    vault.assert_served(0..5);
    // Those lie in memory now.
    assert_eq!(far(&vault), 55);
    let known = pace(&vault).unwrap();
    assert!(known.first > Duration::ZERO && known.next <= known.first, "{known:?}");
}

#[test]
fn the_archive_keeps_to_its_bytes_and_the_oldest_go() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::with(&disk, &archive, 12 * MIB).unwrap();
    for first in (0..400).step_by(10) {
        vault.put(first..first + 10);
        vault.settle();
        let stats = vault.archive();
        assert!(stats.used_bytes <= stats.max_bytes, "{stats:?}");
    }
    let stats = vault.archive();
    assert!(stats.removed > 100 && stats.remote_segments > 0, "{stats:?}");
    assert_eq!(stats.failures, 0, "{stats:?}");
    assert!(!vault.holds(0));
    until("what went is removed there", || objects(&far) as u64 == vault.archive().segments);
    drop(vault);
    let vault = Vault::anew(&archive);
    let records = vault.store.disk_stats().records;
    assert!((100..300).contains(&records), "{records}");
    vault.assert_served(390..400);
}

#[test]
fn while_a_disk_shrinks_to_a_lowered_budget_its_archive_does_not_fail() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::sized(&disk, &archive, 4 * DISK, 4 * DISK, "s3://test").unwrap();
    vault.put(0..400);
    vault.settle();
    archive.is_torn.store(true, Ordering::Release);
    vault.put(400..420);
    drop(vault);
    archive.is_torn.store(false, Ordering::Release);
    let vault = Vault::with(&disk, &archive, DISK).unwrap();
    until("both budgets are kept", || {
        let (stats, archived) = (vault.store.disk_stats(), vault.archive());
        stats.used_bytes <= DISK && archived.used_bytes <= DISK && archived.pending == 0
    });
    let stats = vault.archive();
    assert_eq!(stats.failures, 0, "{stats:?}");
    assert!(vault.holds(419));
}

#[test]
fn f81_an_archive_that_fails_costs_what_the_disk_has_no_room_for_and_catches_up() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    archive.is_torn.store(true, Ordering::Release);
    for first in (0..200).step_by(10) {
        vault.put(first..first + 10);
        vault.store.disk().unwrap().drain();
    }
    until("an upload to break", || vault.archive().failures > 0);
    let (stats, archived) = (vault.store.disk_stats(), vault.archive());
    assert!(stats.evicted > 0 && archived.failures > 0 && archived.is_failing, "{archived:?}");
    assert_eq!((archived.segments, archived.used_bytes), (0, 0), "torn is not archived");
    assert_eq!(objects(&far), 0);
    vault.assert_served(190..200);
    archive.is_torn.store(false, Ordering::Release);
    vault.settle();
    until("it is well again", || !vault.archive().is_failing);
    let torn = || std::fs::read_dir(far.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_torn = |path: &Path| path.extension().is_some_and(|extension| extension == "new");
    until("what was torn goes with its segment", || !torn().any(|path| is_torn(&path)));
    let records = vault.store.disk_stats().records;
    drop(vault);
    let vault = Vault::anew(&archive);
    assert_eq!(vault.store.disk_stats().records, records);
    vault.assert_served(190..200);
}

#[test]
fn what_a_kill_leaves_of_an_upload_is_sent_again_or_removed() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..20);
    vault.settle();
    drop(vault);
    // All had gone up, and nothing of it had been written down.
    let notes = || std::fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().path());
    for note in notes().filter(|path| path.extension().is_some_and(|suffix| suffix == "idx")) {
        std::fs::rename(&note, note.with_extension("put")).unwrap();
    }
    // And one was evicted meanwhile.
    std::fs::remove_file(disk.segments().remove(0)).unwrap();
    let sent = objects(&far);
    let vault = Vault::open(&disk, &archive);
    vault.settle();
    until("the object of the evicted one goes", || objects(&far) == sent - 1);
    let records = vault.store.disk_stats().records;
    assert!(records < 20 && vault.archive().segments == sent as u64 - 1);
    drop(vault);
    let vault = Vault::anew(&archive);
    assert_eq!(vault.store.disk_stats().records, records);
    vault.assert_served(19..20);
}

#[test]
fn bytes_that_were_changed_in_the_archive_are_a_miss() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..10);
    vault.settle();
    drop(vault);
    let path = far.segments().remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let vault = Vault::anew(&archive);
    assert!(vault.store.pin(&key(0)).is_none());
    assert_eq!(vault.store.disk_stats().quarantined, 1);
    vault.assert_served(1..10);
    drop(vault);
    // And objects that somebody removed: their records are gone.
    for path in far.segments() {
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(Vault::anew(&archive).store.disk_stats().records, 0);
}

#[test]
fn an_archive_without_its_mark_is_asked_whether_it_is_mounted() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..10);
    vault.settle();
    // As the empty folder below a mount is.
    for entry in std::fs::read_dir(far.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    vault.put(10..20);
    vault.store.disk().unwrap().drain();
    until("it notices", || vault.archive().trouble.contains("is its place mounted"));
    vault.assert_served(0..20);
    drop(vault);
    // The remedies that the errors name: for another place, and for the one that was emptied.
    let elsewhere = Folder::new();
    let moved = Vault::at_url(&disk, &Shaky::at(&elsewhere), 64 * MIB, "s3://elsewhere");
    let refused = moved.err().unwrap().to_string();
    assert!(refused.contains("remove the file \"archive\" there"), "{refused}");
    std::fs::remove_file(Path::new(disk.path()).join("archive")).unwrap();
    let vault = Vault::open(&disk, &archive);
    vault.settle();
    drop((vault, disk));
    Vault::anew(&archive).assert_served(0..20);
}

#[test]
fn an_archive_is_one_vaults_alone() {
    let (disk, far) = (Folder::new(), Folder::new());
    let archive = Shaky::at(&far);
    let vault = Vault::open(&disk, &archive);
    vault.put(0..10);
    vault.settle();
    // A second one takes it over, as after a lost disk: the first writes there no more, and says so.
    let second = Vault::anew(&archive);
    vault.put(10..20);
    vault.store.disk().unwrap().drain();
    until("the first one notices", || vault.archive().trouble.contains("taken this archive over"));
    assert!(vault.archive().pending > 0);
    vault.assert_served(0..20);
    second.put(20..30);
    second.settle();
    drop(vault);
    // A disk with segments of its own does not mix with those of another.
    let own = Folder::new();
    let options = DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group);
    let ram = Options { max_bytes: 2 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let store = Store::durable(ram, own.path(), options).unwrap();
    put(&store, key(1), &record(&key(1), RECORD));
    drop(store);
    let refused = Vault::with(&own, &archive, MIB).err().unwrap().to_string();
    assert!(refused.contains("segments of another disk"), "{refused}");
}

#[test]
fn urls_that_cannot_be_are_refused_by_name() {
    for (url, says) in [
        ("ftp://host/x", "unknown kind"),
        ("file://relative", "not absolute"),
        ("s3:///prefix", "there is no bucket"),
        ("file:///proc/nothing", "/proc/nothing"),
    ] {
        let refused = archive::open(url).err().unwrap().to_string();
        assert!(refused.contains(says), "{url}: {refused}");
    }
}
