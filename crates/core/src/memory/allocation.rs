//! Owns one piece of memory from the system allocator, and what it really takes.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::pages::PAGE;
use crate::free_list::Memory;

/// Header of an allocation, as the system allocator keeps it.
const HEADER_BYTES: u64 = 8;

/// From here on an allocator may take whole pages from the system for one allocation ...
const MAPPED_BYTES_MIN: usize = 32 << 10;
/// ... and below leaves with it what is too little to give to anybody else.
const CRUMB_BYTES: usize = 64;

/// Memory of a layout. Dropped = given back to the allocator.
#[derive(Debug)]
pub(super) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, and hands out nothing but its place.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Memory with whatever stands there; `None` when there is none.
    pub(super) fn new(layout: Layout) -> Option<Self> {
        Self::made_by(alloc, layout)
    }

    /// The same, of zeros.
    pub(super) fn zeroed(layout: Layout) -> Option<Self> {
        Self::made_by(alloc_zeroed, layout)
    }

    fn made_by(make: unsafe fn(Layout) -> *mut u8, layout: Layout) -> Option<Self> {
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the layout is not of size zero.
        let start = NonNull::new(unsafe { make(layout) })?;
        Some(Self { start, layout })
    }

    /// Takes back what `leak` gave away.
    ///
    /// # Safety
    /// `start` and `layout` are of one `leak`, and nobody else refers to that memory any more.
    pub(super) unsafe fn adopt(start: NonNull<u8>, layout: Layout) -> Self {
        Self { start, layout }
    }

    /// Its memory, which whoever has it must give to `adopt`.
    pub(super) fn leak(self) -> NonNull<u8> {
        let start = self.start;
        std::mem::forget(self);
        start
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
        real_bytes(self.start, self.layout)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody refers to it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// What the allocator set aside for memory of this layout, and its own header.
pub(super) fn real_bytes(start: NonNull<u8>, layout: Layout) -> u64 {
    // Aligned memory is cut out of a piece that is up to a page longer.
    let is_aligned = layout.align() >= PAGE;
    let usable = if is_aligned { layout.size() + PAGE } else { usable_bytes(start, layout.size()) };
    usable as u64 + HEADER_BYTES
}

/// The most that the system allocator takes for memory of this layout.
pub(super) fn real_bytes_max(layout: Layout) -> u64 {
    let usable = layout.size() + if layout.size() < MAPPED_BYTES_MIN { CRUMB_BYTES } else { PAGE };
    usable as u64 + HEADER_BYTES
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn usable_bytes(start: NonNull<u8>, _: usize) -> usize {
    // SAFETY: the system allocator made this pointer with malloc, and it is alive.
    unsafe { libc::malloc_usable_size(start.as_ptr().cast()) }
}

/// Where the allocator cannot be asked: large blocks take whole pages, small ones multiples of 16.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn usable_bytes(_: NonNull<u8>, bytes: usize) -> usize {
    let step = if bytes >= MAPPED_BYTES_MIN { PAGE } else { 16 };
    bytes.next_multiple_of(step)
}
