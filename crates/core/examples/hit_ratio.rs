//! Owns the store's eviction figures: hit ratio and time per look-up of our policy and a plain LRU, on seeded traces.
//!
//! `cargo run --release --example hit_ratio [-- --json]`, from `crates/`; 1,000,000 operations on 200,000 keys.

#![expect(clippy::print_stdout, reason = "its output is a table for people")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]

#[path = "../tests/support/lru.rs"]
mod lru;
#[path = "../tests/support/prompts.rs"]
mod prompts;
#[path = "../tests/support/random.rs"]
mod random;
#[path = "../tests/support/records.rs"]
mod records;
#[path = "../tests/support/trace.rs"]
mod trace;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruPolicy;
use prompts::{SHARED_BLOCKS, follower, prompts};
use records::{key, put, record};
use tierkv_core::error::Result;
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ENTRY_BYTES, ItemStatus, Options, S3Fifo, Store};
use trace::trace;

const RECORD_BYTES: usize = 1024;
const KEYS: u32 = 200_000;
const OPERATIONS: u64 = 1_000_000;
const PROMPTS: usize = 20_000;
const RUNS: u64 = 3;

/// Divisor of the number of keys that gives how many records fit.
const SIZES: [(u64, &str); 2] = [(100, "1 %"), (12, "8 %")];
/// Operations per stretch; every second stretch touches only keys that never come again. 0: there are no such stretches.
const SCANS: [(u64, &str); 2] = [(0, "Zipf 0.99"), (50_000, "Zipf 0.99, half scans")];

/// Hits and look-up time of one policy on one trace.
struct Outcome {
    hits: u64,
    lookups: Duration,
}

/// Looks up every key of the trace and stores missing records; only the look-ups are timed.
fn replay(store: Store, trace: &[u64]) -> Outcome {
    let store = Arc::new(store);
    let mut outcome = Outcome { hits: 0, lookups: Duration::ZERO };
    for number in trace {
        let key = key(*number);
        let start = Instant::now();
        let hit = store.pin(&key).is_some();
        outcome.lookups += start.elapsed();
        outcome.hits += u64::from(hit);
        if !hit {
            let status = put(&store, key, &record(&key, RECORD_BYTES));
            assert_eq!(status, ItemStatus::Accepted, "there is always room for one");
        }
    }
    outcome
}

/// Looks up every prompt up to its first missing block, as a restore does, and stores the remaining blocks.
fn replay_prompts(store: Store, prompts: &[Vec<u64>]) -> Outcome {
    let store = Arc::new(store);
    let mut outcome = Outcome { hits: 0, lookups: Duration::ZERO };
    for prompt in prompts {
        let start = Instant::now();
        let held = prompt.iter().take_while(|number| store.pin(&key(**number)).is_some()).count();
        outcome.lookups += start.elapsed();
        outcome.hits += held as u64;
        for index in held..prompt.len() {
            let parent = index.checked_sub(1).map(|before| prompt[before]);
            let (key, record) = follower(prompt[index], parent, RECORD_BYTES);
            put(&store, key, &record);
        }
    }
    outcome
}

/// One line of the result: a policy on a trace.
struct Row<'a> {
    trace: &'a str,
    fits: &'a str,
    policy: &'a str,
    hit_ratio: f64,
    /// Nanoseconds of a look-up: least, median, most of the runs.
    times: [f64; 3],
}

impl Row<'_> {
    fn print(&self, as_json: bool) {
        let Self { trace, fits, policy, hit_ratio, times: [least, median, most] } = self;
        if as_json {
            println!(
                "{{\"trace\": \"{trace}\", \"fits\": \"{fits}\", \"policy\": \"{policy}\", \
                 \"hitRatio\": {hit_ratio:.4}, \"lookupNs\": [{least:.0}, {median:.0}, {most:.0}]}}"
            );
        } else {
            println!(
                "{trace:<28} {fits:>4} fit  {policy:<21} hit ratio {hit_ratio:.4}  \
                 look-up {median:.0} ns ({least:.0}-{most:.0})"
            );
        }
    }
}

fn measure<'a>(
    [trace_name, fits, policy]: [&'a str; 3],
    length: usize,
    run: &dyn Fn() -> Result<Outcome>,
) -> Result<Row<'a>> {
    let runs = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>>>()?;
    let length = length as f64;
    let mut times: Vec<f64> =
        runs.iter().map(|run| run.lookups.as_nanos() as f64 / length).collect();
    times.sort_by(f64::total_cmp);
    Ok(Row {
        trace: trace_name,
        fits,
        policy,
        hit_ratio: runs[0].hits as f64 / length,
        times: [times[0], times[times.len() / 2], times[times.len() - 1]],
    })
}

const GHOSTS: u64 = 4096;

/// Makes a store that evicts by the named policy.
fn store(policy: &str, options: Options) -> Result<Store> {
    Store::with_policy(options, |room| match policy {
        PLAIN_LRU => Box::new(LruPolicy::new(room)),
        _ => Box::new(S3Fifo::new(room, GHOSTS)),
    })
}

const PLAIN_LRU: &str = "plain LRU";
const POLICIES: [&str; 2] = ["tierKV", PLAIN_LRU];

fn options(records: u64) -> Options {
    let max_bytes = (records + GHOSTS) * (RECORD_BYTES as u64 + ENTRY_BYTES);
    Options { max_bytes, max_record_bytes: RECORD_BYTES as u64, record_class: CLASS_KV }
}

fn main() -> Result<()> {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let only_prompts = std::env::args().any(|argument| argument == "--prompts");
    for (scan_every, name) in SCANS.into_iter().filter(|_| !only_prompts) {
        let trace = trace(KEYS, 0.99, OPERATIONS, scan_every, 1);
        for (part, fits) in SIZES {
            let options = options(u64::from(KEYS) / part);
            for policy in POLICIES {
                let run = || Ok(replay(store(policy, options)?, &trace));
                measure([name, fits, policy], trace.len(), &run)?.print(as_json);
            }
        }
    }
    let prompts = prompts(PROMPTS, 1);
    let blocks = prompts.iter().map(Vec::len).sum();
    for (part, fits) in SIZES {
        let options = options(SHARED_BLOCKS / part);
        for policy in POLICIES {
            let run = || Ok(replay_prompts(store(policy, options)?, &prompts));
            measure(["prompts with shared prefixes", fits, policy], blocks, &run)?.print(as_json);
        }
    }
    Ok(())
}
