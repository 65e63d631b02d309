//! Owns a process's holds on a region: room for a record until it is published, and a record pinned while it is read.

use tierkv_core::error::{Error, Result};
use tierkv_core::key::RecordKey;

use crate::chunks::Extent;
use crate::flushes::Label;
use crate::layout::entry;
use crate::region::Region;
use crate::visibility::{Fabric, Rule, Seen};

/// Room for one record, freed unless it is published.
pub struct Reservation<'a, F: Fabric> {
    pub(crate) region: &'a Region<F>,
    pub(crate) name: RecordKey,
    pub(crate) label: Label,
    pub(crate) index: u64,
    pub(crate) extent: Extent,
    pub(crate) at: u64,
    pub(crate) open: bool,
}

impl<F: Fabric> Reservation<'_, F> {
    /// Copies a part of the record into the region.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the part does not fit.
    pub fn write(&self, from: u64, bytes: &[u8]) -> Result<()> {
        check_range(self.extent.bytes, from, bytes.len() as u64)?;
        Seen(&self.region.fabric).payload_in(self.at + from, bytes);
        Ok(())
    }

    /// Offset of the record's bytes.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Ends the writing of all bytes in place.
    pub fn made(&self) {
        Seen(&self.region.fabric).payload_made(self.at, self.extent.bytes);
    }

    /// Makes the record visible, after its bytes have reached memory. False if it was flushed meanwhile, or damage took its entry.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn publish(mut self) -> Result<bool> {
        Seen(&self.region.fabric).fence(Rule::PayloadFence);
        let locked = self.region.locked()?;
        self.open = false;
        if !locked.0.is_held(self.index, self.region.member, self.extent) {
            return Ok(false);
        }
        if locked.0.is_late(&self.name, self.label) {
            locked.0.drop_entry(self.index);
            return Ok(false);
        }
        locked.0.set_field(self.index, entry::STATE, entry::READY);
        Ok(true)
    }
}

impl<F: Fabric> Drop for Reservation<'_, F> {
    fn drop(&mut self) {
        if self.open
            && let Ok(locked) = self.region.locked()
            && locked.0.is_held(self.index, self.region.member, self.extent)
        {
            locked.0.drop_entry(self.index);
        }
    }
}

/// A record that stays in place while this value lives.
pub struct Pinned<'a, F: Fabric> {
    pub(crate) region: &'a Region<F>,
    pub(crate) index: u64,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Whether its drop ends the reading.
    pub(crate) open: bool,
}

impl<F: Fabric> Pinned<'_, F> {
    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the record's bytes.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Prepares for reading the bytes in place.
    pub fn seen(&self) {
        Seen(&self.region.fabric).payload_seen(self.at, self.bytes);
    }

    /// Copies a part of the record.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the record is shorter.
    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        check_range(self.bytes, from, bytes.len() as u64)?;
        Seen(&self.region.fabric).payload_out(self.at + from, bytes);
        Ok(())
    }
}

#[cfg(target_os = "linux")]
impl Pinned<'_, crate::mapping::Mapping> {
    /// Returns the record in place. Others may write it at any time, so that it is copied before it is checked and used.
    #[must_use]
    pub fn standing(&self) -> &[u8] {
        self.seen();
        // SAFETY: within the mapping; whoever keeps to the rules never writes a published, pinned record.
        unsafe { &*self.region.fabric.memory(self.at, self.bytes) }
    }
}

impl<F: Fabric> Drop for Pinned<'_, F> {
    fn drop(&mut self) {
        if self.open {
            // Without the lock, others find this process dead.
            let _ = self.region.unpin(&[self.index]);
        }
    }
}

/// Records that stay in place while this value lives, in the order of their keys.
pub struct Pins<'a, F: Fabric> {
    pub(crate) region: &'a Region<F>,
    pub(crate) records: Vec<Option<Pinned<'a, F>>>,
}

impl<'a, F: Fabric> Pins<'a, F> {
    /// The records; `None` for a missing one.
    #[must_use]
    pub fn records(&self) -> &[Option<Pinned<'a, F>>] {
        &self.records
    }

    /// Gives all records up in one turn with the lock; returns the number of the last flush.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn release(mut self) -> Result<u64> {
        let entries = self.taken();
        self.region.unpin(&entries)
    }

    fn taken(&mut self) -> Vec<u64> {
        let open = self.records.iter_mut().flatten().filter(|pinned| pinned.open);
        open.map(|pinned| {
            pinned.open = false;
            pinned.index
        })
        .collect()
    }
}

impl<F: Fabric> Drop for Pins<'_, F> {
    fn drop(&mut self) {
        let entries = self.taken();
        if !entries.is_empty() {
            let _ = self.region.unpin(&entries);
        }
    }
}

fn check_range(bytes: u64, from: u64, count: u64) -> Result<()> {
    if from.checked_add(count).is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    Err(Error::bad_argument(format!("bytes {from} to {from} + {count} of a record of {bytes}")))
}
