//! Owns the references to a record: the store's own, and pins.

mod allocation;
mod budget;
mod buffer;
#[cfg(all(loom, test))]
mod model;
pub mod pages;
pub(crate) mod space;

use std::ops::Deref;

pub(crate) use self::budget::Budget;
use self::budget::Claim;
pub use self::budget::ENTRY_BYTES;
pub(crate) use self::buffer::Shape;
use self::buffer::{RecordBuffer, RecordRef};
use crate::error::Result;
use crate::lent::LentPlace;
use crate::limits::CHECKSUM_SPAN_BYTES;
use crate::past_cache::settle;
use crate::sync::Ordering;

/// The store's reference in a record's count of holders.
const STORED: u32 = 1;
/// One pin in that count.
const PIN: u32 = 2;

/// Memory of a record that is still arriving.
#[derive(Debug)]
pub struct Reserved {
    /// Dropped first, because memory is spare only once it no longer counts as used.
    claim: Claim,
    buffer: RecordBuffer,
}

impl Reserved {
    fn new(buffer: RecordBuffer, claim: Claim) -> Self {
        Self { claim, buffer }
    }

    /// `bytes` bytes from `start`; they must lie within the reservation.
    pub(crate) fn span(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        self.buffer.span(start..start + bytes)
    }

    /// Copies the whole record from memory that others may write: span by span through the cache, where `check` sees the copy.
    pub(crate) fn copy(
        &mut self,
        record: &[u8],
        mut check: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut window = [0; CHECKSUM_SPAN_BYTES];
        let mut at = 0;
        // The record stands behind a header; from here on its lines begin with those of memory.
        let mut end = self.buffer.first_line().min(record.len());
        while at < record.len() {
            let span = &mut window[..end - at];
            span.copy_from_slice(&record[at..end]);
            check(at, span)?;
            self.buffer.put(at, span);
            at = end;
            end = (at + CHECKSUM_SPAN_BYTES).min(record.len());
        }
        settle();
        Ok(())
    }

    /// The whole pages around a record that was reserved in pages.
    pub(crate) fn pages(&mut self) -> &mut [u8] {
        self.buffer.pages()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Turns a complete record of a tenant into a stored one, which can be evicted.
    pub(crate) fn into_stored(self, tenant: u64) -> Stored {
        let charge = self.buffer.allocated_bytes() + ENTRY_BYTES;
        Stored(self.buffer.share(STORED, tenant, self.claim.keep(charge)))
    }
}

/// A complete, verified record, owned by its store.
#[derive(Debug)]
pub struct Stored(RecordRef);

impl Stored {
    /// Memory charged to the budget, in bytes.
    #[must_use]
    pub fn charge(&self) -> u64 {
        charge(&self.0)
    }

    /// Tenant the record was stored for, 48 bits; 0: none in particular.
    #[must_use]
    pub fn tenant(&self) -> u64 {
        self.0.head().tenant
    }

    /// Whether a pin keeps the memory, so that evicting the record frees nothing.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.0.head().holders.load(Ordering::Acquire) >= PIN
    }

    /// Pins the record: its memory stays even when it is evicted.
    #[must_use]
    pub fn pin(&self) -> Pin {
        Pin::new(&self.0)
    }
}

impl Deref for Stored {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let head = self.0.head();
        if head.holders.fetch_and(!STORED, Ordering::AcqRel) == STORED {
            head.budget.give_back(self.charge());
        }
    }
}

/// Keeps a record's memory even when the record is evicted. May be dropped on any thread.
#[derive(Debug)]
pub struct Pin(RecordRef);

impl Pin {
    fn new(record: &RecordRef) -> Self {
        let head = record.head();
        if head.holders.fetch_add(PIN, Ordering::AcqRel) < PIN {
            head.budget.hold(charge(record));
        }
        Self(record.clone())
    }

    /// Where the record lies in memory of the store that can be lent; `None` for a short record.
    #[must_use]
    pub fn place(&self) -> Option<LentPlace<'_>> {
        self.0.head().budget.space()?.place_of(self.as_ptr())
    }

    pub(crate) fn is_of(&self, record: &Stored) -> bool {
        self.0.is(&record.0)
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
        let head = self.0.head();
        let before = head.holders.fetch_sub(PIN, Ordering::AcqRel);
        if before < 2 * PIN {
            head.budget.unhold(charge(&self.0));
        }
        if before == PIN {
            head.budget.give_back(charge(&self.0));
        }
    }
}

fn charge(record: &RecordRef) -> u64 {
    record.allocated_bytes() + ENTRY_BYTES
}
