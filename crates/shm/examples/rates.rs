//! Owns the measurement of a region on this machine: records in and out beside a copy of the same bytes, look-ups, and a repair.
//! `cargo run --release -p tierkv-shm --example rates`; `-- clflush` takes the caches' side into it.
#![expect(clippy::print_stdout, reason = "it says what it measured")]

#[path = "../tests/support/options.rs"]
mod options;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tierkv_core::error::Result;
use tierkv_core::key::RecordKey;
use tierkv_shm::flushes::Label;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, map, open};
use tierkv_shm::region::{Offer, Region};
use tierkv_shm::visibility::{Coherence, Fabric};

const RECORDS: u16 = 2000;
const RECORD_BYTES: usize = 73 * 1024;
const ROUNDS: usize = 9;

fn key(number: impl Into<u64>) -> RecordKey {
    let mut block_hash = [0; 32];
    block_hash[..8].copy_from_slice(&number.into().to_le_bytes());
    RecordKey { namespace: [1; 32], block_hash, group: 0, shard: 0 }
}

/// The best of some rounds, because what else the machine does only adds.
fn best(mut round: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn store_all(region: &Region<Mapping>, bytes: &[u8]) -> Result<()> {
    for (number, bytes) in (0..RECORDS).zip(bytes.chunks(RECORD_BYTES)) {
        region.remove(&key(number))?;
        if let Offer::Wanted(reservation) =
            region.reserve(&key(number), bytes.len() as u64, Label::default())?
        {
            reservation.write(0, bytes)?;
            reservation.publish()?;
        }
    }
    Ok(())
}

fn read_all(region: &Region<Mapping>, bytes: &mut [u8]) -> Result<()> {
    for (number, bytes) in (0..RECORDS).zip(bytes.chunks_mut(RECORD_BYTES)) {
        if let Some(pinned) = region.pin(&key(number))? {
            pinned.read(0, bytes)?;
        }
    }
    Ok(())
}

/// What the death of an owner of the lock costs the next one, where each chunk is a record.
fn repair(path: &Path, options: &Options, region: &Region<Mapping>) -> Result<Duration> {
    for number in 0..region.layout().chunks {
        if let Offer::Wanted(reservation) = region.reserve(&key(number), 1, Label::default())? {
            reservation.publish()?;
        }
    }
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        // Its file is closed, as at a process's death.
        let (dead, _) = map(path, options)?;
        dead.lock()?;
        drop(dead);
        let start = Instant::now();
        region.fill()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn main() -> Result<()> {
    let clflush = std::env::args().any(|argument| argument == "clflush");
    let coherence = if clflush { Coherence::Clflush } else { Coherence::Hardware };
    let path = PathBuf::from(format!("/dev/shm/tierkv-rates-{}", std::process::id()));
    let options = Options { max_bytes: 512 << 20, coherence, ..options::OPTIONS };
    let region = open(&path, &options)?;
    let from = vec![1_u8; RECORD_BYTES * usize::from(RECORDS)];
    let mut to = vec![2_u8; from.len()];
    let copied = best(|| {
        black_box(&mut to).copy_from_slice(black_box(&from));
        Ok(())
    })?;
    let stored = best(|| store_all(&region, black_box(&from)))?;
    let read = best(|| read_all(&region, black_box(&mut to)))?;
    assert!(to == from, "what was stored was read");
    let keys: Vec<_> = (0..RECORDS).map(key).collect();
    let looked_up = best(|| region.look_up(black_box(&keys)).map(drop))?;
    println!("{RECORDS} records of {RECORD_BYTES} bytes, {coherence:?}, best of {ROUNDS}");
    println!("memcpy {copied:?}");
    let ratio = |took: Duration| copied.as_secs_f64() / took.as_secs_f64();
    println!("stored {stored:?}, {:.2} of memcpy's rate", ratio(stored));
    println!("read {read:?}, {:.2} of memcpy's rate", ratio(read));
    println!("looked up all in one call {looked_up:?}");
    let repaired = repair(&path, &options, &region);
    let _ = std::fs::remove_file(&path);
    let (entries, repaired) = (region.layout().entries, repaired?);
    println!("repaired an index of {entries} entries, half of them in use: {repaired:?}");
    Ok(())
}
