//! Owns the buffers of records in transit: a bounded total, and freed buffers kept for reuse.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Code, Error, Result};
use crate::free_list::{FreeList, Memory};
use crate::lent::{Lendable, LentPlace};
use crate::limits::{POOL_MAPPED_BYTES_MIN, POOL_SPACE_TIMES, STORE_SPARE_BYTES_MIN};
use crate::memory::space::Space;

/// A bounded source of buffers. Records of one geometry have one length, so freed buffers fit exactly.
#[derive(Debug)]
pub struct Pool {
    what: &'static str,
    bytes_max: usize,
    idle_bytes_max: u64,
    idle: FreeList<Buffer>,
    /// Memory of large buffers that can be lent; `None`: each has a mapping of its own.
    space: Option<Arc<Space>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live_bytes: usize,
    live_buffers: usize,
}

impl Pool {
    /// Limits buffers in use to `bytes_max` bytes, and buffers kept for reuse to `idle_bytes_max`.
    #[must_use]
    pub fn new(what: &'static str, bytes_max: usize, idle_bytes_max: usize) -> Arc<Self> {
        Self::over(None, what, bytes_max, idle_bytes_max)
    }

    /// The same, with large buffers in memory that can be lent, where the system has such memory.
    #[must_use]
    pub fn lending(what: &'static str, bytes_max: usize, idle_bytes_max: usize) -> Arc<Self> {
        let space = Space::new("tierkv-records", bytes_max.saturating_mul(POOL_SPACE_TIMES));
        let space = space.filter(|space| space.lendable().is_some()).map(Arc::new);
        Self::over(space, what, bytes_max, idle_bytes_max)
    }

    fn over(
        space: Option<Arc<Space>>,
        what: &'static str,
        bytes_max: usize,
        idle_bytes_max: usize,
    ) -> Arc<Self> {
        let (idle_bytes_max, idle) = (idle_bytes_max as u64, FreeList::default());
        Arc::new(Self { what, bytes_max, idle_bytes_max, idle, space, state: Mutex::default() })
    }

    /// Memory of large buffers as readers may map it.
    #[must_use]
    pub fn lendable(&self) -> Option<&Lendable> {
        self.space.as_ref()?.lendable()
    }

    /// Takes a buffer of exactly `bytes` bytes; its contents are stale.
    ///
    /// # Errors
    /// `NO_MEMORY` when the total would exceed the limit.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<PooledBuffer> {
        {
            let mut state = self.state();
            if bytes > self.bytes_max.saturating_sub(state.live_bytes) {
                return Err(self.exhausted(bytes, state.live_bytes));
            }
            state.live_bytes += bytes;
            state.live_buffers += 1;
        }
        if let Some(buffer) =
            self.idle.take(layout_of(bytes)).or_else(|| Buffer::new(bytes, self.space.as_ref()))
        {
            return Ok(PooledBuffer { buffer, bytes, pool: Arc::clone(self) });
        }
        let mut state = self.state();
        state.live_bytes -= bytes;
        state.live_buffers -= 1;
        Err(self.exhausted(bytes, state.live_bytes))
    }

    fn exhausted(&self, bytes: usize, live_bytes: usize) -> Error {
        let Self { what, bytes_max, .. } = self;
        let text = format!("{bytes} bytes for the {what}: {live_bytes} of {bytes_max} are in use");
        Error::new(Code::NoMemory, text)
    }

    /// (buffers, bytes) in use.
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        let state = self.state();
        (state.live_buffers, state.live_bytes)
    }

    fn put_back(&self, buffer: Buffer) {
        let bytes = buffer.len();
        {
            let mut state = self.state();
            state.live_bytes -= bytes;
            state.live_buffers -= 1;
        }
        // Old buffers are dropped first, so that lengths of engines that have gone do not keep out new ones.
        self.idle.shrink(|| self.idle_bytes_max.saturating_sub(bytes as u64));
        self.idle.put(buffer, || self.idle_bytes_max);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of one buffer. A large one is a mapping of its own, because an allocator may keep freed memory for long, and the
/// process would seem to grow.
#[derive(Debug)]
enum Buffer {
    Allocated(Box<[u8]>),
    Mapped(Mapped),
}

impl Buffer {
    /// Allocates memory; `None` where the system refuses.
    fn new(bytes: usize, space: Option<&Arc<Space>>) -> Option<Self> {
        let is_lent = bytes >= STORE_SPARE_BYTES_MIN;
        if let Some(mapped) =
            space.filter(|_| is_lent).and_then(|space| Mapped::of_space(bytes, space))
        {
            return Some(Self::Mapped(mapped));
        }
        if bytes >= POOL_MAPPED_BYTES_MIN {
            return Mapped::new(bytes).map(Self::Mapped);
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(bytes).ok()?;
        buffer.resize(bytes, 0);
        Some(Self::Allocated(buffer.into_boxed_slice()))
    }
}

impl Memory for Buffer {
    fn layout(&self) -> Layout {
        layout_of(self.len())
    }

    fn real_bytes(&self) -> u64 {
        self.len() as u64
    }
}

fn layout_of(bytes: usize) -> Layout {
    Layout::array::<u8>(bytes).unwrap_or(Layout::new::<u8>())
}

impl Default for Buffer {
    fn default() -> Self {
        Self::Allocated(Box::default())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Allocated(bytes) => bytes,
            // SAFETY: the mapping has that many readable bytes while it lives, written only through `&mut self`.
            Self::Mapped(Mapped { start, bytes, .. }) => unsafe {
                std::slice::from_raw_parts(start.as_ptr().cast(), *bytes)
            },
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Allocated(bytes) => bytes,
            // SAFETY: as above, and the reference is exclusive.
            Self::Mapped(Mapped { start, bytes, .. }) => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr().cast(), *bytes)
            },
        }
    }
}

/// Memory mapped from the system, returned to it when dropped.
#[derive(Debug)]
struct Mapped {
    start: NonNull<c_void>,
    bytes: usize,
    /// Space that it is a part of; `None` for a mapping of its own.
    space: Option<Arc<Space>>,
}

// SAFETY: the mapping belongs to no thread and has one owner.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(bytes: usize) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping aliases nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
        };
        Some(Self { start: NonNull::new(start.ok()?)?, bytes, space: None })
    }

    fn of_space(bytes: usize, space: &Arc<Space>) -> Option<Self> {
        let (start, _) = space.take(bytes)?;
        Some(Self { start: start.cast(), bytes, space: Some(Arc::clone(space)) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(space) = &self.space {
            // SAFETY: taken from the space for so many bytes, and no reference exists.
            unsafe { space.give(self.start.cast(), self.bytes) };
            // Memory for reuse is kept as buffers.
            space.shrink(0);
            return;
        }
        // SAFETY: mapped with this length, and no reference exists. Unmapping an existing mapping cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A buffer that returns to its pool when dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    buffer: Buffer,
    /// Length of the visible part.
    bytes: usize,
    pool: Arc<Pool>,
}

impl PooledBuffer {
    /// Limits the visible part to the first `bytes` bytes; the pool still counts the whole buffer.
    pub fn shorten(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    /// Where it lies in the memory that its pool lends; `None` for other memory.
    #[must_use]
    pub fn place(&self) -> Option<LentPlace<'_>> {
        match &self.buffer {
            Buffer::Mapped(Mapped { space: Some(space), .. }) => space.place_of(self.as_ptr()),
            _ => None,
        }
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.buffer));
    }
}
