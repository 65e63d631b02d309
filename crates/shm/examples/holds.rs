//! Owns the measurement of the longest turns with a region's lock: what a larger record evicts, and absent keys in a full index.
//! `cargo run --release -p tierkv-shm --example holds`.
#![expect(clippy::print_stdout, reason = "it says what it measured")]

#[path = "../tests/support/options.rs"]
mod options;
#[path = "../tests/support/random.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod random;
#[path = "../tests/support/unnamed.rs"]
mod unnamed;

use std::time::{Duration, Instant};

use random::Random;
use tierkv_core::error::{Error, Result};
use tierkv_core::key::RecordKey;
use tierkv_shm::flushes::Label;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::Options;
use tierkv_shm::region::{Offer, Region};

const KIB: u64 = 1024;
const CHUNK_BYTES: u64 = 16 * KIB;
const REGION_BYTES: u64 = 2 << 30;
const LARGE_RECORDS: u64 = 200;
const ABSENT_KEYS: u32 = 2000;
const LOOK_UPS: usize = 200;

fn key(number: u64) -> RecordKey {
    let mut block_hash = [0; 32];
    // Spread as hashes are.
    block_hash[..8].copy_from_slice(&Random::new(number).next().to_le_bytes());
    RecordKey { namespace: [1; 32], block_hash, group: 0, shard: 0 }
}

const OPTIONS: Options =
    Options { max_bytes: REGION_BYTES, chunk_bytes: CHUNK_BYTES, ..options::OPTIONS };

/// Stores a record without its bytes; returns how long room took.
fn store(region: &Region<Mapping>, number: u64, bytes: u64) -> Result<Duration> {
    let start = Instant::now();
    let offer = region.reserve(&key(number), bytes, Label::default())?;
    let took = start.elapsed();
    let Offer::Wanted(reservation) = offer else {
        return Err(Error::bad_argument("others give way"));
    };
    reservation.publish()?;
    Ok(took)
}

fn fill(region: &Region<Mapping>, bytes: u64) -> Result<u64> {
    let mut number = 0;
    while region.fill()?.evicted == 0 {
        store(region, number, bytes)?;
        number += 1;
    }
    Ok(number)
}

#[expect(clippy::cast_precision_loss, reason = "ratios")]
fn larger(small: u64, large: u64, is_requested: bool) -> Result<()> {
    let region = unnamed::region(&OPTIONS)?;
    let last = fill(&region, small)?;
    let all: Vec<_> = (0..last).map(key).collect();
    if is_requested {
        region.look_up(&all)?;
    }
    let (mut most, mut longest) = (0.0_f64, Duration::ZERO);
    for number in 0..LARGE_RECORDS {
        let before = region.fill()?.used_bytes;
        longest = longest.max(store(&region, 1 << 40 | number, large)?);
        let evicted = before + large - region.fill()?.used_bytes;
        most = most.max(evicted as f64 / large as f64);
    }
    let which = if is_requested { "all requested" } else { "none requested" };
    println!(
        "{last} records of {} KiB, {which}; {LARGE_RECORDS} of {} KiB: evicted {most:.2} times its bytes at most, room took {longest:?} at most",
        small / KIB,
        large / KIB
    );
    Ok(())
}

fn main() -> Result<()> {
    for is_requested in [false, true] {
        larger(64 * KIB, 2048 * KIB, is_requested)?;
        larger(16 * KIB, 1024 * KIB, is_requested)?;
    }
    let region = unnamed::region(&OPTIONS)?;
    let last = fill(&region, 1)?;
    let mut puts = Vec::new();
    for number in last..4 * last {
        puts.push(store(&region, number, 1)?);
    }
    puts.sort_unstable();
    let absent: Vec<_> = (0..u64::from(ABSENT_KEYS)).map(|number| key(1 << 50 | number)).collect();
    let mut looks = Vec::new();
    for _ in 0..LOOK_UPS {
        let start = Instant::now();
        region.look_up(&absent)?;
        looks.push(start.elapsed() / ABSENT_KEYS);
    }
    looks.sort_unstable();
    println!(
        "{last} records of one chunk, each place taken three times more: an absent key {:?} (p50), {:?} (most); room {:?} (p50), {:?} (p99)",
        looks[looks.len() / 2],
        looks[looks.len() - 1],
        puts[puts.len() / 2],
        puts[puts.len() * 99 / 100]
    );
    Ok(())
}
