//! Owns the times of records behind slow reads: from an archive of 30 ms, and from the disk itself.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tierkv_core::archive::{self, Archive, Fill};
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::store::{CLASS_ANY, Options, Store};

use super::folder::Folder;
use super::hand::{Vault, Wire};
use super::records::{key, put, record};
use super::{MIB, ms, print};

const READ_MS: u64 = 30;
const WAIT: Duration = Duration::from_secs(60);
const RECORDS: u64 = 64;
const RECORD_BYTES: usize = 16 << 10;

/// An archive whose reads take their time.
struct Slow(Arc<dyn Archive>);

impl Archive for Slow {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.0.list()
    }
    fn bytes(&self, name: &str) -> io::Result<u64> {
        self.0.bytes(name)
    }
    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        thread::sleep(Duration::from_millis(READ_MS));
        self.0.read(name, buffer, offset)
    }
    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()> {
        self.0.put(name, bytes, fill)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
}

fn ram(bytes: u64) -> Options {
    Options { max_bytes: bytes, max_record_bytes: bytes / 4, record_class: CLASS_ANY }
}

fn archived(disk: &Folder, far: &Folder) -> Arc<Store> {
    let url = format!("file://{}", far.path().display());
    let archive: Arc<dyn Archive> = Arc::new(Slow(archive::open(&url).unwrap()));
    let after = Duration::from_millis(50);
    let archive = ArchiveOptions { url, archive, max_bytes: 1024 * MIB, after };
    let options = DiskOptions::new(64 * MIB, 64 * MIB, Durability::Group);
    let disk = Disk::open_archived(disk.path(), options, Some(archive)).unwrap();
    let store = Store::on_disk(ram(64 * MIB), disk).unwrap();
    store.disk().unwrap().wait_recovered();
    store
}

/// Lanes whose frames come one after another, each with its time.
struct Lanes {
    wires: Vec<Wire>,
    frames: Receiver<(Frame, Instant)>,
    /// Times of whole records by request; those of a request that nobody waits for yet are kept.
    arrived: HashMap<u32, Vec<Instant>>,
}

impl Lanes {
    fn open(vault: &Vault, token: u8, lanes: u16) -> Self {
        let wires = vault.session(token, lanes);
        let (tell, frames) = channel();
        for wire in &wires {
            let (mut wire, tell): (Wire, Sender<_>) = (wire.clone(), tell.clone());
            thread::spawn(move || {
                while let Some(frame) = wire.next() {
                    let _ = tell.send((frame, Instant::now()));
                }
            });
        }
        Self { wires, frames, arrived: HashMap::new() }
    }

    /// Times in ms of the arrivals of `count` records of a request begun at `begun`.
    fn arrivals(&mut self, request: u32, count: u64, begun: Instant) -> Vec<f64> {
        let count = usize::try_from(count).unwrap();
        while self.arrived.get(&request).is_none_or(|times| times.len() < count) {
            let (frame, at) = self.frames.recv_timeout(WAIT).expect("a record comes");
            assert_ne!(frame.kind, Kind::Status, "a record is missing");
            let is_last = frame.offset + u64::from(frame.bytes) == frame.record_bytes;
            if frame.kind == Kind::Chunk && is_last {
                self.arrived.entry(frame.request).or_default().push(at);
            }
        }
        let times = self.arrived.remove(&request).unwrap_or_default();
        times.iter().map(|&at| (at - begun).as_secs_f64() * 1e3).collect()
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.wires.iter().for_each(Wire::end);
    }
}

/// 64 records of 16 KiB behind reads of 30 ms, over one lane and over four; then a record in memory beside them.
pub fn run_archive() {
    let (lost, far) = (Folder::new(), Folder::new());
    let store = archived(&lost, &far);
    for number in 0..RECORDS {
        put(&store, key(number), &record(&key(number), RECORD_BYTES));
    }
    store.disk().unwrap().drain();
    while store.disk_stats().archive.is_none_or(|now| now.segments == 0 || now.pending > 0) {
        thread::sleep(Duration::from_millis(5));
    }
    drop(store);
    let folders = Mutex::new(Vec::new());
    let again = || {
        let disk = Folder::new();
        // The archive belongs to the directory that took it over last.
        let store = archived(&disk, &far);
        folders.lock().unwrap().push(disk);
        put(&store, key(1_000), &record(&key(1_000), RECORD_BYTES));
        Vault::over(store, "127.0.0.1")
    };
    for lanes in [1, 4] {
        let vault = again();
        let mut open = Lanes::open(&vault, 1, lanes);
        let begun = Instant::now();
        open.wires[0].fetch(1, 0..RECORDS);
        let arrivals = open.arrivals(1, RECORDS, begun);
        print(&format!("first{lanes}"), "ms", arrivals[0]);
        print(&format!("all{lanes}"), "ms", *arrivals.last().unwrap());
    }
    let vault = again();
    let mut open = Lanes::open(&vault, 1, 1);
    open.wires[0].fetch(1, 0..RECORDS);
    // The reads are under way.
    thread::sleep(Duration::from_millis(READ_MS / 2));
    let begun = Instant::now();
    open.wires[0].fetch(2, 1_000..1_001);
    print("beside", "ms", open.arrivals(2, 1, begun)[0]);
}

/// Records of 256 KiB from the disk under `TMPDIR`, past the page cache, over one lane.
pub fn run_disk(count: u64) {
    const BYTES: usize = 256 << 10;
    let folder = Folder::new();
    let open = |ram_bytes| {
        let options = DiskOptions::new(8192 * MIB, ram_bytes, Durability::Group);
        let store = Store::durable(ram(ram_bytes), folder.path(), options).unwrap();
        store.disk().unwrap().wait_recovered();
        store
    };
    let store = open(256 * MIB);
    for number in 0..count {
        put(&store, key(number), &record(&key(number), BYTES));
        while store.disk_stats().queued_bytes > 32 * MIB {
            thread::sleep(Duration::from_millis(1));
        }
    }
    store.disk().unwrap().drain();
    drop(store);
    let vault = Vault::over(open(4096 * MIB), "127.0.0.1");
    let mut lanes = Lanes::open(&vault, 1, 1);
    let begun = Instant::now();
    // Two windows are under way, as from a sidecar.
    let windows: Vec<_> =
        (0..count).step_by(14).map(|first| first..count.min(first + 14)).collect();
    for (request, window) in (1..).zip(&windows) {
        lanes.wires[0].fetch(request, window.clone());
        if let Some(before) = request.checked_sub(2) {
            let window = windows[before as usize].clone();
            lanes.arrivals(before + 1, window.end - window.start, begun);
        }
    }
    let last = windows.last().unwrap().clone();
    lanes.arrivals(u32::try_from(windows.len()).unwrap(), last.end - last.start, begun);
    let mib = count as f64 * BYTES as f64 / MIB as f64;
    print("disk", "MiB/s", mib / (ms(begun) / 1e3));
}
