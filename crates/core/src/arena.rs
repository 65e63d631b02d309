//! Owns an engine's shared memory: mapping, background allocation, and access to slots under lease.

mod backing;
mod prefault;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use backing::sweep;
use backing::{Backing, Mapping};

use crate::error::{Error, Result};
use crate::limits::{SLOT_ALIGN_BYTES, SLOT_COUNT_MAX};
use crate::slots::{Lease, SlotTable};

/// Options of an arena.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// Bytes of a slot: a multiple of 4096.
    pub slot_bytes: u64,
    /// How many slots.
    pub slot_count: u32,
    /// Directory for a file; `None` for a sealed memfd, or for a file in the temp folder where there is no memfd.
    pub dir: Option<&'a Path>,
    /// Number in the name that `/proc` shows for the memory in each process.
    pub label: u32,
}

/// State of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Slots in all.
    pub slot_count: u32,
    /// Slots that have memory.
    pub touched_slots: u32,
    /// Slots that can be leased.
    pub free_slots: u32,
    /// Slots that are leased, or still being copied.
    pub leased_slots: u32,
    /// Reason why the other slots will never have memory.
    pub failed: Option<String>,
}

/// One engine's shared memory, unmapped with its last reference.
#[derive(Debug)]
pub struct Arena {
    backing: Backing,
    mapping: Mapping,
    slot_bytes: usize,
    slot_count: u32,
    slots: Mutex<SlotTable>,
    prefaulting: AtomicBool,
    closed: AtomicBool,
    failed: OnceLock<String>,
}

impl Arena {
    /// Creates, sizes and maps the shared memory. No slot has memory until `prefault`.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for sizes, `ARENA_FAILED` when the system refuses.
    pub fn create(options: &Options<'_>) -> Result<Self> {
        let slot_bytes = check_slot_bytes(options.slot_bytes)?;
        if !(1..=SLOT_COUNT_MAX).contains(&options.slot_count) {
            return Err(Error::bad_argument(format!(
                "slotCount is {}: it must be 1 to {SLOT_COUNT_MAX}",
                options.slot_count
            )));
        }
        let bytes = slot_bytes.checked_mul(options.slot_count as usize).ok_or_else(|| {
            Error::bad_argument("slotBytes * slotCount is more than an address space holds")
        })?;
        let backing = Backing::create(options.dir, options.label, bytes)?;
        let mapping = Mapping::new(&backing, bytes)?;
        Ok(Self {
            backing,
            mapping,
            slot_bytes,
            slot_count: options.slot_count,
            slots: Mutex::default(),
            prefaulting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
        })
    }

    /// Path at which this machine's tools find the memory while it exists; other processes receive its descriptor.
    #[must_use]
    pub fn path(&self) -> &str {
        self.backing.path()
    }

    /// Bytes of all slots.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Starts to allocate and touch the slots in the background, one after another; once only.
    ///
    /// # Errors
    /// `ARENA_FAILED` when no thread can be started.
    pub fn prefault(self: &Arc<Self>) -> Result<()> {
        if self.prefaulting.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        prefault::start(Arc::clone(self))
    }

    /// Returns the current state.
    #[must_use]
    pub fn status(&self) -> Status {
        let slots = self.slots();
        Status {
            slot_bytes: self.slot_bytes,
            slot_count: self.slot_count,
            touched_slots: slots.touched(),
            free_slots: slots.free(),
            leased_slots: slots.touched() - slots.free(),
            failed: self.failed.get().cloned(),
        }
    }

    /// Locks and returns the table of slots.
    pub fn slots(&self) -> MutexGuard<'_, SlotTable> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the background work and removes the file; the memory is unmapped with the last reference.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.backing.unlink();
    }

    /// Returns access to the bytes of a leased slot, which cannot be leased again meanwhile.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the lease is stale.
    pub fn access(self: &Arc<Self>, lease: Lease) -> Result<SlotAccess> {
        self.slots().begin_use(lease)?;
        Ok(SlotAccess { arena: Arc::clone(self), slot: lease.slot })
    }

    /// Returns a copy of a slot, leased or not.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when there is no such slot yet.
    pub fn peek(&self, slot: u32) -> Result<Vec<u8>> {
        let start = self.touched_slot(slot)?;
        let mut copy = vec![0; self.slot_bytes];
        // SAFETY: the slot is `slot_bytes` long and mapped; `copy` is our own.
        unsafe { start.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
        Ok(copy)
    }

    /// Overwrites the start of a slot, leased or not, for tests.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when there is no such slot yet, or `bytes` is longer than it.
    pub fn poke(&self, slot: u32, bytes: &[u8]) -> Result<()> {
        let start = self.touched_slot(slot)?;
        if bytes.len() > self.slot_bytes {
            return Err(Error::bad_argument(format!(
                "{} bytes do not fit a slot of {}",
                bytes.len(),
                self.slot_bytes
            )));
        }
        // SAFETY: checked to fit; the slot is mapped and does not overlap `bytes`.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn touched_slot(&self, slot: u32) -> Result<*mut u8> {
        let touched = self.slots().touched();
        if slot >= touched {
            return Err(Error::bad_argument(format!(
                "slot {slot} does not exist: {touched} slots are ready"
            )));
        }
        Ok(self.mapping.at(slot as usize * self.slot_bytes))
    }
}

impl AsFd for Arena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backing.as_fd()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.close();
    }
}

fn check_slot_bytes(bytes: u64) -> Result<usize> {
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(SLOT_ALIGN_BYTES))
        .ok_or_else(|| {
            Error::bad_argument(format!(
                "slotBytes is {bytes}: it must be a multiple of {SLOT_ALIGN_BYTES}, at least that"
            ))
        })
}

/// One slot's bytes while a copy runs. Another process shares the memory, so that the bytes are accessed only through
/// pointers, never as a slice.
#[derive(Debug)]
pub struct SlotAccess {
    arena: Arc<Arena>,
    slot: u32,
}

impl SlotAccess {
    /// The slot's first byte; `bytes()` from there are mapped, readable and writable.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.arena.mapping.at(self.slot as usize * self.arena.slot_bytes)
    }

    /// Length of the slot.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.slot_bytes
    }
}

impl Drop for SlotAccess {
    fn drop(&mut self) {
        self.arena.slots().end_use(self.slot);
    }
}
