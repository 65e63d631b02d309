//! Owns the ceiling over all memory of a store, and what counts as used.

use std::alloc::Layout;
use std::sync::Arc;

use super::Reserved;
use super::allocation::Allocation;
use super::buffer::{RecordBuffer, Shape};
use super::space::Space;
use crate::free_list::{FreeList, Memory as _};
use crate::limits::{STORE_SPACE_TIMES, STORE_SPARE_BYTES_MIN};
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
    /// Where records of many pages lie; `None` where the system gives none. What is spare stays with `used` under the ceiling, too.
    space: Option<Arc<Space>>,
    /// The same of memory that the system allocator made.
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
                .and_then(Space::new)
                .map(Arc::new),
        })
    }

    pub(super) fn space(&self) -> Option<&Arc<Space>> {
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

    /// Memory of this layout that a record gave back, with whatever stood there.
    pub(super) fn spare(&self, layout: Layout) -> Option<Allocation> {
        if is_kept(layout) { self.free_list.take(layout) } else { None }
    }

    /// Keeps the memory of a record that is gone, as far as the ceiling allows.
    pub(super) fn keep_spare(&self, memory: Allocation) {
        if memory.is_of_space() {
            drop(memory);
            self.shrink();
        } else if is_kept(memory.layout()) {
            self.free_list.put(memory, || self.free());
        }
    }

    /// Gives the system what no record needed since the last time.
    pub(crate) fn trim(&self) {
        self.free_list.trim();
        if let Some(space) = &self.space {
            space.trim();
        }
    }

    /// Gives the system what of the spare memory is beyond the ceiling.
    fn shrink(&self) {
        self.free_list.shrink(|| self.free());
        if let Some(space) = &self.space {
            space.shrink(self.free().saturating_sub(self.free_list.bytes()));
        }
    }

    fn free(&self) -> u64 {
        self.max.saturating_sub(self.used())
    }

    /// Charges and reserves memory of a shape. Nothing is evicted in vain: what can never fit beside the held memory is
    /// refused first. Memory that `make_room` frees is what the new record takes, where it has the same shape.
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
        // One that somebody put in the system allocator's place may take more than that does.
        if taken > need {
            need = taken;
            make_room(need);
        }
        // The ceiling holds whatever a policy does.
        if self.used() + need > self.max {
            return None;
        }
        for counter in [&self.used, &self.held, &self.reserved] {
            counter.fetch_add(need, Ordering::AcqRel);
        }
        self.shrink();
        Some(Reserved::new(buffer, Claim { budget: Arc::clone(self), bytes: need }))
    }

    /// Uses `bytes` bytes that cannot be had by evicting; whether they fit.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let fits = self.used() + bytes <= self.max;
        if fits {
            self.used.fetch_add(bytes, Ordering::AcqRel);
            self.hold(bytes);
            self.shrink();
        }
        fits
    }

    /// `bytes` bytes can no longer be had by evicting.
    pub(crate) fn hold(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
    }

    /// They can again.
    pub(crate) fn unhold(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// `bytes` bytes are not used any more.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Small memory is the allocator's to keep: it takes and gives it without the system.
fn is_kept(layout: Layout) -> bool {
    layout.size() >= STORE_SPARE_BYTES_MIN
}

/// What a reservation has taken of the budget, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Claim {
    /// `bytes` bytes of it stay used: whoever gets the budget gives them back.
    pub(crate) fn keep(mut self, bytes: u64) -> Arc<Budget> {
        self.end(self.bytes - bytes);
        self.bytes = 0;
        Arc::clone(&self.budget)
    }

    /// So many bytes of it are not used any more, and none of it is held.
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
