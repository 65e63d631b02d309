//! Owns the figures of a million small records: bytes of an index entry, look-ups, and reopening after kill -9.

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierkv_core::store::{RecordKey, Store};

use super::folder::Folder;
use super::random::Random;
use super::records::key;
use super::{MIB, Printer, fill, open};

/// First argument of the process that is to be killed.
pub const CHILD: &str = "--child";
const RECORD_BYTES: usize = 700;
const RAM: u64 = 512 * MIB;
const LOOKUP_KEYS: usize = 2_000;
const LOOKUPS: usize = 2_000;
const REOPENINGS: u64 = 5;

pub fn run(printer: &Printer, count: u64) {
    let folder = Folder::new();
    // Records written before each kill, because at most one segment is unsealed when the process dies.
    let tail = count / 50;
    let mut written = count - REOPENINGS * tail;
    kill_after(folder.path(), 0..written);
    let mut seconds = Vec::new();
    for _ in 0..REOPENINGS {
        kill_after(folder.path(), written..written + tail);
        written += tail;
        let start = Instant::now();
        let store = open(folder.path(), RAM);
        store.disk().unwrap().wait_recovered();
        seconds.push(start.elapsed().as_secs_f64() * 1e5 / written as f64);
        assert_eq!(store.disk_stats().durable_records, written, "nothing durable is lost");
    }
    let store = open(folder.path(), RAM);
    store.disk().unwrap().wait_recovered();
    let stats = store.disk_stats();
    let per_record = stats.index_bytes as f64 / stats.records as f64;
    printer.print(&format!("index of {count} records, per record"), "B", &[per_record]);
    lookups(printer, &store, count, "on disk");
    printer.print("reopening after kill -9, per 100,000 records", "s", &seconds);
    resident(printer, count);
}

/// Starts a process that stores records until all are durable, and kills it.
fn kill_after(folder: &Path, numbers: Range<u64>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([CHILD.as_ref(), folder.as_os_str()])
        .args([numbers.start.to_string(), numbers.end.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "durable\n");
}

/// Runs the process that `kill_after` kills.
pub fn child(folder: &Path, numbers: Range<u64>) -> ! {
    let store = open(folder, RAM);
    store.disk().unwrap().wait_recovered();
    fill(&store, numbers, RECORD_BYTES);
    println!("durable");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Returns keys of which about half are stored.
fn batch(random: &mut Random, count: u64) -> Vec<RecordKey> {
    (0..LOOKUP_KEYS).map(|_| key(random.next() % (2 * count))).collect()
}

fn lookups(printer: &Printer, store: &Arc<Store>, count: u64, of: &str) {
    let mut random = Random::new(5);
    let mut times: Vec<f64> = (0..LOOKUPS)
        .map(|_| {
            let keys = batch(&mut random, count);
            let start = Instant::now();
            std::hint::black_box(store.contains_all(&keys));
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    printer.print(&format!("look-up of 2,000 keys, {of}, p50"), "ms", &times);
    times.sort_by(f64::total_cmp);
    let p99 = times[times.len() * 99 / 100];
    printer.print(&format!("look-up of 2,000 keys, {of}, p99"), "ms", &[p99]);
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(f64::NAN) * 4096.0
}

/// Stores the same number of records in memory and prints the overhead of each, counted and real.
fn resident(printer: &Printer, count: u64) {
    use super::{CLASS_ANY, Options, put, record};
    let options = Options { max_bytes: 4096 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let before = resident_bytes();
    let store = Arc::new(Store::new(options).unwrap());
    for number in 0..count {
        put(&store, key(number), &record(&key(number), RECORD_BYTES));
    }
    let (records, stats) = (count as f64, store.stats());
    assert_eq!(stats.records, count);
    let beside = |bytes: f64| bytes / records - RECORD_BYTES as f64;
    printer.print(
        "record in memory, bytes beside its own, counted",
        "B",
        &[beside(stats.used_bytes as f64)],
    );
    printer.print(
        "record in memory, bytes beside its own, real",
        "B",
        &[beside(resident_bytes() - before)],
    );
    lookups(printer, &store, count, "in memory");
}
