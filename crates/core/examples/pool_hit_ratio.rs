//! Owns the hit ratio of a pool of vaults against one vault with the memory of all, on seeded prompts that share prefixes.
//!
//! `cargo run --release --example pool_hit_ratio [-- --json]`, from `crates/`. Each vault evicts on its own, so it may make
//! a hole in a prefix that the others still hold; a restore ends at the first hole.

#![expect(clippy::print_stdout, reason = "its output is a table for people")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]

#[path = "../tests/support/prompts.rs"]
mod prompts;
#[path = "../tests/support/random.rs"]
mod random;
#[expect(dead_code, reason = "records here follow one another")]
#[path = "../tests/support/records.rs"]
mod records;
#[expect(dead_code, reason = "keys are drawn by prompts")]
#[path = "../tests/support/trace.rs"]
mod trace;

use std::collections::HashMap;
use std::sync::Arc;

use prompts::{SHARED_BLOCKS, follower, prompts};
use random::Random;
use records::{key, put};
use tierkv_core::error::Result;
use tierkv_core::record::{CLASS_KV, PACKED_KEY_BYTES};
use tierkv_core::store::{ENTRY_BYTES, Listed, Options, S3Fifo, Store};

const RECORD_BYTES: usize = 1024;
const PROMPTS: usize = 20_000;
const VIRTUAL_NODES: usize = 100;
const GHOSTS: u64 = 4096;
const SEED: u64 = 1;

/// Divisor of the number of shared blocks that gives how many fit into all vaults together.
const SIZES: [(u64, &str); 2] = [(12, "8 %"), (3, "33 %")];
/// Blocks of a prompt that is never asked for again, put between two prompts of the trace.
const SCANS: [(u64, &str); 2] = [(0, "none"), (44, "half")];
/// Number of vaults, and of consecutive blocks on one of them.
const POOLS: [(usize, usize); 8] =
    [(1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (4, 4), (4, 16), (4, 64)];

/// A ring of virtual nodes: positions in order, each with its vault.
struct Ring(Vec<(u64, usize)>);

impl Ring {
    fn new(vaults: usize, random: &mut Random) -> Self {
        let nodes = (0..vaults * VIRTUAL_NODES).map(|node| (random.next(), node / VIRTUAL_NODES));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable();
        Self(nodes)
    }

    /// Returns the first vault after the anchor's place that is not `away`.
    fn owner(&self, anchor: u64, away: Option<usize>) -> usize {
        let place = Random::new(anchor.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next();
        let next = self.0.partition_point(|(at, _)| *at <= place);
        let around = self.0[next..].iter().chain(&self.0[..next]).map(|(_, vault)| *vault);
        around.into_iter().find(|vault| Some(*vault) != away).unwrap_or(0)
    }
}

/// Vaults that share `records` records evenly.
struct Pool {
    ring: Ring,
    vaults: Vec<Arc<Store>>,
    /// Consecutive blocks of a prompt on one vault.
    run: usize,
    /// Vault that is silent now.
    away: Option<usize>,
    /// Vault that came back; its stand-ins are asked as well.
    back: Option<usize>,
}

impl Pool {
    fn new(vaults: usize, run: usize, records: u64) -> Result<Self> {
        let records = records / vaults as u64;
        let ghosts = GHOSTS / vaults as u64;
        let max_bytes = (records + ghosts) * (RECORD_BYTES as u64 + ENTRY_BYTES);
        let store = || {
            let max_record_bytes = RECORD_BYTES as u64;
            let options = Options { max_bytes, max_record_bytes, record_class: CLASS_KV };
            Store::with_policy(options, |room| Box::new(S3Fifo::new(room, ghosts))).map(Arc::new)
        };
        let vaults: Vec<_> = (0..vaults).map(|_| store()).collect::<Result<_>>()?;
        Ok(Self {
            ring: Ring::new(vaults.len(), &mut Random::new(SEED)),
            vaults,
            run,
            away: None,
            back: None,
        })
    }

    fn owner(&self, prompt: &[u64], index: usize, away: Option<usize>) -> &Arc<Store> {
        let anchor = index - index % self.run;
        &self.vaults[self.ring.owner(prompt[anchor], away)]
    }

    /// Says whether the owner or a stand-in holds a block; a stand-in's copy is stored at the owner.
    fn holds(&self, prompt: &[u64], index: usize) -> bool {
        let name = key(prompt[index]);
        let owner = self.owner(prompt, index, self.away);
        if owner.pin(&name).is_some() {
            return true;
        }
        let is_elsewhere =
            self.back.is_some() && self.owner(prompt, index, self.back).pin(&name).is_some();
        if is_elsewhere {
            let parent = index.checked_sub(1).map(|before| prompt[before]);
            let (name, record) = follower(prompt[index], parent, RECORD_BYTES);
            put(owner, name, &record);
        }
        is_elsewhere
    }

    /// Copies the hot blocks of a vault to their owners while that vault is away, beginnings of prompts first.
    fn hand_over(&self, vault: usize, places: &HashMap<u64, Place>) {
        let mut given: Vec<_> =
            hot(&self.vaults[vault]).iter().map(|number| (&places[number], *number)).collect();
        given.sort_unstable_by_key(|(place, number)| (place.index, *number));
        for (place, number) in given {
            let (key, record) = follower(number, place.parent, RECORD_BYTES);
            put(&self.vaults[self.ring.owner(place.anchor, Some(vault))], key, &record);
        }
    }

    /// Returns the number of blocks held up to the first hole, and stores the remaining ones.
    fn take(&self, prompt: &[u64]) -> usize {
        let held = (0..prompt.len()).take_while(|index| self.holds(prompt, *index)).count();
        for index in held..prompt.len() {
            let parent = index.checked_sub(1).map(|before| prompt[before]);
            let (key, record) = follower(prompt[index], parent, RECORD_BYTES);
            put(self.owner(prompt, index, self.away), key, &record);
        }
        held
    }
}

/// Fate of a vault's memory while it is silent. Past `yield_grace_s` the memory is given back; vaults that know others by
/// `pool_key` hand their hot blocks over before.
#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Kept,
    GivenBack,
    HandedOver,
}

/// Name, period and memory of each absence: the vault is silent for every n-th tenth of the prompts; 1: always.
const ABSENCES: [(&str, usize, Memory); 4] = [
    ("half of the time, kept", 2, Memory::Kept),
    ("half of the time, given back", 2, Memory::GivenBack),
    ("half of the time, given back, what is hot handed over", 2, Memory::HandedOver),
    ("always", 1, Memory::GivenBack),
];
const ABSENCE_PROMPTS: usize = PROMPTS / 10;

/// Place of a block in its prompt.
struct Place {
    index: usize,
    anchor: u64,
    parent: Option<u64>,
}

fn places(prompts: &[Vec<u64>], run: usize) -> HashMap<u64, Place> {
    let of = |prompt: &Vec<u64>, index: usize| {
        let parent = index.checked_sub(1).map(|before| prompt[before]);
        (prompt[index], Place { index, anchor: prompt[index - index % run], parent })
    };
    prompts
        .iter()
        .flat_map(|prompt| (0..prompt.len()).map(move |index| of(prompt, index)))
        .collect()
}

/// Returns the numbers of the blocks that the store calls hot.
fn hot(store: &Store) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(CLASS_KV, after.as_ref(), Listed::Hot);
        let Some(last) = page.last else { return numbers };
        let rows = page.rows.chunks_exact(PACKED_KEY_BYTES + 32 + 4 + 4 + 8);
        numbers.extend(rows.filter_map(|row| row.first_chunk().copied().map(u64::from_le_bytes)));
        after = Some(last);
    }
}

/// Returns the hit ratio of four vaults, one of which is absent as given; `None`: never.
fn yielding(prompts: &[Vec<u64>], part: u64, absence: Option<(usize, Memory)>) -> Result<f64> {
    let places = places(prompts, 2);
    let mut pool = Pool::new(4, 2, SHARED_BLOCKS / part)?;
    let mut held = 0;
    for (at, prompt) in prompts.iter().enumerate() {
        if let Some((every, memory)) = absence.filter(|_| at.is_multiple_of(ABSENCE_PROMPTS)) {
            let was_away = pool.away;
            pool.away = (at / ABSENCE_PROMPTS).is_multiple_of(every).then_some(0);
            pool.back = if pool.away.is_none() { was_away } else { None };
            if memory == Memory::HandedOver && pool.away.is_some() {
                pool.hand_over(0, &places);
            }
            if memory != Memory::Kept && pool.away.is_some() {
                let fresh = Pool::new(4, 2, SHARED_BLOCKS / part)?;
                pool.vaults[0] = Arc::clone(&fresh.vaults[0]);
            }
        }
        held += pool.take(prompt);
    }
    Ok(held as f64 / prompts.iter().map(Vec::len).sum::<usize>() as f64)
}

fn print_yielding(prompts: &[Vec<u64>], as_json: bool) -> Result<()> {
    for (part, fits) in SIZES {
        let whole = yielding(prompts, part, None)?;
        for (name, every, memory) in ABSENCES {
            let ratio = yielding(prompts, part, Some((every, memory)))?;
            let points = (whole - ratio) * 100.0;
            if as_json {
                println!(
                    "{{\"away\": \"{name}\", \"fits\": \"{fits}\", \"hitRatio\": {ratio:.4}, \"lostPoints\": {points:.2}}}"
                );
            } else {
                println!(
                    "one of four away {name:<53} {fits:>5} fit  hit ratio {ratio:.4}  {points:.2} points less"
                );
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let prompts = prompts(PROMPTS, SEED);
    print_yielding(&prompts, as_json)?;
    if std::env::args().any(|argument| argument == "--yielding") {
        return Ok(());
    }
    let blocks: usize = prompts.iter().map(Vec::len).sum();
    for (scan, scan_name) in SCANS {
        for (part, fits) in SIZES {
            let mut alone = None;
            for (vaults, run) in POOLS {
                let pool = Pool::new(vaults, run, SHARED_BLOCKS / part)?;
                let mut never_again = 1 << 50;
                let mut held = 0;
                for prompt in &prompts {
                    held += pool.take(prompt);
                    let one_time: Vec<u64> = (never_again..never_again + scan).collect();
                    never_again += scan;
                    pool.take(&one_time);
                }
                let ratio = held as f64 / blocks as f64;
                let beside = ratio / *alone.get_or_insert(ratio);
                if as_json {
                    println!(
                        "{{\"scans\": \"{scan_name}\", \"fits\": \"{fits}\", \"vaults\": {vaults}, \"run\": {run}, \
                         \"hitRatio\": {ratio:.4}, \"besideOne\": {beside:.4}}}"
                    );
                } else {
                    println!(
                        "scans {scan_name:<5} {fits:>5} fit  {vaults} vaults, {run:>2} blocks in a row on one  \
                         hit ratio {ratio:.4}  beside one vault {beside:.3}"
                    );
                }
            }
        }
    }
    Ok(())
}
