//! Owns the memory of records: what it really costs, who holds it, and the ceiling over all of it.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::disk::pages::{PAGE, Pages};
use crate::limits::VIEWED_BYTES_MAX;

/// What a record costs besides its bytes: index slot (tables double, so twice), key, and bookkeeping.
pub const ENTRY_BYTES: u64 = 320;

/// Header of an allocation, as the system allocator keeps it.
const ALLOCATION_BYTES: u64 = 16;

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

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Memory for `bytes` bytes, charged and reserved; `make_room` evicts.
    pub(super) fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        make_room: impl FnOnce(u64),
    ) -> Option<Reserved> {
        self.charge(Buffer::heap(bytes)?, make_room)
    }

    /// Charges and reserves memory. Nothing is evicted in vain: what can never fit beside the held
    /// memory is refused first.
    pub(super) fn charge(
        self: &Arc<Self>,
        buffer: Buffer,
        make_room: impl FnOnce(u64),
    ) -> Option<Reserved> {
        let charge = buffer.allocated_bytes() + ENTRY_BYTES;
        if self.held.load(Ordering::Acquire) + charge > self.max {
            return None;
        }
        make_room(charge);
        // The ceiling holds whatever a policy does.
        if self.used() + charge > self.max {
            return None;
        }
        for counter in [&self.used, &self.held, &self.reserved] {
            counter.fetch_add(charge, Ordering::AcqRel);
        }
        Some(Reserved {
            buffer,
            charge: Charge { budget: Arc::clone(self), bytes: charge },
            _hold: Hold { budget: Arc::clone(self), bytes: charge },
        })
    }
}

/// The bytes of one record.
#[derive(Debug)]
pub(super) enum Buffer {
    /// As they arrived.
    Heap(Vec<u8>),
    /// As they stand on disk: somewhere in whole pages.
    Pages(Pages, Range<usize>),
}

impl Buffer {
    fn heap(bytes: usize) -> Option<Self> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(bytes).ok()?;
        Some(Self::Heap(buffer))
    }

    /// Real memory behind it: what the allocator set aside, and its own header.
    fn allocated_bytes(&self) -> u64 {
        let usable = match self {
            Self::Heap(buffer) => usable_bytes(buffer),
            // Aligned memory is cut out of a piece that is up to a page longer.
            Self::Pages(pages, _) => pages.len() + PAGE,
        };
        usable as u64 + ALLOCATION_BYTES
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(buffer) => buffer,
            Self::Pages(pages, record) => &pages[record.clone()],
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(clippy::ptr_arg, reason = "the pointer must be the allocation's own")]
fn usable_bytes(buffer: &Vec<u8>) -> usize {
    // SAFETY: the system allocator made this pointer with malloc, and `buffer` keeps it alive.
    unsafe { libc::malloc_usable_size(buffer.as_ptr().cast_mut().cast()) }
}

/// Where the allocator cannot be asked: large blocks take whole pages, small ones multiples of 16.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn usable_bytes(buffer: &Vec<u8>) -> usize {
    let step = if buffer.capacity() >= 32 * 1024 { 4096 } else { 16 };
    buffer.capacity().next_multiple_of(step)
}

/// Bytes counted as used, until dropped.
#[derive(Debug)]
struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Bytes that eviction cannot give back, until dropped.
#[derive(Debug)]
struct Hold {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.budget.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Memory of a record in the middle of arriving.
#[derive(Debug)]
pub struct Reserved {
    buffer: Buffer,
    charge: Charge,
    _hold: Hold,
}

impl Reserved {
    /// `bytes` bytes from `start` on; they must fit what was reserved.
    pub(super) fn span(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        let end = start + bytes;
        match &mut self.buffer {
            Buffer::Heap(buffer) => {
                debug_assert!(end <= buffer.capacity(), "fits");
                if buffer.len() < end {
                    buffer.resize(end, 0);
                }
                &mut buffer[start..end]
            }
            Buffer::Pages(pages, record) => &mut pages[record.start + start..record.start + end],
        }
    }

    /// The whole pages around the record, where it stands in pages.
    pub(super) fn pages(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Buffer::Heap(_) => &mut [],
            Buffer::Pages(pages, _) => pages,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The record is whole: its memory can be evicted from now on.
    pub(super) fn into_stored(self) -> Arc<Stored> {
        let buffer = Arc::new(self.buffer);
        Arc::new(Stored { buffer, charge: self.charge, pins: AtomicU32::new(0) })
    }
}

/// A whole, verified record.
#[derive(Debug)]
pub struct Stored {
    buffer: Arc<Buffer>,
    charge: Charge,
    pins: AtomicU32,
}

impl Stored {
    /// What it costs.
    #[must_use]
    pub fn charge(&self) -> u64 {
        self.charge.bytes
    }

    /// Whether evicting it would free nothing.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }
}

impl Deref for Stored {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

/// Keeps a record's memory, evicted or not. Dropped from any thread.
#[derive(Debug)]
pub struct Pin(Arc<Stored>);

impl Pin {
    pub(super) fn new(record: &Arc<Stored>) -> Self {
        if record.pins.fetch_add(1, Ordering::AcqRel) == 0 {
            record.charge.budget.held.fetch_add(record.charge(), Ordering::AcqRel);
        }
        Self(Arc::clone(record))
    }

    pub(super) fn is_of(&self, record: &Arc<Stored>) -> bool {
        Arc::ptr_eq(&self.0, record)
    }

    /// A part of the record for whoever sends it; `None` outside of the record, or when too much is out already.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> Option<View> {
        let bytes = self.get(range.clone())?.len();
        let taken = VIEWED_BYTES.fetch_update(Ordering::AcqRel, Ordering::Acquire, |viewed| {
            Some(viewed + bytes).filter(|viewed| *viewed <= VIEWED_BYTES_MAX)
        });
        taken.ok().map(|_| View { buffer: Arc::clone(&self.0.buffer), range })
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Deref for Pin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.0.pins.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.charge.budget.held.fetch_sub(self.0.charge(), Ordering::AcqRel);
        }
    }
}

static VIEWED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A part of a record on its way out. It keeps the bytes, but pins nothing and is not under the budget:
/// a garbage collector decides when it goes, and must not decide what a store can take.
#[derive(Debug)]
pub struct View {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl Drop for View {
    fn drop(&mut self) {
        VIEWED_BYTES.fetch_sub(self.range.len(), Ordering::AcqRel);
    }
}
