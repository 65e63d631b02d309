//! Owns the memory of one record: a single allocation, with its reference counts in front of the bytes.

use std::alloc::Layout;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::allocation::{Allocation, real_bytes, real_bytes_max};
use super::budget::Budget;
use super::pages::PAGE;
use crate::free_list::Memory as _;
use crate::limits::STORE_POPULATE_BYTES;
use crate::sync::{AtomicU32, Ordering};

/// Header in front of a complete record.
#[derive(Debug)]
pub(super) struct Head {
    /// References of all kinds; the memory is freed with the last one.
    handles: AtomicU32,
    /// References that keep the record charged; counted by `memory`.
    pub(super) holders: AtomicU32,
    pub(super) budget: Arc<Budget>,
    /// Full id of the record's tenant; the tables count by shorter numbers.
    pub(super) tenant: u64,
    start: u32,
    bytes: u32,
}

const HEAD_BYTES: usize = size_of::<Head>();

/// Layout of a record in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    start: u32,
    bytes: u32,
    layout: Layout,
}

impl Shape {
    /// Shape of a record right behind its header; `None` for an impossible length.
    pub(crate) fn of_record(bytes: usize) -> Option<Self> {
        Self::new(HEAD_BYTES, bytes)
    }

    /// Shape of aligned whole pages, as on disk, with the record at `record`; the header must fit in front of it.
    pub(crate) fn of_pages(record: &Range<usize>) -> Option<Self> {
        Self::new(record.start, record.len()).filter(|_| record.start > HEAD_BYTES)
    }

    fn new(start: usize, bytes: usize) -> Option<Self> {
        let (start, bytes) = (u32::try_from(start).ok()?, u32::try_from(bytes).ok()?);
        Some(Self { start, bytes, layout: layout(start, bytes)? })
    }

    /// Most bytes that the system allocator takes for this shape.
    pub(crate) fn real_bytes_max(&self) -> u64 {
        real_bytes_max(self.layout)
    }
}

/// Memory of an arriving record, with a single owner.
#[derive(Debug)]
pub(super) struct RecordBuffer {
    memory: Allocation,
    /// Offset and length of the record.
    start: u32,
    bytes: u32,
    /// Initialised bytes of the record.
    ready: u32,
    /// Bytes of the record whose pages have memory, as far as is known.
    present: u32,
}

impl RecordBuffer {
    /// Memory of this shape, spare memory first; `None` when there is none.
    pub(super) fn new(shape: Shape, budget: &Budget) -> Option<Self> {
        let Shape { start, bytes, layout } = shape;
        if let Some(memory) = budget.spare(layout) {
            return Some(Self { memory, start, bytes, ready: 0, present: bytes });
        }
        let (memory, are_zeros) = Allocation::new(layout, budget.space())?;
        // Pages without memory read as zeros; pages of an earlier record have memory, and are cleared.
        let (ready, present) = if are_zeros { (bytes, 0) } else { (0, bytes) };
        Some(Self { memory, start, bytes, ready, present })
    }

    /// Real memory in bytes: the allocator's usable size and header.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.memory.real_bytes()
    }

    /// Bytes of the record; bytes not written yet are zeros.
    pub(super) fn span(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes as usize, "fits");
        self.provide(range.end);
        // SAFETY: within the allocation, as checked.
        let from = unsafe { self.record().add(range.start) };
        // SAFETY: initialised, and the reference to us is exclusive.
        unsafe { std::slice::from_raw_parts_mut(from.as_ptr(), range.len()) }
    }

    /// Gives the first `end` bytes of the record memory, and initialises them.
    fn provide(&mut self, end: usize) {
        let (ready, present) = (self.ready as usize, self.present as usize);
        if present < end {
            let start = self.start as usize;
            let to = (present + STORE_POPULATE_BYTES).clamp(end, self.bytes as usize);
            self.memory.populate(start + present..start + to);
            self.present = u32::try_from(to).unwrap_or(self.bytes);
        }
        if ready < end {
            // SAFETY: within the allocation: `ready` is at most `end`, which is at most `bytes`.
            let from = unsafe { self.record().add(ready) };
            // SAFETY: so many bytes from there end at `end`.
            unsafe { from.write_bytes(0, end - ready) };
            self.ready = u32::try_from(end).unwrap_or(self.bytes);
        }
    }

    /// The pages around the record, if it was reserved in pages.
    pub(super) fn pages(&mut self) -> &mut [u8] {
        let bytes = if is_in_pages(self.start) { self.memory.layout().size() } else { 0 };
        if bytes > 0 && self.ready == 0 {
            // SAFETY: as long as its layout says, and the reference to us is exclusive.
            unsafe { self.memory.start().write_bytes(0, bytes) };
            self.ready = self.bytes;
        }
        // SAFETY: that many bytes are initialised, and the reference to `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), bytes) }
    }

    /// The initialised bytes of the record.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the first `ready` bytes of the record are initialised.
        unsafe { std::slice::from_raw_parts(self.record().as_ptr(), self.ready as usize) }
    }

    /// Turns the complete record into a shared one; its memory counts against `budget`.
    pub(super) fn share(mut self, holders: u32, tenant: u64, budget: Arc<Budget>) -> RecordRef {
        let (start, bytes) = (self.start, self.bytes);
        self.span(0..bytes as usize);
        let (handles, holders) = (AtomicU32::new(1), AtomicU32::new(holders));
        let head = self.memory.leak().cast::<Head>();
        // SAFETY: aligned for it, and the record begins behind it.
        unsafe { head.write(Head { handles, holders, budget, tenant, start, bytes }) };
        RecordRef { head }
    }

    fn record(&self) -> NonNull<u8> {
        // SAFETY: the record begins within the allocation.
        unsafe { self.memory.start().add(self.start as usize) }
    }
}

/// A counted reference to a whole record.
#[derive(Debug)]
pub(super) struct RecordRef {
    head: NonNull<Head>,
}

// SAFETY: the record is never written again, apart from its atomic counts.
unsafe impl Send for RecordRef {}
// SAFETY: as above.
unsafe impl Sync for RecordRef {}

impl RecordRef {
    pub(super) fn head(&self) -> &Head {
        // SAFETY: `share` wrote it, and it stays while there is a handle.
        unsafe { self.head.as_ref() }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.head == other.head
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        let Head { start, bytes, ref budget, .. } = *self.head();
        let real = |layout| real_bytes(self.head.cast(), layout, budget.space());
        layout(start, bytes).map_or(0, real)
    }
}

impl Deref for RecordRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Head { start, bytes, .. } = *self.head();
        // SAFETY: the record begins within the allocation.
        let record = unsafe { self.head.cast::<u8>().add(start as usize) };
        // SAFETY: `share` initialised all of it, and it is never written again.
        unsafe { std::slice::from_raw_parts(record.as_ptr(), bytes as usize) }
    }
}

impl Clone for RecordRef {
    fn clone(&self) -> Self {
        self.head().handles.fetch_add(1, Ordering::Relaxed);
        Self { head: self.head }
    }
}

impl Drop for RecordRef {
    fn drop(&mut self) {
        // All accesses through other handles happen before the memory is freed. Not by a fence, because ThreadSanitizer knows none.
        if self.head().handles.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // SAFETY: this was the last handle.
        let Head { start, bytes, budget, .. } = unsafe { self.head.read() };
        if let Some(layout) = layout(start, bytes) {
            // SAFETY: `share` leaked it with this layout.
            budget
                .keep_spare(unsafe { Allocation::adopt(self.head.cast(), layout, budget.space()) });
        }
    }
}

/// Whether more than the header stands in front of the record, because it lies in pages as on disk.
fn is_in_pages(start: u32) -> bool {
    start as usize != HEAD_BYTES
}

fn extent(start: u32, bytes: u32) -> usize {
    let end = start as usize + bytes as usize;
    if is_in_pages(start) { end.next_multiple_of(PAGE) } else { end }
}

fn layout(start: u32, bytes: u32) -> Option<Layout> {
    let align = if is_in_pages(start) { PAGE } else { align_of::<Head>() };
    Layout::from_size_align(extent(start, bytes), align).ok()
}
