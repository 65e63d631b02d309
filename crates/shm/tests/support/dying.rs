//! Owns memory whose process is killed before its Nth step: every write and every lock is such a step.

#[macro_use]
#[path = "delegated.rs"]
mod delegated;

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use tierkv_core::error::Result;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::visibility::{Fabric, LastOwner};

pub struct Dying {
    pub memory: Mapping,
    pub steps: AtomicU64,
    pub dies_at: u64,
    /// Only the thread's work ends there.
    pub panics: bool,
}

impl Dying {
    fn step(&self) {
        if self.steps.fetch_add(1, Ordering::Relaxed) == self.dies_at {
            assert!(!self.panics, "as told");
            kill_process(getpid(), Signal::KILL).expect("a process may end itself");
        }
    }
}

impl Fabric for Dying {
    delegated!();
    fn load(&self, at: u64) -> u64 {
        self.memory.load(at)
    }
    fn store(&self, at: u64, word: u64) {
        self.step();
        self.memory.store(at, word);
    }
    fn copy_in(&self, at: u64, bytes: &[u8]) {
        self.step();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.memory.copy_in(at, first);
        self.step();
        self.memory.copy_in(at + first.len() as u64, second);
    }
    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        self.step();
        self.memory.copy_out(at, bytes);
    }
    fn lock(&self) -> Result<LastOwner> {
        self.step();
        let owner = self.memory.lock();
        self.step();
        owner
    }
    fn repaired(&self) {
        self.step();
        self.memory.repaired();
    }
    fn unlock(&self) {
        self.step();
        self.memory.unlock();
    }
}
