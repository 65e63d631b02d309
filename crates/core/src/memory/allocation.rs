//! Owns one piece of memory, from a store's address space or from the system allocator, and its real size.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pages::PAGE;
use super::space::{Space, pages_of, populate};
use crate::free_list::Memory;
use crate::limits::STORE_SPARE_BYTES_MIN;

/// Header that the system allocator keeps per allocation.
const HEADER_BYTES: u64 = 8;

/// From this size on the allocator may map whole pages for one allocation.
const MAPPED_BYTES_MIN: usize = 32 << 10;
/// Below that size the allocator may add up to this much, because a smaller rest is of no use.
const CRUMB_BYTES: usize = 64;

/// Memory of a layout, freed when dropped.
#[derive(Debug)]
pub(super) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    /// Address space of the pages; `None` for memory of the system allocator.
    space: Option<Arc<Space>>,
}

// SAFETY: the value owns its memory and shares only the address.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates from `space` if large enough, else from the allocator; also returns whether the bytes are zeros.
    pub(super) fn new(layout: Layout, space: Option<&Arc<Space>>) -> Option<(Self, bool)> {
        let of_allocator = || Some((Self::made_by_allocator(layout)?, false));
        Self::in_space(layout, space).or_else(of_allocator)
    }

    fn in_space(layout: Layout, space: Option<&Arc<Space>>) -> Option<(Self, bool)> {
        let space = space.filter(|_| layout.size() >= STORE_SPARE_BYTES_MIN)?;
        let (start, are_zeros) = space.take(layout.size())?;
        Some((Self { start, layout, space: Some(Arc::clone(space)) }, are_zeros))
    }

    /// Faults the pages of `bytes` in at once, which costs less than a fault for each. A system that cannot do so faults later.
    pub(super) fn populate(&self, bytes: Range<usize>) {
        if self.space.is_some() && bytes.end <= self.layout.size() {
            // SAFETY: within the allocation, as checked.
            let from = unsafe { self.start.add(bytes.start) };
            // SAFETY: our own, in the space.
            unsafe { populate(from, bytes.len()) };
        }
    }

    fn made_by_allocator(layout: Layout) -> Option<Self> {
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the layout is not of size zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        Some(Self { start, layout, space: None })
    }

    /// Takes back memory that `leak` gave away.
    ///
    /// # Safety
    /// `start` and `layout` belong to one `leak`, `space` is the one the memory was made with, and no other reference exists.
    pub(super) unsafe fn adopt(
        start: NonNull<u8>,
        layout: Layout,
        space: Option<&Arc<Space>>,
    ) -> Self {
        Self { start, layout, space: space.filter(|space| space.has(start)).cloned() }
    }

    /// Gives the memory away, to be passed to `adopt` later; the space must live until then.
    pub(super) fn leak(mut self) -> NonNull<u8> {
        let start = self.start;
        self.space = None;
        std::mem::forget(self);
        start
    }

    /// Whether the pages stay spare in their space after the drop.
    pub(super) fn is_of_space(&self) -> bool {
        self.space.is_some()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Memory for Allocation {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn real_bytes(&self) -> u64 {
        real_bytes(self.start, self.layout, self.space.as_ref())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match &self.space {
            // SAFETY: taken from the space for this layout, and no reference exists.
            Some(space) => unsafe { space.give(self.start, self.layout.size()) },
            // SAFETY: allocated with this layout, and no reference exists.
            None => unsafe { dealloc(self.start.as_ptr(), self.layout) },
        }
    }
}

/// Real bytes of memory of this layout: its pages, or the allocator's usable size and header.
pub(super) fn real_bytes(start: NonNull<u8>, layout: Layout, space: Option<&Arc<Space>>) -> u64 {
    if space.is_some_and(|space| space.has(start)) {
        return (pages_of(layout.size()) * PAGE) as u64;
    }
    // The allocator cuts aligned memory out of a piece up to a page longer.
    let is_aligned = layout.align() >= PAGE;
    let usable = if is_aligned { layout.size() + PAGE } else { usable_bytes(start, layout.size()) };
    usable as u64 + HEADER_BYTES
}

/// Most bytes that the system allocator takes for memory of this layout.
pub(super) fn real_bytes_max(layout: Layout) -> u64 {
    let usable = layout.size() + if layout.size() < MAPPED_BYTES_MIN { CRUMB_BYTES } else { PAGE };
    usable as u64 + HEADER_BYTES
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn usable_bytes(start: NonNull<u8>, _: usize) -> usize {
    // SAFETY: the system allocator made this pointer with malloc, and it is alive.
    unsafe { libc::malloc_usable_size(start.as_ptr().cast()) }
}

/// Where the usable size is unknown: large blocks take whole pages, small ones multiples of 16.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn usable_bytes(_: NonNull<u8>, bytes: usize) -> usize {
    let step = if bytes >= MAPPED_BYTES_MIN { PAGE } else { 16 };
    bytes.next_multiple_of(step)
}
