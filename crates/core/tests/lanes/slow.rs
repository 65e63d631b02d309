//! Owns the proof that no lane waits for a slow tier: records in memory and other requests go on, reads run side by side
//! within their bounds, and a tier that hangs costs only what must be read from it.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tierkv_core::archive::{self, Archive, Fill};
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::limits::{
    ARCHIVE_READERS_MAX, ARCHIVE_READS_AHEAD, DISK_READS_AHEAD, READ_AHEAD_SHARE,
};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, Store};

use super::faulty::{Fault, Faults, FaultyDisk};
use super::folder::Folder;
use super::records::{key, put, record};
use super::stand::{MIB, Vault, until};
use super::wires::{Wire, client_by_hand};

const RECORD: usize = 20_000;
const RAM: u64 = 16 * MIB as u64;

fn ram() -> Options {
    Options { max_bytes: RAM, max_record_bytes: RAM / 4, record_class: CLASS_ANY }
}

fn fill(store: &Arc<Store>, numbers: Range<u64>, bytes: usize) {
    for number in numbers {
        let stored = put(store, key(number), &record(&key(number), bytes));
        assert_eq!(stored, ItemStatus::Accepted);
        until(|| store.disk_stats().queued_bytes < MIB as u64);
    }
}

/// Records on a disk that can be made to hang, none of them in memory.
struct OnDisk {
    vault: Vault,
    faults: Arc<Faults>,
    _folder: Folder,
}

impl OnDisk {
    fn open(records: u64) -> Self {
        let folder = Folder::new();
        let faults = Faults::new(Fault::Hang, u64::MAX, 0);
        faults.release();
        let open = || {
            let options = DiskOptions::new(64 * MIB as u64, RAM, Durability::Group);
            let disk = Disk::start(FaultyDisk::open(folder.path(), &faults), options).unwrap();
            let store = Store::on_disk(ram(), disk).unwrap();
            store.disk().unwrap().wait_recovered();
            store
        };
        let store = open();
        fill(&store, 0..records, RECORD);
        store.disk().unwrap().drain();
        drop(store);
        Self { vault: Vault::over(open(), |_| {}), faults, _folder: folder }
    }
}

impl Drop for OnDisk {
    /// A vault whose disk hangs could not be closed, should an assertion fail.
    fn drop(&mut self) {
        self.faults.release();
    }
}

fn fetch(wire: &mut Wire, request: u32, numbers: impl IntoIterator<Item = u64>) {
    let mut body = key(0).namespace.to_vec();
    for key in numbers.into_iter().map(key) {
        let place = [key.group.to_le_bytes(), key.shard.to_le_bytes()].concat();
        body.extend([&key.block_hash[..], &place].concat());
    }
    wire.send(Frame::new(Kind::Fetch, request), &body);
}

/// The items of the next `count` frames of a fetch, all of which must be whole records, or all be missing ones.
fn items(wire: &mut Wire, request: u32, count: usize, kind: Kind) -> BTreeSet<u32> {
    let mut items = BTreeSet::new();
    while items.len() < count {
        let (frame, _) = wire.next().unwrap();
        if frame.kind == Kind::Waited {
            continue;
        }
        assert_eq!((frame.kind, frame.request), (kind, request), "item {}", frame.item);
        let is_last = frame.offset + u64::from(frame.bytes) == frame.record_bytes;
        if kind == Kind::Status || is_last {
            items.insert(frame.item);
        }
    }
    items
}

fn all(count: usize) -> BTreeSet<u32> {
    (0..u32::try_from(count).unwrap()).collect()
}

#[test]
fn f14_no_lane_waits_for_a_disk_that_hangs() {
    let on_disk = OnDisk::open(20);
    let OnDisk { vault, faults, .. } = &on_disk;
    fill(&vault.store, 100..101, RECORD);
    until(|| vault.store.disk_stats().queued == 0);
    faults.hold();
    // One lane: it must carry everything else meanwhile.
    let mut wire = client_by_hand(vault);
    fetch(&mut wire, 1, (0..20).chain([100]));
    assert_eq!(items(&mut wire, 1, 1, Kind::Chunk), BTreeSet::from([20]), "it is in memory");
    until(|| faults.hung() == DISK_READS_AHEAD as u64);
    fetch(&mut wire, 2, [100]);
    assert_eq!(items(&mut wire, 2, 1, Kind::Chunk), all(1));
    fetch(&mut wire, 3, [999, 100]);
    assert_eq!(items(&mut wire, 3, 1, Kind::Status), all(1), "no tier has it");
    assert_eq!(items(&mut wire, 3, 1, Kind::Chunk), BTreeSet::from([1]));
    wire.send(Frame::new(Kind::Ping, 4), &[]);
    assert_eq!(wire.next().unwrap().0.kind, Kind::Ping);
    assert_eq!(faults.hung(), DISK_READS_AHEAD as u64, "no more at a time");
    // Once the disk is known to hang, nobody waits for what is not being read yet.
    let missing = items(&mut wire, 1, 20 - DISK_READS_AHEAD, Kind::Status);
    faults.release();
    // The reading threads begin in any order, so that a later record may be among those being read.
    let read = items(&mut wire, 1, DISK_READS_AHEAD, Kind::Chunk);
    assert_eq!(read, &all(20) - &missing);
    until(|| vault.server.status().requests == 0);
    assert_eq!(vault.count("fetched"), 3 + DISK_READS_AHEAD as u64);
    assert_eq!(vault.count("fetch_missing"), 1 + 20 - DISK_READS_AHEAD as u64);
}

#[test]
fn a_cancelled_fetch_gives_its_room_to_the_next_and_sends_nothing_more() {
    let on_disk = OnDisk::open(20);
    let OnDisk { vault, faults, .. } = &on_disk;
    faults.hold();
    let mut wire = client_by_hand(vault);
    fetch(&mut wire, 1, 0..20);
    until(|| faults.hung() == DISK_READS_AHEAD as u64);
    wire.send(Frame::new(Kind::Cancel, 1), &[]);
    // Another fetch under the same number, of other records in another order.
    fetch(&mut wire, 1, [19, 18]);
    until(|| vault.count("fetches") == 2);
    faults.release();
    for _ in 0..2 {
        let (frame, body) = wire.next().unwrap();
        assert!(frame.request == 1 && frame.item < 2, "{frame:?}");
        // On a slow machine the disk may count as hanging by now.
        if frame.kind != Kind::Status {
            let number = if frame.item == 0 { 19 } else { 18 };
            assert_eq!((frame.kind, &body), (Kind::Chunk, &record(&key(number), RECORD)));
        }
    }
    until(|| faults.hung() == 0 && vault.server.status().requests == 0);
    wire.send(Frame::new(Kind::Ping, 2), &[]);
    assert_eq!(wire.next().unwrap().0.kind, Kind::Ping, "nothing of the first came");
    fetch(&mut wire, 3, 0..20);
    assert_eq!(items(&mut wire, 3, 20, Kind::Chunk), all(20), "its room is free again");
}

/// An archive whose reads wait until they are let through.
struct Gated {
    inner: Arc<dyn Archive>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_held: bool,
    waiting: usize,
    /// Reads let through although it is held.
    passes: usize,
}

impl Gate {
    fn hold(&self, is_held: bool) {
        self.state.lock().unwrap().is_held = is_held;
        self.changed.notify_all();
    }

    fn let_through(&self, reads: usize) {
        self.state.lock().unwrap().passes += reads;
        self.changed.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        while state.is_held && state.passes == 0 {
            state = self.changed.wait(state).unwrap();
        }
        state.passes = state.passes.saturating_sub(1);
        state.waiting -= 1;
    }
}

impl Archive for Gated {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }
    fn bytes(&self, name: &str) -> io::Result<u64> {
        self.inner.bytes(name)
    }
    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        self.inner.read(name, buffer, offset)
    }
    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()> {
        self.inner.put(name, bytes, fill)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
}

/// Records that only an archive has.
struct Far {
    vault: Vault,
    gate: Arc<Gate>,
    _folders: [Folder; 3],
}

impl Far {
    fn open(records: u64, bytes: usize) -> Self {
        let [disk, lost, far] = [(); 3].map(|()| Folder::new());
        let gate = Arc::<Gate>::default();
        let open = |disk: &Folder| {
            let url = format!("file://{}", far.path().display());
            let inner = archive::open(&url).unwrap();
            let archive = Arc::new(Gated { inner, gate: Arc::clone(&gate) });
            let (max_bytes, after) = (256 * MIB as u64, Duration::from_millis(50));
            let archive = ArchiveOptions { url, archive, max_bytes, after };
            let options = DiskOptions::new(64 * MIB as u64, RAM, Durability::Group);
            let disk = Disk::open_archived(disk.path(), options, Some(archive)).unwrap();
            let store = Store::on_disk(ram(), disk).unwrap();
            store.disk().unwrap().wait_recovered();
            store
        };
        let store = open(&lost);
        fill(&store, 0..records, bytes);
        store.disk().unwrap().drain();
        until(|| {
            store.disk_stats().archive.is_some_and(|now| now.segments > 0 && now.pending == 0)
        });
        drop(store);
        Self { vault: Vault::over(open(&disk), |_| {}), gate, _folders: [disk, lost, far] }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.gate.hold(false);
    }
}

#[test]
fn an_archive_is_read_side_by_side_and_what_came_is_sent() {
    let count = 2 * ARCHIVE_READS_AHEAD;
    let far = Far::open(count as u64, RECORD);
    far.gate.hold(true);
    let mut wire = client_by_hand(&far.vault);
    fetch(&mut wire, 1, 0..count as u64);
    until(|| far.gate.waiting() == ARCHIVE_READS_AHEAD);
    far.gate.let_through(1);
    let first = items(&mut wire, 1, 1, Kind::Chunk);
    assert!(first.first().is_some_and(|item| (*item as usize) < ARCHIVE_READS_AHEAD), "{first:?}");
    // What was sent gives its room to the next one, and no read is begun beyond it.
    until(|| far.gate.waiting() == ARCHIVE_READS_AHEAD);
    far.gate.hold(false);
    let rest = items(&mut wire, 1, count - 1, Kind::Chunk);
    assert_eq!(&first | &rest, all(count));
    until(|| far.vault.server.status().requests == 0);
}

#[test]
fn what_is_read_ahead_leaves_the_store_its_memory() {
    let most = RAM / READ_AHEAD_SHARE;
    let bytes = usize::try_from(most).unwrap() / 2 - 4096;
    let far = Far::open(20, bytes);
    far.gate.hold(true);
    // Together the records are larger than the store.
    let mut wire = client_by_hand(&far.vault);
    fetch(&mut wire, 1, 0..20);
    until(|| far.gate.waiting() == 2);
    far.gate.hold(false);
    assert_eq!(items(&mut wire, 1, 20, Kind::Chunk), all(20), "none is missing for lack of room");
    assert_eq!(far.vault.count("fetch_missing"), 0);
}

#[test]
fn f14_what_waits_for_a_thread_is_missing_once_the_archive_is_known_to_hang() {
    let full = ARCHIVE_READERS_MAX / ARCHIVE_READS_AHEAD;
    let each = ARCHIVE_READS_AHEAD as u64;
    let far = Far::open((full as u64 + 1) * each, RECORD / 5);
    far.gate.hold(true);
    let mut wires: Vec<_> = (0..=full).map(|_| client_by_hand(&far.vault)).collect();
    let numbers = |session: usize| session as u64 * each..(session as u64 + 1) * each;
    for (session, wire) in wires.iter_mut().enumerate().take(full) {
        fetch(wire, 1, numbers(session));
    }
    until(|| far.gate.waiting() == ARCHIVE_READERS_MAX);
    // All threads hang; the last session's reads have none.
    let last = wires.last_mut().unwrap();
    fetch(last, 1, numbers(full));
    let whole = all(ARCHIVE_READS_AHEAD);
    assert_eq!(items(last, 1, ARCHIVE_READS_AHEAD, Kind::Status), whole);
    fetch(last, 2, numbers(0));
    assert_eq!(items(last, 2, ARCHIVE_READS_AHEAD, Kind::Status), whole, "nothing is read");
    far.gate.hold(false);
    for wire in &mut wires[..full] {
        assert_eq!(items(wire, 1, ARCHIVE_READS_AHEAD, Kind::Chunk), whole);
    }
    let last = wires.last_mut().unwrap();
    fetch(last, 3, numbers(full));
    assert_eq!(items(last, 3, ARCHIVE_READS_AHEAD, Kind::Chunk), whole, "the threads are back");
}

/// Receives a chunk that waited for the archive, between `least` and `most`; returns its item.
fn waited(wire: &mut Wire, least: Duration, most: Instant) -> u32 {
    let (frame, _) = wire.next().unwrap();
    assert_eq!(frame.kind, Kind::Waited);
    let waited = Duration::from_micros(frame.offset);
    assert!(!waited.is_zero() && waited >= least && waited <= most.elapsed(), "{waited:?}");
    let (frame, _) = wire.next().unwrap();
    assert_eq!(frame.kind, Kind::Chunk);
    frame.item
}

#[test]
fn a_vault_reports_how_long_its_archive_was_waited_for() {
    let far = Far::open(2, RECORD);
    let mut wire = client_by_hand(&far.vault);
    let begun = Instant::now();
    fetch(&mut wire, 1, [0]);
    assert_eq!(waited(&mut wire, Duration::ZERO, begun), 0);
    // The second time it lies in memory, and waits for no record of the archive.
    far.gate.hold(true);
    let begun = Instant::now();
    fetch(&mut wire, 2, [1, 0]);
    let (frame, _) = wire.next().unwrap();
    assert_eq!((frame.kind, frame.item), (Kind::Chunk, 1));
    until(|| far.gate.waiting() == 1);
    let held = Instant::now();
    std::thread::sleep(Duration::from_millis(5));
    let held = held.elapsed();
    far.gate.hold(false);
    assert_eq!(waited(&mut wire, held, begun), 0);
}
