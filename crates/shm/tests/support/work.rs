//! Owns what other processes of the tests do with a region: mixed operations, turns with the lock, everything once.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tierkv_shm::flushes::Label;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, open};
use tierkv_shm::region::{Offer, Region};
use tierkv_shm::visibility::Fabric;

use super::content::{content, key, length, read};
pub use super::options::OPTIONS;
use super::random::Random;

pub const BYTES_MAX: u64 = 40_000;

/// Of operations at length, so that a log tells a slow run from one that stands.
const SAID_EVERY: u64 = 1_000_000;

/// A file's name in memory, gone in the end.
pub struct Name(pub PathBuf);

impl Name {
    pub fn new(of: &str) -> Self {
        let folder = Path::new("/dev/shm");
        Self(folder.join(format!("tierkv-test-{of}-{}", std::process::id())))
    }

    pub fn open(&self, host: Option<u64>) -> Region<Mapping> {
        open(&self.0, &Options { host, ..OPTIONS }).unwrap()
    }

    /// Runs `role` of this program as another process, or host.
    pub fn child(&self, host: Option<u64>, role: &str, number: u64) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("TIERKV_SHM_CHILD", role)
            .env("TIERKV_SHM_PATH", &self.0)
            .env("TIERKV_SHM_NUMBER", number.to_string())
            .env("TIERKV_SHM_HOST", host.unwrap_or_default().to_string())
            .stdout(Stdio::piped())
            .stderr(if role == "mixes" { Stdio::inherit() } else { Stdio::piped() })
            .spawn()
            .unwrap()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn is_long() -> bool {
    std::env::var_os("TIERKV_TEST_LONG").is_some()
}

pub fn store<F: Fabric>(region: &Region<F>, number: u64) {
    let length = length(number, BYTES_MAX);
    let offer = region.reserve(&key(number), length, Label::default()).unwrap();
    let Offer::Wanted(reservation) = offer else { return };
    let bytes = content(number, BYTES_MAX);
    let (first, second) = bytes.split_at(bytes.len() / 3);
    reservation.write(0, first).unwrap();
    reservation.write(first.len() as u64, second).unwrap();
    reservation.publish().unwrap();
}

pub fn check<F: Fabric>(region: &Region<F>, number: u64) -> bool {
    let found = read(region, number).unwrap();
    found.is_some_and(|bytes| {
        assert!(bytes == content(number, BYTES_MAX), "bytes of {number}");
        true
    })
}

/// Works until `operations` are done; `count`: of these, how many were begun, also before.
pub fn mix<F: Fabric>(region: &Region<F>, seed: u64, operations: u64, count: &AtomicU64) {
    let mut random = Random::new(seed);
    loop {
        let done = count.fetch_add(1, Ordering::Relaxed);
        if done >= operations {
            return;
        }
        if done > 0 && done.is_multiple_of(SAID_EVERY) {
            let text = format!("process {seed}: {done} of {operations}\n");
            std::io::stderr().write_all(text.as_bytes()).unwrap();
        }
        let number = random.below(300);
        match random.below(20) {
            0..8 => store(region, number),
            8..15 => _ = check(region, number),
            15 => _ = region.remove(&key(number)).unwrap(),
            // Given up.
            16 => drop(region.reserve(&key(number), 5000, Label::default()).unwrap()),
            _ => {
                let keys: Vec<_> = (number..number + 8).map(key).collect();
                region.look_up(&keys).unwrap();
            }
        }
    }
}

/// Sets room aside and gives it up, over and over; how long that took, in µs: p99, and most.
pub fn contend(region: &Region<Mapping>, number: u64, turns: u64) -> [u128; 2] {
    let mut waits: Vec<_> = (0..turns)
        .map(|_| {
            let start = Instant::now();
            let offer = region.reserve(&key(number), 5000, Label::default()).unwrap();
            let waited = start.elapsed().as_micros();
            assert!(matches!(offer, Offer::Wanted(_)), "nobody else has this key");
            waited
        })
        .collect();
    waits.sort_unstable();
    [waits[waits.len() * 99 / 100], waits[waits.len() - 1]]
}

/// Every kind of operation, evictions among them.
pub fn go_through_everything<F: Fabric>(region: &Region<F>) {
    for number in 1000..1060 {
        store(region, number);
    }
    assert!(check(region, 1059));
    let _pinned = region.pin(&key(1058)).unwrap();
    drop(region.reserve(&key(2000), 5000, Label::default()).unwrap());
    region.remove(&key(1059)).unwrap();
    region.sweep().unwrap();
}

pub fn said(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// What a child wrote behind a word.
pub fn told(output: &Output, word: &str) -> Vec<u64> {
    let text = str::from_utf8(&output.stdout).unwrap();
    let line = text.split(word).nth(1).and_then(|rest| rest.lines().next()).expect(text);
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}
