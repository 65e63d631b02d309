//! Owns what a process does with a region: look up, put if absent, pin and read, remove.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tierkv_core::error::{Error, Result};
use tierkv_core::key::RecordKey;
use tierkv_core::record;

use crate::layout::{FIELDS_BYTES, Layout, entry};
pub use crate::table::Audit;
use crate::table::{Table, Words};
use crate::visibility::{Fabric, LastOwner, Rule, Seen};

/// One process's view of a region that it has joined.
pub struct Region<F: Fabric> {
    fabric: F,
    layout: Layout,
    member: u64,
    /// Entries that this process reads, with how many of its readers: an entry has one bit for all of them.
    pins: Mutex<HashMap<u64, u32>>,
}

/// What became of an offer.
pub enum Offer<'a, F: Fabric> {
    /// Room is set aside.
    Wanted(Reservation<'a, F>),
    /// It is there already.
    Present,
    /// Another one brings it.
    Filling,
    /// It has more bytes than all chunks, or none.
    TooLarge,
    /// All others are being read or filled.
    Full,
}

/// What became of a whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It can be looked up.
    Stored,
    /// It could be before, or will be when another one has brought it.
    Present,
    /// There is no room.
    Full,
}

/// The lock is held while it lives.
struct Locked<'a, F: Fabric>(Table<'a, F>);

impl<F: Fabric> Drop for Locked<'_, F> {
    fn drop(&mut self) {
        self.0.seen.fence(Rule::UnlockFence);
        self.0.fabric.unlock();
    }
}

impl<F: Fabric> Region<F> {
    /// Joins a region of `bytes` bytes.
    ///
    /// # Errors
    /// `ARENA_FAILED` when it is no such region, `NO_MEMORY` when too many have joined.
    pub fn join(fabric: F, bytes: u64) -> Result<Self> {
        let mut fields = [0; FIELDS_BYTES];
        Seen(&fabric).payload_out(0, &mut fields);
        let layout = Layout::from_bytes(&fields, bytes)?;
        let mut region = Self { fabric, layout, member: u64::MAX, pins: Mutex::default() };
        let member = region.locked()?.0.join()?;
        region.member = member;
        Ok(region)
    }

    /// What it is cut into.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where its memory is, and whose.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    fn locked(&self) -> Result<Locked<'_, F>> {
        let last = self.fabric.lock()?;
        let table = Table::new(&self.fabric, &self.layout);
        if last == LastOwner::Died {
            table.repair(self.member);
            table.seen.fence(Rule::UnlockFence);
            self.fabric.repaired();
        }
        Ok(Locked(table))
    }

    fn pins(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of these can be read now. Counts as asking for them.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn look_up(&self, keys: &[RecordKey]) -> Result<Vec<bool>> {
        let locked = self.locked()?;
        let table = &locked.0;
        Ok(keys.iter().map(|key| ready(table, self.member, key).is_some()).collect())
    }

    /// Stores a whole record, which is checked before anybody can look it up.
    ///
    /// # Errors
    /// `BAD_RECORD` when it is not sound or not of this key.
    pub fn put(&self, key: &RecordKey, bytes: &[u8]) -> Result<Put> {
        let header = record::verify(bytes)
            .map_err(|refusal| Error::bad_record(format!("not stored: {refusal:?}")))?;
        if !key.is_of(&header) {
            return Err(Error::bad_record("not stored: it is the record of another key"));
        }
        match self.reserve(key, bytes.len() as u64)? {
            Offer::Wanted(reservation) => {
                reservation.write(0, bytes)?;
                reservation.publish()?;
                Ok(Put::Stored)
            }
            Offer::Present | Offer::Filling => Ok(Put::Present),
            Offer::TooLarge | Offer::Full => Ok(Put::Full),
        }
    }

    /// Sets room aside, if the key is absent. Who publishes has checked the bytes.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn reserve(&self, key: &RecordKey, bytes: u64) -> Result<Offer<'_, F>> {
        if bytes == 0 || bytes.div_ceil(self.layout.chunk_bytes) > self.layout.chunks {
            return Ok(Offer::TooLarge);
        }
        let (locked, key) = (self.locked()?, Words::of(key));
        let table = &locked.0;
        let state = |found: Option<u64>| found.map(|index| table.state(index));
        let mut found = state(table.probe(&key).found);
        if found == Some(entry::FILLING) {
            // Who brings it may be dead.
            table.sweep(self.member);
            found = state(table.probe(&key).found);
        }
        match found {
            Some(entry::READY) => return Ok(Offer::Present),
            Some(_) => return Ok(Offer::Filling),
            None => {}
        }
        let insert = || table.insert(&key, bytes, self.member);
        let Some(index) = insert().or_else(|| {
            table.sweep(self.member);
            insert()
        }) else {
            return Ok(Offer::Full);
        };
        let at = self.layout.chunk_at(table.field(index, entry::CHUNK));
        Ok(Offer::Wanted(Reservation { region: self, index, at, bytes, open: true }))
    }

    /// Keeps a record where it is, for reading.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn pin(&self, key: &RecordKey) -> Result<Option<Pinned<'_, F>>> {
        let locked = self.locked()?;
        let table = &locked.0;
        let Some(index) = ready(table, self.member, key) else { return Ok(None) };
        *self.pins().entry(index).or_default() += 1;
        table.set_field(index, entry::PINS, table.field(index, entry::PINS) | 1 << self.member);
        let at = self.layout.chunk_at(table.field(index, entry::CHUNK));
        let bytes = table.field(index, entry::BYTES);
        Ok(Some(Pinned { region: self, index, at, bytes }))
    }

    /// Takes a record out; false: it is not there, or somebody reads it.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn remove(&self, key: &RecordKey) -> Result<bool> {
        let locked = self.locked()?;
        let table = &locked.0;
        let index =
            ready(table, self.member, key).filter(|index| table.field(*index, entry::PINS) == 0);
        index.inspect(|index| table.drop_entry(*index));
        Ok(index.is_some())
    }

    /// Frees what dead members hold.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn sweep(&self) -> Result<()> {
        self.locked()?.0.sweep(self.member);
        Ok(())
    }

    /// What it holds, and whether all of it fits together.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn audit(&self) -> Result<Audit> {
        Ok(self.locked()?.0.audit())
    }
}

fn ready<F: Fabric>(table: &Table<'_, F>, me: u64, key: &RecordKey) -> Option<u64> {
    let index = table.probe(&Words::of(key)).found?;
    if table.state(index) != entry::READY {
        return None;
    }
    if !table.is_possible(index) {
        table.repair(me);
        return None;
    }
    if table.field(index, entry::VISITED) == 0 {
        table.set_field(index, entry::VISITED, 1);
    }
    Some(index)
}

/// Room for one record, given back unless it is published.
pub struct Reservation<'a, F: Fabric> {
    region: &'a Region<F>,
    index: u64,
    at: u64,
    bytes: u64,
    open: bool,
}

impl<F: Fabric> Reservation<'_, F> {
    /// Copies a part of the record to its place.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when it does not fit.
    pub fn write(&self, from: u64, bytes: &[u8]) -> Result<()> {
        check_range(self.bytes, from, bytes.len() as u64)?;
        Seen(&self.region.fabric).payload_in(self.at + from, bytes);
        Ok(())
    }

    /// Lets others look it up: its bytes are in memory first.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn publish(mut self) -> Result<()> {
        Seen(&self.region.fabric).fence(Rule::PayloadFence);
        let locked = self.region.locked()?;
        locked.0.set_field(self.index, entry::STATE, entry::READY);
        self.open = false;
        Ok(())
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

/// A record that stays where it is while this lives.
pub struct Pinned<'a, F: Fabric> {
    region: &'a Region<F>,
    index: u64,
    at: u64,
    bytes: u64,
}

impl<F: Fabric> Pinned<'_, F> {
    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies a part of it.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` when it is shorter.
    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        check_range(self.bytes, from, bytes.len() as u64)?;
        Seen(&self.region.fabric).payload_out(self.at + from, bytes);
        Ok(())
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
        let others = locked.0.field(self.index, entry::PINS) & !(1 << self.region.member);
        locked.0.set_field(self.index, entry::PINS, others);
    }
}

fn check_range(bytes: u64, from: u64, count: u64) -> Result<()> {
    if from.checked_add(count).is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    Err(Error::bad_argument(format!("bytes {from} to {from} + {count} of a record of {bytes}")))
}
