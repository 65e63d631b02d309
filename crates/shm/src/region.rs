//! Owns the operations of a process on a region: look up, put if absent, pin and read, remove.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::key::RecordKey;
use tierkv_core::limits::SHM_EVICT_TURNS_MAX;
use tierkv_core::record::{self, Hash};

pub use crate::audit::Audit;
use crate::chunks::Extent;
use crate::flushes::{Label, News, Scope};
pub use crate::held::{Pinned, Pins, Reservation};
use crate::layout::{EVICTED_AT, FLUSH_AT, Layout, MEMBERS_MAX, RECORDS_AT, USED_AT, entry};
use crate::manager::doubt;
use crate::superblock::layout_of;
use crate::table::{Insert, Table, Words};
use crate::visibility::{Fabric, LastOwner, Rule};

/// One process's view of a region it has joined.
pub struct Region<F: Fabric> {
    pub(crate) fabric: F,
    layout: Layout,
    /// Number of the last flush when it joined.
    flushed: u64,
    pub(crate) member: u64,
    /// Readers per entry in this process, because an entry has only one bit for all of them.
    pins: Mutex<HashMap<u64, u32>>,
}

/// Answer to an offer of a record.
pub enum Offer<'a, F: Fabric> {
    /// Room is allocated.
    Wanted(Reservation<'a, F>),
    /// The record is stored already.
    Present,
    /// Another process is writing it.
    Filling,
    /// The record is longer than all chunks, or empty.
    TooLarge,
    /// All other records are being read or filled.
    Full,
}

/// Outcome of storing a complete record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The record is stored.
    Stored,
    /// The record was stored before, or another process is writing it.
    Present,
    /// There is no room.
    Full,
}

/// Fill of a region, by its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Records, with those being filled.
    pub records: u64,
    /// Bytes of their chunks.
    pub used_bytes: u64,
    /// Bytes of all chunks.
    pub max_bytes: u64,
    /// Records evicted since the region was created.
    pub evicted: u64,
    /// Processes that have joined.
    pub members: u64,
    /// Number of the last flush.
    pub flush: u64,
}

/// Holds the lock while it lives, even over a panic in a repair, which a process stopped under a lock between hosts raises.
pub(crate) struct Locked<'a, F: Fabric>(pub Table<'a, F>);

impl<F: Fabric> Drop for Locked<'_, F> {
    fn drop(&mut self) {
        self.0.seen.fence(Rule::UnlockFence);
        self.0.fabric.unlock();
    }
}

/// Error of a region whose places are all taken.
pub(crate) fn full() -> Error {
    let text = format!(
        "as many processes as may have this region open ({MEMBERS_MAX}; of several machines each its share): end one, or make another"
    );
    Error::new(Code::NoMemory, text)
}

impl<F: Fabric> Region<F> {
    /// Joins a region of `bytes` bytes.
    ///
    /// # Errors
    /// `ARENA_FAILED` when the memory is no such region, `NO_MEMORY` when too many have joined.
    pub fn join(fabric: F, bytes: u64) -> Result<Self> {
        let layout = layout_of(&fabric, bytes)?;
        let member = fabric.claim()?.ok_or_else(full)?;
        let mut region = Self { fabric, layout, flushed: 0, member, pins: Mutex::default() };
        region.flushed = {
            let locked = region.locked()?;
            locked.0.join(member);
            locked.0.seen.word(FLUSH_AT)
        };
        Ok(region)
    }

    /// Number of the last flush when this process joined.
    pub fn joined_at_flush(&self) -> u64 {
        self.flushed
    }

    /// Layout of the region.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Memory of the region.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    pub(crate) fn locked(&self) -> Result<Locked<'_, F>> {
        let last = self.fabric.lock()?;
        let locked = Locked(Table::new(&self.fabric, &self.layout));
        if last == LastOwner::Died {
            // The repair counts only once the lock is released; a death before that leaves it to the next owner.
            locked.0.repair(self.member);
            self.fabric.repaired();
        }
        Ok(locked)
    }

    pub(crate) fn pins(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says for each key whether its record can be read now; counts as a request for it.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn look_up(&self, keys: &[RecordKey]) -> Result<Vec<bool>> {
        self.look_up_at_flush(keys.iter().copied()).map(|(found, _)| found)
    }

    /// Like `look_up`, with the number of the last flush in the same turn, because between hosts a turn takes long.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn look_up_at_flush(
        &self,
        keys: impl Iterator<Item = RecordKey>,
    ) -> Result<(Vec<bool>, u64)> {
        // Computed before the probes, so that more of these wait for memory at the same time.
        let keys: Vec<_> = keys.map(|key| Words::of(&key)).collect();
        let locked = self.locked()?;
        let found = keys.iter().map(|key| locked.0.ready(self.member, key).is_some()).collect();
        Ok((found, locked.0.seen.word(FLUSH_AT)))
    }

    /// Like `look_up_at_flush` without waiting; `None` if the lock is held, its owner died, it is a slow kind, or an entry
    /// needs a repair.
    pub fn look_up_now(&self, keys: impl Iterator<Item = RecordKey>) -> Option<(Vec<bool>, u64)> {
        let keys: Vec<_> = keys.map(|key| Words::of(&key)).collect();
        let locked = self.fabric.try_lock().then(|| Locked(Table::new(&self.fabric, &self.layout)));
        let table = &locked.as_ref()?.0;
        let found = keys.iter().map(|key| table.ready_now(key).ok().map(|at| at.is_some()));
        Some((found.collect::<Option<_>>()?, table.seen.word(FLUSH_AT)))
    }

    /// Verifies and stores a complete record.
    ///
    /// # Errors
    /// `BAD_RECORD` when it is not sound or has another key.
    pub fn put(&self, key: &RecordKey, bytes: &[u8]) -> Result<Put> {
        let header = record::verify(bytes)
            .map_err(|refusal| Error::bad_record(format!("not stored: {refusal:?}")))?;
        if !key.is_of(&header) {
            return Err(Error::bad_record("not stored: it is the record of another key"));
        }
        let label = Label { record_class: header.record_class, ..Label::default() };
        match self.reserve(key, bytes.len() as u64, label)? {
            Offer::Wanted(reservation) => {
                reservation.write(0, bytes)?;
                reservation.publish()?;
                Ok(Put::Stored)
            }
            Offer::Present | Offer::Filling => Ok(Put::Present),
            Offer::TooLarge | Offer::Full => Ok(Put::Full),
        }
    }

    /// Allocates room if the key is absent. The caller must verify the bytes before publishing.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn reserve(&self, key: &RecordKey, bytes: u64, label: Label) -> Result<Offer<'_, F>> {
        if bytes == 0 || bytes.div_ceil(self.layout.chunk_bytes) > self.layout.chunks {
            return Ok(Offer::TooLarge);
        }
        let (name, key) = (*key, Words::of(key));
        let mut is_swept = false;
        for _ in 0..SHM_EVICT_TURNS_MAX {
            let locked = self.locked()?;
            let table = &locked.0;
            let state = || table.probe(&key).found.map(|index| table.state(index));
            let mut found = state();
            if found == Some(entry::FILLING) {
                // The process writing it may be dead.
                table.sweep(self.member);
                found = state();
            }
            match found {
                Some(entry::READY) => return Ok(Offer::Present),
                Some(state) => {
                    if state > entry::DOOMED {
                        doubt(&table.seen);
                    }
                    return Ok(Offer::Filling);
                }
                None => {}
            }
            match table.insert(&key, bytes, label.word(), self.member) {
                Insert::Done(index, extent) => {
                    let at = self.layout.chunk_at(extent.chunk);
                    let reservation =
                        Reservation { region: self, name, label, index, extent, at, open: true };
                    return Ok(Offer::Wanted(reservation));
                }
                Insert::Full if is_swept => return Ok(Offer::Full),
                Insert::Full => {
                    table.sweep(self.member);
                    is_swept = true;
                }
                Insert::Later => {}
            }
        }
        Ok(Offer::Full)
    }

    /// Pins a record for reading.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn pin(&self, key: &RecordKey) -> Result<Option<Pinned<'_, F>>> {
        let found = self.pin_in(&self.locked()?.0, &Words::of(key));
        Ok(found.map(|found| self.pinned(found)))
    }

    /// Pins records in one turn with the lock, because between hosts a turn takes long.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn pin_each(&self, keys: impl Iterator<Item = RecordKey>) -> Result<Pins<'_, F>> {
        let keys: Vec<_> = keys.map(|key| Words::of(&key)).collect();
        let locked = self.locked()?;
        let found: Vec<_> = keys.iter().map(|key| self.pin_in(&locked.0, key)).collect();
        drop(locked);
        let records = found.into_iter().map(|found| Some(self.pinned(found?))).collect();
        Ok(Pins { region: self, records })
    }

    /// Entry and extent of a record that is pinned now. What gives it up takes the lock, so that it is made without it.
    fn pin_in(&self, table: &Table<'_, F>, key: &Words) -> Option<(u64, Extent)> {
        let (index, extent) = table.ready(self.member, key)?;
        *self.pins().entry(index).or_default() += 1;
        table.set_field(index, entry::PINS, table.field(index, entry::PINS) | 1 << self.member);
        Some((index, extent))
    }

    fn pinned(&self, (index, extent): (u64, Extent)) -> Pinned<'_, F> {
        let (at, bytes) = (self.layout.chunk_at(extent.chunk), extent.bytes);
        Pinned { region: self, index, at, bytes, open: true }
    }

    /// Ends the reading of entries; returns the number of the last flush.
    pub(crate) fn unpin(&self, entries: &[u64]) -> Result<u64> {
        let locked = self.locked()?;
        let (table, mut pins) = (&locked.0, self.pins());
        for index in entries {
            let readers = pins.get(index).copied().unwrap_or(1).saturating_sub(1);
            if readers > 0 {
                pins.insert(*index, readers);
                continue;
            }
            pins.remove(index);
            let others = table.field(*index, entry::PINS) & !(1 << self.member);
            table.set_field(*index, entry::PINS, others);
            if others == 0 && table.state(*index) == entry::DOOMED {
                table.drop_entry(*index);
            }
        }
        Ok(table.seen.word(FLUSH_AT))
    }

    /// Removes a record; false if there is none, or it is being read.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn remove(&self, key: &RecordKey) -> Result<bool> {
        let locked = self.locked()?;
        let table = &locked.0;
        let found = table.ready(self.member, &Words::of(key));
        let index = found.map(|(index, _)| index).filter(|at| table.field(*at, entry::PINS) == 0);
        index.inspect(|index| table.drop_entry(*index));
        Ok(index.is_some())
    }

    /// Removes an unsound record; its readers may finish.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn discard(&self, key: &RecordKey) -> Result<bool> {
        let locked = self.locked()?;
        let found = locked.0.ready(self.member, &Words::of(key));
        found.inspect(|(index, _)| locked.0.doom(*index));
        Ok(found.is_some())
    }

    /// Removes all records of a scope and remembers the flush; returns its number, and the records and bytes removed.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn flush(&self, scope: &Scope) -> Result<(u64, u64, u64)> {
        Ok(self.locked()?.0.flush(scope))
    }

    /// Flushes each named namespace of a model; returns the totals with the last number.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn flush_model(&self, scope: &Scope, model: &Hash) -> Result<(u64, u64, u64)> {
        let locked = self.locked()?;
        let table = &locked.0;
        let mut all = (table.seen.word(FLUSH_AT), 0, 0);
        for namespace in table.namespaces_of(model) {
            let (number, records, bytes) =
                table.flush(&Scope { namespace: Some(namespace), ..*scope });
            all = (number, all.1 + records, all.2 + bytes);
        }
        Ok(all)
    }

    /// Remembers the model of a namespace, by its digest.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn name(&self, namespace: &Hash, model: &Hash) -> Result<()> {
        self.locked()?.0.name(namespace, model);
        Ok(())
    }

    /// Returns the flushes after `known`, after freeing what dead members hold.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn news(&self, known: u64) -> Result<News> {
        let locked = self.locked()?;
        locked.0.sweep(self.member);
        Ok(locked.0.news(known))
    }

    /// Number of the last flush.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn last_flush(&self) -> Result<u64> {
        Ok(self.locked()?.0.seen.word(FLUSH_AT))
    }

    /// Returns the fill of the region.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn fill(&self) -> Result<Fill> {
        let locked = self.locked()?;
        let table = &locked.0;
        Ok(Fill {
            records: table.seen.word(RECORDS_AT),
            used_bytes: table.seen.word(USED_AT).min(self.layout.chunks) * self.layout.chunk_bytes,
            max_bytes: self.layout.chunks * self.layout.chunk_bytes,
            evicted: table.seen.word(EVICTED_AT),
            members: table.joined(),
            flush: table.seen.word(FLUSH_AT),
        })
    }

    /// Frees what this member holds, so that it need not be found dead. The region must not be used afterwards.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn leave(&self) -> Result<()> {
        self.locked()?.0.leave(self.member);
        Ok(())
    }

    /// Frees what dead members hold.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn sweep(&self) -> Result<()> {
        self.locked()?.0.sweep(self.member);
        Ok(())
    }

    /// Counts the contents, and checks their consistency.
    ///
    /// # Errors
    /// When the lock is lost.
    pub fn audit(&self) -> Result<Audit> {
        Ok(self.locked()?.0.audit())
    }
}
