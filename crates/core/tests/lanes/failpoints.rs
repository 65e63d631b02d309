//! Owns the proof that a step which fails, waits or crashes at any failpoint loses nothing that was called durable, and never
//! brings other bytes. Each runs in a process of its own: this program again, which is to die in the end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tierkv_core::codec::Codec;
use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::failpoint::FAILPOINTS;
use tierkv_core::lane::client::Outcome;
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, RecordKey, Store};

use super::folder::Folder;
use super::stand::{ACCEPTED, Engine, Lanes, MIB, NAMESPACE, Shape, Vault, bytes_of, key, timing};

const SIGABRT: i32 = 6;
const ROUNDS: u8 = 250;
const ATTEMPTS: u32 = 10;
/// The failpoint, and the folder to work in.
const POINT: &str = "TIERKV_TEST_FAILPOINT";
const FOLDER: &str = "TIERKV_TEST_FOLDER";
/// Failpoints where records are read in the other side's memory.
const LENT: [&str; 2] = ["lane.copy", "lane.read"];
/// Reached in order: who dies at the end has failed and waited before.
const SCRIPT: &str = "16*off->3*return->12*off->2*sleep(50)->12*off->1*return(abort)";
/// Rounds that must have ended well before the process dies; with fewer it is void.
const FLOOR: usize = 8;

fn open(folder: &Path) -> Arc<Store> {
    let max = 32 * MIB as u64;
    let ram = Options { max_bytes: max, max_record_bytes: max / 4, record_class: CLASS_ANY };
    let disk = DiskOptions {
        segment_bytes: MIB as u64 / 4,
        retry: Duration::from_millis(2),
        ..DiskOptions::new(64 * MIB as u64, max, Durability::Sync)
    };
    Store::durable(ram, folder, disk).unwrap()
}

/// Beside the folder, in which the store alone may write.
fn ledger_of(folder: &Path) -> PathBuf {
    folder.with_extension("ledger")
}

fn socket_of(folder: &Path) -> PathBuf {
    folder.with_extension("sock")
}

/// A session that serves; one that a failpoint ends at once is opened again.
fn connect(vault: &Vault, lent: Option<&Engine>) -> Lanes {
    loop {
        let lanes = match lent {
            Some(engine) => {
                let (rails, outbox) =
                    (vec![vault.address.as_str().into()], Arc::clone(&engine.outbox));
                Lanes::of(rails, vault.token(), 2, timing(), None, Some(outbox))
            }
            None => Lanes::dial(&vault.address, vault.token(), 2, timing()),
        };
        if lanes.next() == (0, Outcome::Up) {
            return lanes;
        }
    }
}

/// The outcome of one request; `None` when the session ended first.
fn done(lanes: &Lanes, request: u32) -> Option<Vec<u8>> {
    loop {
        match lanes.next() {
            (of, Outcome::Done(statuses, ..)) if of == request => return Some(statuses),
            (_, Outcome::Down(_)) => return None,
            _ => {}
        }
    }
}

/// Stores a record, writes down whether it is durable, and reads it and an older one back.
fn round(lanes: &Lanes, engine: &Engine, number: u8, ledger: &mut File) -> Option<()> {
    let record = engine.record(number, Codec::Raw);
    let stored = done(lanes, lanes.client.store(&NAMESPACE, vec![record]).ok()?)?;
    if stored == [ItemStatus::Durable as u8] {
        ledger.write_all(&[number]).unwrap();
    }
    let numbers = [number, number / 2 + 1];
    let (targets, leases) = engine.targets(&numbers, Codec::Raw);
    let fetched = lanes.client.fetch(targets).ok().and_then(|request| done(lanes, request));
    for ((number, lease), status) in numbers.iter().zip(leases).zip(fetched.iter().flatten()) {
        if *status == ACCEPTED {
            let wanted = engine.page(&engine.record(*number, Codec::Raw), Codec::Raw);
            assert!(engine.arena.peek(lease.slot).unwrap() == wanted, "never other bytes");
        }
        engine.arena.slots().release(lease).unwrap();
    }
    fetched.map(drop)
}

/// The process that is to die; without its environment it has nothing to do.
#[test]
fn a_process_that_dies_at_a_failpoint() {
    let (Ok(point), Ok(folder)) = (std::env::var(POINT), std::env::var(FOLDER)) else { return };
    let folder = Path::new(&folder);
    let engine = Engine::new(Shape::Strided, 40);
    let lent = LENT.contains(&&*point).then_some(&engine);
    let vault = match lent {
        Some(_) => {
            Vault::at(&format!("unix:{}", socket_of(folder).display()), open(folder), |_| {})
        }
        None => Vault::over(open(folder), |_| {}),
    };
    let mut ledger = File::create(ledger_of(folder)).unwrap();
    fail::cfg(&point, SCRIPT).unwrap();
    let mut lanes = connect(&vault, lent);
    for number in 1..ROUNDS {
        if round(&lanes, &engine, number, &mut ledger).is_none() {
            lanes = connect(&vault, lent);
        }
    }
}

/// A folder in which a process died at the failpoint. One that ended before it came there proves nothing, and is tried again.
fn died_at(point: &str) -> Folder {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let folder = Folder::new();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failpoints::a_process_that_dies_at_a_failpoint", "--nocapture"])
            .env(POINT, point)
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The process leaves its socket.
        let _ = fs::remove_file(socket_of(folder.path()));
        assert!(!said.contains("panicked"), "{point}: {said}");
        if output.status.signal() == Some(SIGABRT) {
            return folder;
        }
        // While the disk fails, records are taken at once: the rounds may be over before the last batch comes.
        let _ = fs::remove_file(ledger_of(folder.path()));
    }
    panic!("{point} did not act in {ATTEMPTS} runs: void. {said}");
}

fn dies_and_is_found_again(point: &str) {
    let folder = died_at(point);

    let ledger = ledger_of(folder.path());
    let durable = fs::read(&ledger).unwrap();
    fs::remove_file(ledger).unwrap();
    assert!(folder.segments().len() > 1, "{point}: one segment: void");
    assert!(durable.len() > FLOOR, "{point}: {} durable: void", durable.len());
    let store = open(folder.path());
    store.disk().unwrap().wait_recovered();
    let engine = Engine::new(Shape::Strided, 4);
    for number in durable {
        let of = RecordKey::from_packed(NAMESPACE, &key(number));
        let pin = store.pin(&of);
        let record = bytes_of(&engine.record(number, Codec::Raw));
        assert!(
            pin.is_some_and(|pin| *pin == *record),
            "{point}: {number} was durable and is lost"
        );
    }
}

fn each(is_it: impl Fn(&str) -> bool) {
    let mut count = 0;
    for (point, _) in FAILPOINTS {
        if is_it(point) {
            count += 1;
            dies_and_is_found_again(point);
        }
    }
    assert!(count > 1);
}

#[test]
fn f13_a_disk_fails_waits_and_crashes_at_any_failpoint() {
    each(|point| point.starts_with("disk."));
}

#[test]
fn a_lane_fails_waits_and_crashes_at_any_failpoint() {
    each(|point| !point.starts_with("disk."));
}
