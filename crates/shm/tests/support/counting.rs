//! Owns memory that counts the words that are read and written in one turn with its lock.

#[macro_use]
#[path = "delegated.rs"]
mod delegated;

use std::sync::atomic::{AtomicU64, Ordering};

use tierkv_core::error::Result;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::visibility::{Fabric, LastOwner};

pub struct Counting {
    memory: Mapping,
    turn: AtomicU64,
    most: AtomicU64,
}

impl Counting {
    pub fn of(memory: Mapping) -> Self {
        Self { memory, turn: 0.into(), most: 0.into() }
    }

    /// Words of the longest turn of `work`.
    pub fn most_of_a_turn(&self, work: impl FnOnce()) -> u64 {
        self.most.store(0, Ordering::Relaxed);
        work();
        self.most.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }
}

impl Fabric for Counting {
    delegated!();
    fn load(&self, at: u64) -> u64 {
        self.count();
        self.memory.load(at)
    }
    fn store(&self, at: u64, word: u64) {
        self.count();
        self.memory.store(at, word);
    }
    fn copy_in(&self, at: u64, bytes: &[u8]) {
        self.memory.copy_in(at, bytes);
    }
    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        self.memory.copy_out(at, bytes);
    }
    fn lock(&self) -> Result<LastOwner> {
        let owner = self.memory.lock();
        self.turn.store(0, Ordering::Relaxed);
        owner
    }
    fn repaired(&self) {
        self.memory.repaired();
    }
    fn unlock(&self) {
        self.most.fetch_max(self.turn.load(Ordering::Relaxed), Ordering::Relaxed);
        self.memory.unlock();
    }
}
