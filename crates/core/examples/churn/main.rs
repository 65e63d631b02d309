//! Owns the long run of a vault's memory: it fills and churns the store with records of real models' lengths, and compares records read.
//!
//! `cargo run --release --example churn -- --gb 16 --minutes 60 --mb-s 300 --seed 1`, from `crates/`; figures once a minute, the last line as JSON.

#![expect(clippy::print_stdout, reason = "its output is for people")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]
#![expect(clippy::expect_used, reason = "a bench may panic")]

mod lengths;
#[path = "../../tests/support/random.rs"]
mod random;
#[expect(dead_code, reason = "records are put together here")]
#[path = "../../tests/support/records.rs"]
mod records;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lengths::{mixed, payload_bytes};
use random::Random;
use records::{header, key};
use tierkv_core::crc32c;
use tierkv_core::record::{CLASS_KV, HEADER_BYTES};
use tierkv_core::store::{ItemStatus, Offer, Options, Pin, Store};

const MIB: usize = 1 << 20;
/// Writing threads, as many as a vault's connections write at once, because an allocator gives each thread its own memory.
const WRITERS: usize = 4;
/// Bytes of one write, as a lane receives.
const PIECE_BYTES: usize = 256 << 10;
/// Records that each writer keeps pinned, as restores do.
const PINS: usize = 16;
/// Bytes of noise whose parts are the payloads, so that records read are compared whole at the speed of memory.
const NOISE_BYTES: usize = 16 * MIB;
const STEP: Duration = Duration::from_millis(500);
const REPORT: Duration = Duration::from_secs(60);
/// Time between trims, as in a vault.
const TRIM: Duration = Duration::from_secs(10);

/// Counters of all threads.
#[derive(Default)]
struct Counts {
    next: AtomicU64,
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    again: AtomicU64,
    read: AtomicU64,
    read_bytes: AtomicU64,
    missed: AtomicU64,
    wrong: AtomicU64,
    refused: AtomicU64,
}

struct Run {
    store: Arc<Store>,
    noise: Vec<u8>,
    counts: Counts,
    is_over: AtomicBool,
    begun: Instant,
    bytes_per_s: u64,
}

impl Run {
    fn payload(&self, number: u64) -> &[u8] {
        let bytes = payload_bytes(number);
        let from = mixed(number ^ 1 << 63) % (NOISE_BYTES - bytes) as u64;
        &self.noise[usize::try_from(from).expect("small")..][..bytes]
    }

    /// Stores record `number` in pieces; says whether the store wanted it.
    fn put(&self, number: u64) -> bool {
        let (key, payload) = (key(number), self.payload(number));
        let mut reservation = match self.store.reserve(key, (HEADER_BYTES + payload.len()) as u64) {
            Offer::Wanted(reservation) => reservation,
            Offer::Refused(status) => {
                if status != ItemStatus::Present {
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                }
                return false;
            }
        };
        let head = header(&key, payload.len()).encode(crc32c::checksum(payload));
        reservation.write(0, &head).expect("it fits");
        for (at, piece) in payload.chunks(PIECE_BYTES).enumerate() {
            let offset = HEADER_BYTES + at * PIECE_BYTES;
            reservation.write(offset as u64, piece).expect("it fits");
        }
        if reservation.commit() != ItemStatus::Accepted {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.counts.stored.fetch_add(1, Ordering::Relaxed);
        self.counts.stored_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        true
    }

    /// Reads record `number` if it is in memory, and compares all its bytes.
    fn read(&self, number: u64) -> Option<Pin> {
        let (key, payload) = (key(number), self.payload(number));
        let pin = self.store.pin_resident(&key)?;
        let head = header(&key, payload.len()).encode(crc32c::checksum(payload));
        let is_right = pin.get(..HEADER_BYTES) == Some(head.as_slice())
            && pin.get(HEADER_BYTES..) == Some(payload);
        let counter = if is_right { &self.counts.read } else { &self.counts.wrong };
        counter.fetch_add(1, Ordering::Relaxed);
        self.counts.read_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        Some(pin)
    }

    /// Stores new records and reads as many, half from the latest 1,000, half from the latest 40,000. Some missing ones are stored again.
    fn churn(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut pins: Vec<Option<Pin>> = (0..PINS).map(|_| None).collect();
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.counts.next.fetch_add(1, Ordering::Relaxed);
            self.put(number);
            let dice = random.next();
            let reach = if dice & 1 == 0 { 1_000 } else { 40_000 };
            let past = number.saturating_sub((dice >> 8) % reach);
            let pin = self.read(past);
            if pin.is_none() {
                self.counts.missed.fetch_add(1, Ordering::Relaxed);
                if dice & 0x30 == 0 && self.put(past) {
                    self.counts.again.fetch_add(1, Ordering::Relaxed);
                }
            }
            pins[usize::try_from(dice >> 32).expect("64 bits") % PINS] = pin;
            self.pace();
        }
    }

    /// Waits until the bytes stored are within the rate.
    fn pace(&self) {
        let due = self.counts.stored_bytes.load(Ordering::Relaxed) as f64 / self.bytes_per_s as f64;
        let ahead = due - self.begun.elapsed().as_secs_f64();
        if ahead > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(ahead.min(1.0)));
        }
    }
}

/// Returns the resident memory of this process, in bytes.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kib << 10
}

/// Returns the number behind a flag, or `otherwise`.
fn flag(name: &str, otherwise: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().map_or(otherwise, |text| text.parse().expect("a number behind each flag"))
}

/// Figures of the run so far.
struct Watch {
    base: u64,
    max: u64,
    is_full: bool,
    peak: f64,
    fragmented: f64,
    fragmented_most: f64,
}

impl Watch {
    /// Updates the peak and the fragmentation: resident memory beyond records and spare memory, in percent of both.
    fn look(&mut self, store: &Store) {
        let stats = store.stats();
        let (real, counted) =
            (rss().saturating_sub(self.base), stats.used_bytes + stats.spare_bytes);
        assert!(counted <= self.max, "the ceiling holds");
        self.is_full |= stats.evicted > 0;
        self.peak = self.peak.max(real as f64 / self.max as f64);
        if self.is_full {
            self.fragmented = (real as f64 / counted as f64 - 1.0) * 100.0;
            self.fragmented_most = self.fragmented_most.max(self.fragmented);
        }
    }

    fn report(&self, run: &Run) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (counts, stats) = (&run.counts, run.store.stats());
        format!(
            "{{\"seconds\": {}, \"storedGB\": {:.1}, \"stored\": {}, \"again\": {}, \"evicted\": {}, \"records\": {}, \
             \"usedGB\": {:.3}, \"spareGB\": {:.3}, \"read\": {}, \"readGB\": {:.1}, \"missed\": {}, \"wrong\": {}, \
             \"refused\": {}, \"fragmentation\": {:.2}, \"fragmentationMost\": {:.2}, \"peakOfCeiling\": {:.4}}}",
            run.begun.elapsed().as_secs(),
            of(&counts.stored_bytes) as f64 / 1e9,
            of(&counts.stored),
            of(&counts.again),
            stats.evicted,
            stats.records,
            stats.used_bytes as f64 / 1e9,
            stats.spare_bytes as f64 / 1e9,
            of(&counts.read),
            of(&counts.read_bytes) as f64 / 1e9,
            of(&counts.missed),
            of(&counts.wrong),
            of(&counts.refused),
            self.fragmented,
            self.fragmented_most,
            self.peak,
        )
    }
}

fn main() {
    let (max, minutes) = (flag("--gb", 4) * 1_000_000_000, flag("--minutes", 10));
    let (seed, rate) = (flag("--seed", 1), flag("--mb-s", 300));
    let mut random = Random::new(seed);
    let noise = (0..NOISE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let base = rss();
    let options = Options { max_bytes: max, max_record_bytes: 16 << 20, record_class: CLASS_KV };
    let run = Arc::new(Run {
        store: Arc::new(Store::new(options).expect("options")),
        noise,
        counts: Counts::default(),
        is_over: AtomicBool::new(false),
        begun: Instant::now(),
        bytes_per_s: rate * 1_000_000,
    });
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (run, seed) = (Arc::clone(&run), random.next());
            std::thread::spawn(move || run.churn(seed))
        })
        .collect();
    let (mut watch, mut reported, mut trimmed) = (
        Watch { base, max, is_full: false, peak: 0.0, fragmented: 0.0, fragmented_most: 0.0 },
        Instant::now(),
        Instant::now(),
    );
    while run.begun.elapsed() < Duration::from_secs(minutes * 60) {
        std::thread::sleep(STEP);
        watch.look(&run.store);
        if trimmed.elapsed() > TRIM {
            trimmed = Instant::now();
            run.store.trim();
        }
        if reported.elapsed() > REPORT {
            reported = Instant::now();
            println!("{}", watch.report(&run));
        }
    }
    run.is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("no writer panicked");
    }
    println!("churn {}", watch.report(&run));
}
