//! Owns a process's holds on a region: room for a record until it is published, and a record pinned while it is read.

use tierkv_core::error::{Error, Result};
use tierkv_core::key::RecordKey;

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
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) open: bool,
}

impl<F: Fabric> Reservation<'_, F> {
    /// Copies a part of the record into the region.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the part does not fit.
    pub fn write(&self, from: u64, bytes: &[u8]) -> Result<()> {
        check_range(self.bytes, from, bytes.len() as u64)?;
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
        Seen(&self.region.fabric).payload_made(self.at, self.bytes);
    }

    /// Makes the record visible, after its bytes have reached memory. False if it was flushed meanwhile.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn publish(mut self) -> Result<bool> {
        Seen(&self.region.fabric).fence(Rule::PayloadFence);
        let locked = self.region.locked()?;
        self.open = false;
        if locked.0.is_late(&self.name, self.label) {
            locked.0.drop_entry(self.index);
            return Ok(false);
        }
        locked.0.set_field(self.index, entry::STATE, entry::READY);
        Ok(true)
    }
}

#[cfg(target_os = "linux")]
impl Reservation<'_, crate::mapping::Mapping> {
    /// Lets `work` make the record in place.
    pub fn make<T>(&mut self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let memory = self.region.fabric.memory(self.at, self.bytes);
        // SAFETY: within the mapping; only the reservation's owner reads or writes there until it is published.
        let made = work(unsafe { &mut *memory });
        self.made();
        made
    }
}

impl<F: Fabric> Drop for Reservation<'_, F> {
    fn drop(&mut self) {
        if self.open
            && let Ok(locked) = self.region.locked()
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
    /// Returns the record in place.
    #[must_use]
    pub fn standing(&self) -> &[u8] {
        self.seen();
        // SAFETY: within the mapping; a published, pinned record is never written.
        unsafe { &*self.region.fabric.memory(self.at, self.bytes) }
    }
}

impl<F: Fabric> Drop for Pinned<'_, F> {
    fn drop(&mut self) {
        let Ok(locked) = self.region.locked() else { return };
        let mut pins = self.region.pins();
        let readers = pins.get(&self.index).copied().unwrap_or(1) - 1;
        if readers > 0 {
            pins.insert(self.index, readers);
            return;
        }
        pins.remove(&self.index);
        let table = &locked.0;
        let others = table.field(self.index, entry::PINS) & !(1 << self.region.member);
        table.set_field(self.index, entry::PINS, others);
        if others == 0 && table.state(self.index) == entry::DOOMED {
            table.drop_entry(self.index);
        }
    }
}

fn check_range(bytes: u64, from: u64, count: u64) -> Result<()> {
    if from.checked_add(count).is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    Err(Error::bad_argument(format!("bytes {from} to {from} + {count} of a record of {bytes}")))
}
