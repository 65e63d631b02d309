//! Owns the ceiling over all memory of a store, and what counts as used.

use std::sync::Arc;

use super::block::Block;
use super::memory::Reserved;
use crate::sync::{AtomicU64, Ordering};

/// What a record costs besides its allocation: its line of the index, and its part of the table at the fullest moment.
pub const ENTRY_BYTES: u64 = 80;

/// What a reservation costs besides: its key in a set that doubles.
const RESERVATION_BYTES: u64 = 160;

/// The ceiling, and what is under it.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    used: AtomicU64,
    /// Of `used`: pinned or reserved, so not to be had by evicting.
    held: AtomicU64,
    reserved: AtomicU64,
}

impl Budget {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max,
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
        })
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    #[cfg(loom)]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Charges and reserves memory. Nothing is evicted in vain: what can never fit beside the held
    /// memory is refused first.
    pub(super) fn charge(
        self: &Arc<Self>,
        block: Block,
        make_room: impl FnOnce(u64),
    ) -> Option<Reserved> {
        let need = block.allocated_bytes() + ENTRY_BYTES + RESERVATION_BYTES;
        if self.held.load(Ordering::Acquire) + need > self.max {
            return None;
        }
        make_room(need);
        // The ceiling holds whatever a policy does.
        if self.used() + need > self.max {
            return None;
        }
        for counter in [&self.used, &self.held, &self.reserved] {
            counter.fetch_add(need, Ordering::AcqRel);
        }
        Some(Reserved::new(block, Claim { budget: Arc::clone(self), used: need, held: need }))
    }

    /// `bytes` bytes can no longer be had by evicting.
    pub(super) fn hold(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
    }

    /// They can again.
    pub(super) fn unhold(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// `bytes` bytes are not used any more.
    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// What a reservation has taken of the budget, until dropped.
#[derive(Debug)]
pub(super) struct Claim {
    budget: Arc<Budget>,
    used: u64,
    held: u64,
}

impl Claim {
    /// `bytes` of it stay used: whoever gets the budget gives them back.
    pub(super) fn keep(mut self, bytes: u64) -> Arc<Budget> {
        self.used -= bytes;
        Arc::clone(&self.budget)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.budget.give_back(self.used);
        self.budget.unhold(self.held);
        self.budget.reserved.fetch_sub(self.held, Ordering::AcqRel);
    }
}
