//! Owns cold restore against raw reads of the same files past the page cache, and bytes written per byte stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tierkv_core::disk::format::SegmentName;
use tierkv_core::disk::storage::{Access, Directory, DiskFile, Storage};
use tierkv_core::memory::pages::Pages;

use super::folder::Folder;
use super::records::key;
use super::{MIB, Printer, fill, open};

const READERS: usize = 4;
const READ_BYTES: usize = 256 << 10;
/// Bytes of one record: a header of 192 bytes and a block of 256 KiB.
const RECORD_BYTES: usize = READ_BYTES + 192;

pub fn run(printer: &Printer, count: u64, rounds: u32) {
    let folder = Folder::new();
    let store = open(folder.path(), 512 * MIB);
    fill(&store, 0..count, RECORD_BYTES);
    store.disk().unwrap().drain();
    let stats = store.disk_stats();
    let written = stats.file_bytes as f64 / stats.written_bytes as f64;
    printer.print("bytes written per byte stored, 256 KiB records", "", &[written]);
    drop(store);
    let (mut raw, mut cold, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        raw.push(read_raw(&folder) / 1e6);
        cold.push(read_records(&folder, count) / 1e6);
        ratios.push(cold[cold.len() - 1] / raw[raw.len() - 1]);
    }
    printer.print("raw O_DIRECT reads, 4 threads of 256 KiB", "MB/s", &raw);
    printer.print("cold restore, 4 threads, checked, into pinned memory", "MB/s", &cold);
    printer.print("cold restore over raw reads, same round", "", &ratios);
}

/// Returns the bytes per second of `READERS` threads. Each call of `read` gets its turn and returns the bytes it read.
fn race(read: impl Fn(usize) -> Option<usize> + Sync) -> f64 {
    let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while let Some(read) = read(next.fetch_add(1, Ordering::AcqRel)) {
                    bytes.fetch_add(read, Ordering::AcqRel);
                }
            });
        }
    });
    bytes.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// Reads the same files in pieces into fresh memory of the same size, because the kernel zeroes it in both cases.
fn read_raw(folder: &Folder) -> f64 {
    let storage = Directory::open(folder.path()).unwrap();
    let mut pieces: Vec<(Arc<dyn DiskFile>, usize)> = Vec::new();
    for (name, bytes) in storage.list().unwrap() {
        if SegmentName::parse(&name).is_some() {
            let file = storage.open(&name, Access::Direct).unwrap();
            let count = bytes as usize / READ_BYTES;
            pieces.extend((0..count).map(|at| (Arc::clone(&file), at * READ_BYTES)));
        }
    }
    let kept = std::sync::Mutex::new(Vec::new());
    race(|turn| {
        let (file, at) = pieces.get(turn)?;
        let mut pages = Pages::new(READ_BYTES).unwrap();
        let read = file.read(&mut pages, *at as u64).unwrap();
        kept.lock().unwrap().push(pages);
        Some(read)
    })
}

/// Reads every record from disk into the RAM tier, checked and pinned.
fn read_records(folder: &Folder, count: u64) -> f64 {
    let store = open(folder.path(), 4096 * MIB);
    store.disk().unwrap().wait_recovered();
    race(|turn| {
        let number = turn as u64;
        (number < count).then(|| store.pin(&key(number)).expect("it is there").len())
    })
}
