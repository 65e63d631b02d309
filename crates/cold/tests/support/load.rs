//! Owns a load of reads while a store has faults: what does not come is saved again, and what comes is compared with its page.

use std::time::{Duration, Instant};

use tierkv_cold::desk::Work;

use super::bench::{ACCEPTED, Bench, NAMESPACE, PRESENT, SOON, statuses};
use super::server::until;

/// Time of a restore, as an engine gives it.
pub const WITHIN: Duration = Duration::from_millis(400);
/// Beyond it a request must have ended, with what a busy machine may take to run a thread.
pub const END: Duration = Duration::from_secs(3);
const BLOCKS: u32 = 32;
const SLOTS: u32 = 80;

pub struct Load {
    pub bench: Bench,
    pub blocks: Vec<u32>,
    /// Reads of blocks while a fault was there, and those that brought the block.
    pub reads: usize,
    pub came: usize,
    pub longest: Duration,
}

/// Reads that a run makes: with `TIERKV_TEST_LONG` ten thousand.
pub fn wanted() -> usize {
    if std::env::var_os("TIERKV_TEST_LONG").is_some() { 10_000 } else { 1_500 }
}

impl Load {
    pub fn of(bench: Bench) -> Self {
        let blocks = (0..BLOCKS).collect();
        Self { bench, blocks, reads: 0, came: 0, longest: Duration::ZERO }
    }

    fn note(&mut self, statuses: &[u8]) {
        self.reads += self.blocks.len();
        self.came += (0..statuses.len()).filter(|at| statuses[*at] == ACCEPTED).count();
    }

    /// Reads all blocks `rounds` times; those that do not come are saved again, as an engine that computed them does.
    pub fn read(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let begun = Instant::now();
            let fetched = self.bench.fetch(&self.blocks, WITHIN);
            self.longest = self.longest.max(begun.elapsed());
            let statuses = fetched.unwrap_or_default();
            self.note(&statuses);
            let came = |at: &usize| statuses.get(*at) == Some(&ACCEPTED);
            let lost: Vec<u32> = (0..self.blocks.len())
                .filter(|at| !came(at) && !statuses.is_empty())
                .map(|at| self.blocks[at])
                .collect();
            if !lost.is_empty() {
                // It may fail while nodes are away.
                let _ = self.bench.store(&lost);
            }
        }
    }

    /// Calls `fault` while a restore is under way.
    pub fn read_during(&mut self, fault: impl FnOnce()) {
        let (goal, leases) = self.bench.targets(&self.blocks);
        let begun = Instant::now();
        let request = self.bench.desk.begin(Work::Fetch(goal), WITHIN, self.bench.asker).unwrap();
        fault();
        let caused = begun.elapsed();
        let done = self.bench.outcome(request).map(statuses).unwrap_or_default();
        // What the fault itself took is not the request's.
        self.longest = self.longest.max(begun.elapsed().saturating_sub(caused));
        self.bench.check(&self.blocks, &leases, &done);
        self.note(&done);
    }

    /// Calls `fault` while a save of other blocks is under way. What was saved is not known; what comes is compared with its page.
    pub fn save_during(&mut self, fault: impl FnOnce()) {
        let fresh: Vec<u32> = (40..64).collect();
        let (records, leases) = self.bench.records(&fresh);
        let work = Work::Store(NAMESPACE, records);
        let request = self.bench.desk.begin(work, SOON, self.bench.asker).unwrap();
        fault();
        let _ = self.bench.outcome(request);
        for lease in leases {
            self.bench.arena.slots().release(lease).unwrap();
        }
        let _ = self.bench.fetch(&fresh, WITHIN);
    }

    /// Waits until every block is there again.
    pub fn heals(&mut self, what: &str) {
        let is_all = |done: tierkv_core::error::Result<Vec<u8>>, good: &[u8]| {
            done.is_ok_and(|statuses| statuses.iter().all(|status| good.contains(status)))
        };
        until(what, || {
            is_all(self.bench.store(&self.blocks), &[ACCEPTED, PRESENT])
                && is_all(self.bench.fetch(&self.blocks, SOON), &[ACCEPTED])
        });
    }

    /// Checks what has to hold at the end of a run.
    pub fn ends(&self) {
        assert_eq!(self.bench.free_slots(), SLOTS, "no slot is lost");
        assert!(self.came > 0 && self.came < self.reads, "faults cost some reads, and not all");
        assert!(self.longest < END, "a request took {:?}", self.longest);
        #[expect(clippy::print_stderr, reason = "figures of the run")]
        {
            eprintln!(
                "{} faulted reads, {} came, longest {:?}",
                self.reads, self.came, self.longest
            );
        }
    }
}
