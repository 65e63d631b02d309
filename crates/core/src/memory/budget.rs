//! Owns the byte budget of a store, and the accounting of used, held and spare memory.

use std::alloc::Layout;
use std::sync::Arc;

use super::Reserved;
use super::allocation::Allocation;
use super::buffer::{RecordBuffer, Shape};
use super::space::Space;
use crate::free_list::{FreeList, Memory as _};
use crate::limits::{STORE_SPACE_TIMES, STORE_SPARE_BYTES_MIN};
use crate::sync::{AtomicU64, Ordering};

/// Memory of a record besides its allocation: its line of the index, and its part of the table at the fullest moment.
pub const ENTRY_BYTES: u64 = 80;

/// Further memory of a reservation: its key in a set that doubles.
const RESERVATION_BYTES: u64 = 160;

/// The budget and the memory counted against it.
#[derive(Debug)]
pub struct Budget {
    max: u64,
    used: AtomicU64,
    /// Part of `used` that eviction cannot free: pinned or reserved.
    held: AtomicU64,
    reserved: AtomicU64,
    /// Address space for records of many pages; `None` where the system gives none. Its spare pages stay within the budget, too.
    space: Option<Arc<Space>>,
    /// Spare memory of the system allocator.
    free_list: FreeList<Allocation>,
}

impl Budget {
    pub(crate) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max,
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            free_list: FreeList::default(),
            space: usize::try_from(max.saturating_mul(STORE_SPACE_TIMES))
                .ok()
                .and_then(|bytes| Space::new("tierkv-store", bytes))
                .map(Arc::new),
        })
    }

    pub(crate) fn space(&self) -> Option<&Arc<Space>> {
        self.space.as_ref()
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    #[cfg(loom)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    pub(crate) fn spare_bytes(&self) -> u64 {
        self.free_list.bytes() + self.space().map_or(0, |space| space.spare_bytes())
    }

    /// Spare memory of this layout; its contents are stale.
    pub(super) fn spare(&self, layout: Layout) -> Option<Allocation> {
        if is_kept(layout) { self.free_list.take(layout) } else { None }
    }

    /// Keeps the memory of a removed record as spare, as far as the budget allows.
    pub(super) fn keep_spare(&self, memory: Allocation) {
        if memory.is_of_space() {
            drop(memory);
            self.shrink();
        } else if is_kept(memory.layout()) {
            self.free_list.put(memory, || self.free());
        }
    }

    /// Returns memory to the system that no record needed since the last call.
    pub(crate) fn trim(&self) {
        self.free_list.trim();
        if let Some(space) = &self.space {
            space.trim();
        }
    }

    /// Returns spare memory above the budget to the system.
    fn shrink(&self) {
        self.free_list.shrink(|| self.free());
        if let Some(space) = &self.space {
            space.shrink(self.free().saturating_sub(self.free_list.bytes()));
        }
    }

    fn free(&self) -> u64 {
        self.max.saturating_sub(self.used())
    }

    /// Charges and reserves memory of a shape. A record that can never fit beside the held memory is refused first, so that
    /// eviction is never in vain. The new record takes memory that `make_room` frees, if its shape is the same.
    pub(crate) fn charge(
        self: &Arc<Self>,
        shape: Shape,
        mut make_room: impl FnMut(u64),
    ) -> Option<Reserved> {
        let mut need = shape.real_bytes_max() + ENTRY_BYTES + RESERVATION_BYTES;
        if self.held.load(Ordering::Acquire) + need > self.max {
            return None;
        }
        make_room(need);
        let buffer = RecordBuffer::new(shape, self)?;
        let taken = buffer.allocated_bytes() + ENTRY_BYTES + RESERVATION_BYTES;
        // A replacement of the system allocator may take more than estimated.
        if taken > need {
            need = taken;
            make_room(need);
        }
        // The budget holds even if the policy frees too little.
        if self.used() + need > self.max {
            return None;
        }
        for counter in [&self.used, &self.held, &self.reserved] {
            counter.fetch_add(need, Ordering::AcqRel);
        }
        self.shrink();
        Some(Reserved::new(buffer, Claim { budget: Arc::clone(self), bytes: need }))
    }

    /// Charges `bytes` that eviction cannot free; returns whether they fit.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let fits = self.used() + bytes <= self.max;
        if fits {
            self.used.fetch_add(bytes, Ordering::AcqRel);
            self.hold(bytes);
            self.shrink();
        }
        fits
    }

    /// Marks `bytes` as not evictable.
    pub(crate) fn hold(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Ends a `hold`.
    pub(crate) fn unhold(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Marks `bytes` as no longer used.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Whether freed memory of this layout is kept; the allocator itself keeps small pieces.
fn is_kept(layout: Layout) -> bool {
    layout.size() >= STORE_SPARE_BYTES_MIN
}

/// A reservation's charge to the budget, ended when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Claim {
    /// Ends the claim but leaves `bytes` charged; the holder of the returned budget gives them back.
    pub(crate) fn keep(mut self, bytes: u64) -> Arc<Budget> {
        self.end(self.bytes - bytes);
        self.bytes = 0;
        Arc::clone(&self.budget)
    }

    /// Ends the claim; `unused` of its bytes are no longer used, and none is held.
    fn end(&self, unused: u64) {
        self.budget.give_back(unused);
        self.budget.unhold(self.bytes);
        self.budget.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end(self.bytes);
    }
}
