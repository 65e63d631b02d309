//! Owns the states of an arena's slots: owner, shares and generation of each, but no bytes.

use crate::error::{Error, Result};

/// A leased slot; stale once the slot has been freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// Number of the slot.
    pub slot: u32,
    /// Number of times the slot had been freed when it was leased.
    pub generation: u32,
}

/// Free: no shares, not busy. Leased: has shares. Draining: no shares, but a copy is still running.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    generation: u32,
    owner: u32,
    shares: u32,
    busy: u32,
}

/// All slots that have memory. Every operation but `release_owner` takes constant time.
#[derive(Debug, Default)]
pub struct SlotTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl SlotTable {
    /// Adds the next slot, whose memory is ready, as a free one.
    pub fn add(&mut self) {
        let number = self.touched();
        self.slots.push(Slot::default());
        self.free.push(number);
    }

    /// Slots that have memory.
    ///
    /// # Panics
    /// Never: `SLOT_COUNT_MAX` is below 2^32.
    #[must_use]
    pub fn touched(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("SLOT_COUNT_MAX fits")
    }

    /// Slots that can be leased.
    ///
    /// # Panics
    /// Never: `SLOT_COUNT_MAX` is below 2^32.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.len()).expect("SLOT_COUNT_MAX fits")
    }

    /// Leases up to `count` slots to `owner`, the last freed first, because their memory is warm.
    pub fn lease(&mut self, owner: u32, count: u32) -> Vec<Lease> {
        let count = count.min(self.free()) as usize;
        let taken = self.free.split_off(self.free.len() - count);
        let lease = |slot: u32| {
            let entry = &mut self.slots[slot as usize];
            entry.owner = owner;
            entry.shares = 1;
            Lease { slot, generation: entry.generation }
        };
        taken.into_iter().rev().map(lease).collect()
    }

    /// Adds a share of a leased slot.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the lease is stale.
    pub fn retain(&mut self, lease: Lease) -> Result<()> {
        let slot = self.leased(lease)?;
        slot.shares = slot.shares.checked_add(1).ok_or_else(|| {
            Error::bad_argument(format!("slot {} has 2^32 shares: it leaks", lease.slot))
        })?;
        Ok(())
    }

    /// Drops a share; returns true when it was the last and the lease has ended.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the lease is stale.
    pub fn release(&mut self, lease: Lease) -> Result<bool> {
        let slot = self.leased(lease)?;
        slot.shares -= 1;
        let ended = slot.shares == 0;
        if ended {
            self.end_lease(lease.slot);
        }
        Ok(ended)
    }

    /// Passes a lease, with all its shares, to another owner.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the lease is stale.
    pub fn chown(&mut self, lease: Lease, owner: u32) -> Result<()> {
        self.leased(lease)?.owner = owner;
        Ok(())
    }

    /// Ends all leases of `owner`, whatever their shares; returns how many there were.
    pub fn release_owner(&mut self, owner: u32) -> u32 {
        let mut ended = 0;
        for number in 0..self.touched() {
            let slot = &mut self.slots[number as usize];
            if slot.shares > 0 && slot.owner == owner {
                slot.shares = 0;
                self.end_lease(number);
                ended += 1;
            }
        }
        ended
    }

    /// Begins a copy into or out of the slot, which is not leased again before the copy ends.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when the lease is stale.
    pub fn begin_use(&mut self, lease: Lease) -> Result<()> {
        self.leased(lease)?.busy += 1;
        Ok(())
    }

    /// Ends a copy.
    pub fn end_use(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.busy -= 1;
        if entry.busy == 0 && entry.shares == 0 {
            self.free.push(slot);
        }
    }

    fn end_lease(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.generation = slot.generation.wrapping_add(1);
        if slot.busy == 0 {
            self.free.push(number);
        }
    }

    fn leased(&mut self, lease: Lease) -> Result<&mut Slot> {
        let Lease { slot: number, generation } = lease;
        let touched = self.slots.len();
        let slot = self.slots.get_mut(number as usize).ok_or_else(|| {
            Error::bad_argument(format!("slot {number} does not exist: {touched} slots are ready"))
        })?;
        if slot.shares == 0 {
            return Err(Error::bad_argument(format!("slot {number} is free: lease it first")));
        }
        if slot.generation != generation {
            return Err(Error::bad_argument(format!(
                "slot {number}: generation {generation} is stale, it is at {}",
                slot.generation
            )));
        }
        Ok(slot)
    }
}
