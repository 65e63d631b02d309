//! Owns the proof on a file system that is really full: memory serves on, and writing goes on when there is room again.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stderr, reason = "says why it did not run")]

#[expect(dead_code, reason = "segments are not looked at here")]
#[path = "support/folder.rs"]
mod folder;
#[path = "support/records.rs"]
mod records;

use std::process::Command;
use std::time::{Duration, Instant};

use folder::Folder;
use records::{key, put, record};
use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 60_000;

/// A memory file system of 6 MiB, unmounted at the end.
struct Mount(Folder);

impl Mount {
    fn new() -> Option<Self> {
        let folder = Folder::new();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(folder)),
            other => {
                eprintln!("not run: a file system cannot be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn f12_a_full_file_system_stops_writing_until_there_is_room() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.0.path();
    let options = Options { max_bytes: 16 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let retry = Duration::from_millis(20);
    let disk = DiskOptions { retry, ..DiskOptions::new(8 * MIB, 16 * MIB, Durability::Group) };
    let store = Store::durable(options, path, disk).unwrap();
    std::fs::write(path.join("others"), vec![1; 3 << 20]).unwrap();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let patience = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < patience, "{what}: {:?}", store.disk_stats());
            std::thread::sleep(Duration::from_millis(5));
        }
    };

    let keys: Vec<_> = (0..70).map(key).collect();
    for key in &keys {
        assert_eq!(put(&store, *key, &record(key, RECORD)), ItemStatus::Accepted);
    }
    until("it is full", &|| store.disk_stats().is_failing);
    assert!(store.disk_stats().alarms > 0);
    let said = store.disk_stats().trouble;
    assert!(said.contains("os error 28"), "{said:?} names the errno");
    assert_eq!(put(&store, key(70), &record(&key(70), RECORD)), ItemStatus::Accepted);
    for key in &keys {
        assert_eq!(&*store.pin(key).unwrap(), record(key, RECORD), "memory serves on");
    }
    assert_eq!(store.disk_stats().evicted, 0, "an accident costs nothing that is durable");

    std::fs::remove_file(path.join("others")).unwrap();
    until("all is written", &|| store.disk_stats().records == 71);
    assert!(store.wait_durable(&keys).iter().all(|is_durable| *is_durable));
    until("the disk is trusted again", &|| !store.disk_stats().is_failing);
}

#[test]
fn f12_a_read_only_file_system_serves_what_it_has() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.0.path();
    let options = Options { max_bytes: 16 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let retry = Duration::from_millis(20);
    let disk = DiskOptions { retry, ..DiskOptions::new(4 * MIB, 16 * MIB, Durability::Group) };
    let store = Store::durable(options, path, disk).unwrap();
    put(&store, key(0), &record(&key(0), RECORD));
    assert_eq!(store.wait_durable(&[key(0)]), [true]);
    store.disk().unwrap().drain();
    let remount = |mode: &str| {
        let ran = Command::new("mount").args(["-o", mode]).arg(path).output().unwrap();
        ran.status.success()
    };
    if !remount("remount,ro") {
        eprintln!("not run: the file system cannot be made read-only here");
        return;
    }
    for number in 1..4 {
        assert_eq!(put(&store, key(number), &record(&key(number), RECORD)), ItemStatus::Accepted);
        assert_eq!(store.wait_durable(&[key(number)]), [false], "and nobody waits for it");
        assert!(store.pin(&key(number)).is_some());
    }
    assert!(store.disk_stats().is_failing && store.disk_stats().alarms > 0);
    assert!(store.are_durable(&[key(0)]) == [true]);
    assert!(remount("remount,rw"));
    let patience = Instant::now() + Duration::from_secs(20);
    while store.wait_durable(&[key(1), key(2), key(3)]) != [true; 3] {
        assert!(Instant::now() < patience, "{:?}", store.disk_stats());
    }
}
