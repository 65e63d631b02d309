//! Owns the measurements of two processes or hosts on memory before records are kept in it: latency, bandwidth, visibility, lock.

use std::fs::remove_file;
use std::hint::{black_box, spin_loop};
use std::path::{Path, PathBuf};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{
    SHM_CHUNK_BYTES, SHM_DOCTOR_BYTES, SHM_DOCTOR_PEER_MS, SHM_DOCTOR_REPLY_MS, SHM_DOCTOR_ROUNDS,
    SHM_DOCTOR_UNSEEN_MS,
};

use crate::layout::{LINE_BYTES, Layout};
use crate::lines;
use crate::mapping::Mapping;
use crate::opening::{Options, map};
use crate::seat::kernel;
use crate::trial::{TRIAL_BYTES, heard, is_whole, publish, say};
use crate::visibility::{Coherence, Fabric, Rule, Seen};

/// Each word has a page of its own, because a line's neighbours may be fetched with it.
const PAGE: u64 = 4096;
const HELLO: u64 = 0;
const REPLY: u64 = PAGE;
const SAID: u64 = 2 * PAGE;
const HEARD: u64 = 3 * PAGE;
const UNSEEN: u64 = 4 * PAGE;
const WRONG: u64 = 5 * PAGE;
const BACK: u64 = 6 * PAGE;
const TRIAL: u64 = 7 * PAGE;
/// Memory of the single-sided measurements, behind these pages: half of the whole.
const MEASURED_FROM: u64 = SHM_DOCTOR_BYTES / 4;
const MEASURED_BYTES: u64 = SHM_DOCTOR_BYTES / 2;
const _: () = assert!(TRIAL + PAGE + TRIAL_BYTES < MEASURED_FROM);
const _: () = assert!(MEASURED_BYTES.is_power_of_two());

const BEST_OF: usize = 3;
const COPY_BYTES: u64 = 1 << 20;
const SPINS: u32 = 2000;

/// Results of one kind of coherence on this memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Way {
    /// Bytes per second that one thread copies in.
    pub in_per_s: f64,
    /// Bytes per second that one thread copies out.
    pub out_per_s: f64,
    /// Rounds in which the other side did not see the published word in time.
    pub unseen: u64,
    /// Rounds in which the other side read a wrong payload.
    pub wrong: u64,
    /// Round trip of a word in ns: median and 99th percentile; 0: not measured.
    pub trip_ns: [f64; 2],
}

/// Results of all measurements.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Whether the other process runs on the same kernel.
    pub is_same_host: bool,
    /// NUMA node of the memory; `None` where the system does not tell.
    pub node: Option<u64>,
    /// Instruction that writes lines back.
    pub write_back: &'static str,
    /// Latency of one cache line, in ns.
    pub load_ns: f64,
    /// The same latency in this machine's own memory; 0 if there was no room for the measurement.
    pub own_load_ns: f64,
    /// Rounds of each trial.
    pub rounds: u64,
    /// Results for `coherence = "hardware"`.
    pub hardware: Way,
    /// Results for `coherence = "clflush"`, where the processor has it.
    pub clflush: Option<Way>,
    /// Time to take the region's lock while both want it, in ns, as `Way::trip_ns`; `None` between hosts.
    pub lock_ns: Option<[f64; 2]>,
}

/// One side of the measurement: the same memory mapped twice, with and without cache flushes.
struct Side {
    plain: Mapping,
    /// Also used for words that must arrive on any memory.
    by_hand: Mapping,
    at: u64,
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts stay far below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

fn silent(what: &str) -> Error {
    Error::new(Code::ArenaFailed, format!("the other process {what}"))
}

/// Waits for a condition that may hold at once; later tries yield to other threads.
fn until(within_ms: u64, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    let mut tries = 0_u32;
    while !holds() {
        tries = tries.saturating_add(1);
        if tries < SPINS {
            spin_loop();
        } else {
            yield_now();
        }
        if tries.is_multiple_of(SPINS) && start.elapsed() > Duration::from_millis(within_ms) {
            return false;
        }
    }
    true
}

/// Median and 99th percentile of the samples.
fn quantiles(mut samples: Vec<Duration>) -> [f64; 2] {
    samples.sort_unstable();
    let at = |share: usize| samples.get(samples.len() * share / 100).copied().unwrap_or_default();
    [at(50), at(99)].map(|took| took.as_secs_f64() * 1e9)
}

fn best(mut measure: impl FnMut() -> Duration) -> f64 {
    (0..BEST_OF).map(|_| measure()).min().unwrap_or_default().as_secs_f64()
}

impl Side {
    /// `max_bytes`: length of the file, if it is created; 0 to open it.
    fn open(path: &Path, max_bytes: u64) -> Result<Self> {
        let by_hand = if lines::EXIST { Coherence::Clflush } else { Coherence::Hardware };
        let mapped = |coherence| {
            map(
                path,
                &Options {
                    max_bytes,
                    chunk_bytes: SHM_CHUNK_BYTES,
                    coherence,
                    address: 0,
                    host: None,
                    group: None,
                },
            )
        };
        let ((by_hand, bytes), (plain, _)) = (mapped(by_hand)?, mapped(Coherence::Hardware)?);
        let layout = Layout::cut(SHM_DOCTOR_BYTES, SHM_CHUNK_BYTES)?;
        let is_ours = layout.region_bytes == bytes;
        let side = Self { plain, by_hand, at: layout.payload_at };
        is_ours.then_some(side).ok_or_else(|| silent("has another release"))
    }

    fn tell(&self, place: u64, word: u64) {
        say(&self.by_hand, self.at + place, word);
    }

    fn told(&self, place: u64) -> u64 {
        heard(&self.by_hand, self.at + place)
    }

    fn wait_for(&self, place: u64, word: u64) -> Result<()> {
        let is_there = until(SHM_DOCTOR_REPLY_MS, || self.told(place) == word);
        is_there.then_some(()).ok_or_else(|| silent("does not answer any more"))
    }

    fn ways(&self) -> Vec<&Mapping> {
        if lines::EXIST { vec![&self.plain, &self.by_hand] } else { vec![&self.plain] }
    }

    /// Publishes all rounds, each after the one before was read; returns the numbers of unseen and of wrong ones.
    fn publish_all(&self, way: &Mapping, first: u64) -> Result<(u64, u64)> {
        for round in first..first + SHM_DOCTOR_ROUNDS {
            publish(way, self.at + TRIAL, round);
            self.tell(SAID, round);
            self.wait_for(HEARD, round)?;
        }
        Ok((self.told(UNSEEN), self.told(WRONG)))
    }

    fn read_all(&self, way: &Mapping, first: u64) -> Result<(u64, u64)> {
        let (mut unseen, mut wrong) = (0, 0);
        for round in first..first + SHM_DOCTOR_ROUNDS {
            self.wait_for(SAID, round)?;
            let is_seen = || heard(way, self.at + TRIAL) == round;
            unseen += u64::from(!until(SHM_DOCTOR_UNSEEN_MS, is_seen));
            wrong += u64::from(!is_whole(way, self.at + TRIAL, round));
            self.tell(UNSEEN, unseen);
            self.tell(WRONG, wrong);
            self.tell(HEARD, round);
        }
        Ok((unseen, wrong))
    }

    /// Measures the round trip of a word.
    fn trip(&self, way: &Mapping, is_first: bool, first: u64) -> Result<[f64; 2]> {
        let (own, other) = if is_first { (TRIAL, BACK) } else { (BACK, TRIAL) };
        let mut samples = Vec::new();
        for round in first..first + SHM_DOCTOR_ROUNDS {
            let start = Instant::now();
            if is_first {
                say(way, self.at + own, round);
            }
            if !until(SHM_DOCTOR_REPLY_MS, || heard(way, self.at + other) == round) {
                return Err(silent("does not answer any more"));
            }
            if !is_first {
                say(way, self.at + own, round);
            }
            samples.push(start.elapsed());
        }
        Ok(quantiles(samples))
    }

    fn lock_often(&self) -> Result<[f64; 2]> {
        let mut samples = Vec::new();
        for _ in 0..SHM_DOCTOR_ROUNDS {
            let start = Instant::now();
            self.plain.lock()?;
            samples.push(start.elapsed());
            self.plain.unlock();
        }
        Ok(quantiles(samples))
    }

    /// Measures loads of lines in an order unknown to any prefetcher, each line naming the next.
    fn load_s(&self) -> f64 {
        let (lines, from) = (MEASURED_BYTES / LINE_BYTES, self.at + MEASURED_FROM);
        let line_at = |line: u64| from + line * LINE_BYTES;
        for line in 0..lines {
            // The order is a full cycle, because the factor is 1 modulo 4 and the summand is odd.
            let next = (line * 2_654_435_761 + 12_345) % lines;
            self.plain.store(line_at(line), next * LINE_BYTES);
        }
        let took = best(|| {
            self.by_hand.invalidate(Rule::PayloadInvalidate, from, MEASURED_BYTES);
            let start = Instant::now();
            // Others may write these words, so that only their bits of a line within the part count.
            let within = (MEASURED_BYTES - 1) & !(LINE_BYTES - 1);
            let last = (0..lines).fold(0, |at, _| self.plain.load(from + at) & within);
            black_box(last);
            start.elapsed()
        });
        took / float(lines)
    }

    fn rates(&self, way: &Mapping) -> Way {
        let mut part = vec![1_u8; usize::try_from(COPY_BYTES).unwrap_or_default()];
        let from = self.at + MEASURED_FROM;
        let all = || (0..MEASURED_BYTES / COPY_BYTES).map(|at| from + at * COPY_BYTES);
        let bytes = float(MEASURED_BYTES);
        let seen = Seen(way);
        let brought = best(|| {
            let start = Instant::now();
            all().for_each(|at| seen.payload_in(at, &part));
            seen.fence(Rule::PayloadFence);
            start.elapsed()
        });
        let fetched = best(|| {
            // The lines must come from memory, not from a cache.
            all().for_each(|at| self.by_hand.invalidate(Rule::PayloadInvalidate, at, COPY_BYTES));
            let start = Instant::now();
            all().for_each(|at| seen.payload_out(at, black_box(&mut part)));
            start.elapsed()
        });
        Way { in_per_s: bytes / brought, out_per_s: bytes / fetched, ..Way::default() }
    }

    fn node(&self) -> Option<u64> {
        const OF_THE_PAGE_THERE: libc::c_ulong = 1 | 2; // MPOL_F_NODE | MPOL_F_ADDR, linux/mempolicy.h
        let mut node: libc::c_int = -1;
        let place = self.plain.memory(self.at, LINE_BYTES).cast::<u8>();
        let no_mask = std::ptr::null_mut::<libc::c_ulong>();
        // SAFETY: writes one int; the address is mapped, and only looked up.
        let code = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                no_mask,
                0_u64,
                place,
                OF_THE_PAGE_THERE,
            )
        };
        (code == 0).then(|| u64::try_from(node).ok()).flatten()
    }
}

/// Creates the file and answers a process that opens it; the file is removed once both have it open.
///
/// # Errors
/// `ARENA_FAILED` naming the problem, or that no process came.
pub fn answer(path: &Path) -> Result<()> {
    let text = "is there: another doctor runs, or was ended: remove it";
    if path.exists() {
        return Err(Error::new(Code::ArenaFailed, format!("{}: {text}", path.display())));
    }
    let made = Made(path.to_owned());
    let side = Side::open(&made.0, SHM_DOCTOR_BYTES)?;
    side.tell(REPLY, kernel());
    let start = Instant::now();
    while side.told(HELLO) == 0 {
        if start.elapsed() > Duration::from_millis(SHM_DOCTOR_PEER_MS) {
            return Err(silent("did not come"));
        }
        sleep(Duration::from_millis(1));
    }
    drop(made);
    let is_same_host = side.told(HELLO) == kernel();
    let mut first = 1;
    for way in side.ways() {
        let (unseen, _) = side.read_all(way, first)?;
        if unseen == 0 {
            side.trip(way, false, first + SHM_DOCTOR_ROUNDS)?;
        }
        first += 2 * SHM_DOCTOR_ROUNDS;
    }
    if is_same_host {
        side.lock_often()?;
    }
    Ok(())
}

/// Measures the memory of a file that another process answers for.
///
/// # Errors
/// `ARENA_FAILED` naming the problem.
pub fn ask(path: &Path) -> Result<Report> {
    let side = Side::open(path, 0)?;
    if !until(SHM_DOCTOR_REPLY_MS, || side.told(REPLY) != 0) {
        let text = "nobody answers there: it is left from another doctor: remove it";
        return Err(Error::new(Code::ArenaFailed, format!("{}: {text}", path.display())));
    }
    let other = side.told(REPLY);
    let mut ways: Vec<Way> = side.ways().into_iter().map(|way| side.rates(way)).collect();
    let load_s = side.load_s();
    side.tell(HELLO, kernel());
    let mut first = 1;
    for (way, found) in side.ways().into_iter().zip(&mut ways) {
        (found.unseen, found.wrong) = side.publish_all(way, first)?;
        if found.unseen == 0 {
            found.trip_ns = side.trip(way, true, first + SHM_DOCTOR_ROUNDS)?;
        }
        first += 2 * SHM_DOCTOR_ROUNDS;
    }
    let is_same_host = other == kernel();
    let lock_ns = is_same_host.then(|| side.lock_often()).transpose()?;
    Ok(Report {
        is_same_host,
        node: side.node(),
        write_back: lines::write_back_name(),
        load_ns: load_s * 1e9,
        own_load_ns: own_load_s().unwrap_or_default() * 1e9,
        rounds: SHM_DOCTOR_ROUNDS,
        hardware: ways.first().copied().unwrap_or_default(),
        clflush: ways.get(1).copied(),
        lock_ns,
    })
}

/// The same latency in memory that certainly belongs to this machine.
fn own_load_s() -> Result<f64> {
    let made = Made(PathBuf::from(format!("/dev/shm/tierkv-doctor-{}", std::process::id())));
    Ok(Side::open(&made.0, SHM_DOCTOR_BYTES)?.load_s())
}

/// A file that is removed when dropped.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = remove_file(&self.0);
    }
}
