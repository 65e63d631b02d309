//! Owns what a full region keeps, on the traces of the core's `hit_ratio`: `cargo run --release -p tierkv-shm --example hit_ratio`.
#![expect(clippy::print_stdout, reason = "its output is a table for people")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]
#![expect(dead_code, reason = "traces have more than this needs")]

#[path = "../tests/support/options.rs"]
mod options;
#[path = "../../core/tests/support/prompts.rs"]
mod prompts;
#[path = "../../core/tests/support/random.rs"]
mod random;
#[path = "../../core/tests/support/records.rs"]
mod records;
#[path = "../../core/tests/support/trace.rs"]
mod trace;
#[path = "../tests/support/unnamed.rs"]
mod unnamed;

use tierkv_core::error::Result;
use tierkv_shm::flushes::Label;
use tierkv_shm::layout::Layout;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::Options;
use tierkv_shm::region::{Offer, Region};

const CHUNK: u64 = 4096;
const KEYS: u32 = 200_000;

/// One that holds so many records.
fn region(records: u64) -> Result<Region<Mapping>> {
    let mut max_bytes = records * CHUNK;
    while Layout::cut(max_bytes, CHUNK)?.chunks < records {
        max_bytes += CHUNK;
    }
    unnamed::region(&Options { max_bytes, chunk_bytes: CHUNK, ..options::OPTIONS })
}

fn put(region: &Region<Mapping>, number: u64) -> Result<()> {
    if let Offer::Wanted(room) = region.reserve(&records::key(number), 64, Label::default())? {
        room.publish()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    for (scan_every, name) in [(0, "Zipf 0.99"), (50_000, "Zipf 0.99, half scans")] {
        let trace = trace::trace(KEYS, 0.99, 1_000_000, scan_every, 1);
        for part in [100, 12] {
            let region = region(u64::from(KEYS) / part + 4096)?;
            let mut hits = 0;
            for number in &trace {
                if region.pin(&records::key(*number))?.is_some() {
                    hits += 1;
                } else {
                    put(&region, *number)?;
                }
            }
            println!("{name}, 1/{part} fit: {:.4}", f64::from(hits) / trace.len() as f64);
        }
    }
    let prompts = prompts::prompts(20_000, 1);
    let blocks: usize = prompts.iter().map(Vec::len).sum();
    for part in [100, 12] {
        let region = region(prompts::SHARED_BLOCKS / part + 4096)?;
        let mut hits = 0;
        for prompt in &prompts {
            let found = |number: &u64| matches!(region.pin(&records::key(*number)), Ok(Some(_)));
            let held = prompt.iter().take_while(|number| found(number)).count();
            hits += held;
            prompt[held..].iter().try_for_each(|number| put(&region, *number))?;
        }
        println!("prompts, 1/{part} fit: {:.4}", hits as f64 / blocks as f64);
    }
    Ok(())
}
