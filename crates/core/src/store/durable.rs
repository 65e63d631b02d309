//! Owns the operations of a store that has a durable tier: reading back, waiting for durability, flushing both tiers.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    CLASS_ANY, Flushed, ItemStatus, Options, Pin, RecordKey, Scope, Store, Stored, reservation,
};
use crate::disk::index::Index;
use crate::disk::{Disk, DiskOptions, DiskStats, Durability, Outcome, Resident, Residents};
use crate::error::Result;
use crate::limits::{DISK_STALL_MS, STORE_LOOKUP_KEYS, STORE_TURN_KEYS, STORE_TURN_PAUSE_US};
use crate::memory::Shape;

/// A tier that is slower than memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowTier {
    /// The vault's own disk.
    Disk,
    /// The archive.
    Archive,
}

/// Records being read from disk; each is read once, however many callers ask for it.
#[derive(Default)]
pub(super) struct Loads {
    open: Mutex<HashSet<RecordKey>>,
    done: Condvar,
}

struct Load<'a> {
    loads: &'a Loads,
    key: RecordKey,
}

impl Loads {
    /// Waits for another caller that reads the same record. `None` when the disk does not give the record; at once where
    /// the disk is known to hang, because a fetch of many such records would wait for each.
    fn begin(&self, key: &RecordKey, disk: &Disk) -> Option<Load<'_>> {
        let until = Instant::now() + Duration::from_millis(DISK_STALL_MS);
        let mut open = self.open();
        while !open.insert(*key) {
            if disk.locate(key).is_none_or(|place| disk.is_stalled(place)) {
                return None;
            }
            let left = until.checked_duration_since(Instant::now())?;
            open = self.done.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Load { loads: self, key: *key })
    }

    fn open(&self) -> MutexGuard<'_, HashSet<RecordKey>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.loads.open().remove(&self.key);
        self.loads.done.notify_all();
    }
}

impl Store {
    /// Opens a store that also writes its records to the directory at `path` and finds them there again.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the option, `DISK_FAILED` naming the directory.
    pub fn durable(options: Options, path: &Path, disk: DiskOptions) -> Result<Arc<Self>> {
        Self::on_disk(options, Disk::open(path, disk)?)
    }

    /// Returns a store in front of a durable tier.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the option.
    pub fn on_disk(options: Options, disk: Disk) -> Result<Arc<Self>> {
        let mut store = Self::new(options)?;
        store.disk = Some(disk);
        let store = Arc::new(store);
        let residents: Weak<dyn Residents> = Arc::downgrade(&store) as Weak<dyn Residents>;
        if let Some(disk) = &store.disk {
            disk.attach(residents);
        }
        Ok(store)
    }

    /// The durable tier, if any.
    #[must_use]
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// The durable tier's numbers; zeros without one.
    #[must_use]
    pub fn disk_stats(&self) -> DiskStats {
        self.disk.as_ref().map(Disk::stats).unwrap_or_default()
    }

    /// Pins a record: the record is not evicted and its memory stays until the pin is dropped. A record only on disk is
    /// first read, checked and kept in memory; the caller waits for the disk.
    pub fn pin(&self, key: &RecordKey) -> Option<Pin> {
        self.pin_timed(key).0
    }

    /// The same, and for how long an archive was waited for.
    pub fn pin_timed(&self, key: &RecordKey) -> (Option<Pin>, Duration) {
        if let Some(pin) = self.pin_resident(key) {
            return (Some(pin), Duration::ZERO);
        }
        let begun = Instant::now();
        let is_far = self.disk.as_ref().is_some_and(|disk| disk.has_archive() && disk.is_far(key));
        let pin = self.pin_from_disk(key);
        (pin, if is_far { begun.elapsed() } else { Duration::ZERO })
    }

    /// The tier that a record not in memory must be read from; `None` where there is none, or where the tier hangs.
    #[must_use]
    pub fn slow(&self, key: &RecordKey) -> Option<SlowTier> {
        let disk = self.disk.as_ref()?;
        let place = disk.locate(key).filter(|place| !disk.is_stalled(*place))?;
        Some(if disk.is_archived(place) { SlowTier::Archive } else { SlowTier::Disk })
    }

    /// The same for many keys; `None` also for a record in memory. Does not count as a use.
    #[must_use]
    pub fn slow_all(&self, keys: &[RecordKey]) -> Vec<Option<SlowTier>> {
        let mut near = vec![false; keys.len()];
        for (keys, near) in keys.chunks(STORE_LOOKUP_KEYS).zip(near.chunks_mut(STORE_LOOKUP_KEYS)) {
            self.state().policy.find_all(keys, near);
        }
        let tier = |(key, is_near)| if is_near { None } else { self.slow(key) };
        keys.iter().zip(near).map(tier).collect()
    }

    /// Whether a tier answers no reads.
    #[must_use]
    pub fn hangs(&self, tier: SlowTier) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.hangs(tier == SlowTier::Archive))
    }

    /// Says for each key whether its record can be fetched. Does not count as a use.
    #[must_use]
    pub fn contains_all(&self, keys: &[RecordKey]) -> Vec<bool> {
        let mut found = match &self.disk {
            Some(disk) => disk.contains_all(keys),
            None => vec![false; keys.len()],
        };
        for (keys, found) in keys.chunks(STORE_LOOKUP_KEYS).zip(found.chunks_mut(STORE_LOOKUP_KEYS))
        {
            self.state().policy.find_all(keys, found);
        }
        found
    }

    /// Says for each key whether only the archive has its record; `held` says which records the vault has at all.
    #[must_use]
    pub fn far_all(&self, keys: &[RecordKey], held: &[bool]) -> Vec<bool> {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.has_archive()) else {
            return vec![false; keys.len()];
        };
        let mut near = vec![false; keys.len()];
        for (keys, near) in keys.chunks(STORE_LOOKUP_KEYS).zip(near.chunks_mut(STORE_LOOKUP_KEYS)) {
            self.state().policy.find_all(keys, near);
        }
        let is_far =
            |((key, held), near): ((&RecordKey, &bool), bool)| *held && !near && disk.is_far(key);
        keys.iter().zip(held).zip(near).map(is_far).collect()
    }

    /// Whether a store is answered only once the record is durable.
    #[must_use]
    pub fn answers_durable(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.durability() == Durability::Sync)
    }

    /// Says for each key whether its record survives a power failure; waits for records that are still being written.
    #[must_use]
    pub fn wait_durable(&self, keys: &[RecordKey]) -> Vec<bool> {
        let none = || vec![false; keys.len()];
        self.disk.as_ref().map_or_else(none, |disk| disk.wait_durable(keys))
    }

    /// Says for each key whether its record survives a power failure now.
    #[must_use]
    pub fn are_durable(&self, keys: &[RecordKey]) -> Vec<bool> {
        let is_durable = |key| self.disk.as_ref().is_some_and(|disk| disk.is_durable(key));
        keys.iter().map(is_durable).collect()
    }

    /// Checks a stored record again in both tiers and removes a bad copy; waits for the disk.
    pub fn recheck(&self, key: &RecordKey) -> ItemStatus {
        let in_memory = self.recheck_resident(key);
        let on_disk = self.disk.as_ref().and_then(|disk| disk.recheck(key));
        match (in_memory, on_disk) {
            (ItemStatus::Quarantined, _) | (_, Some(Outcome::Bad)) => ItemStatus::Quarantined,
            (ItemStatus::Missing, Some(Outcome::Sound)) => ItemStatus::Present,
            (in_memory, _) => in_memory,
        }
    }

    fn recheck_resident(&self, key: &RecordKey) -> ItemStatus {
        let Some(pin) = self.state().policy.peek(key).map(Stored::pin) else {
            return ItemStatus::Missing;
        };
        if reservation::judge(&pin, key, self.options.record_class) == ItemStatus::Accepted {
            return ItemStatus::Present;
        }
        let mut state = self.state();
        if state.policy.peek(key).is_some_and(|record| pin.is_of(record)) {
            state.policy.remove(key);
            state.totals.quarantined += 1;
        }
        ItemStatus::Quarantined
    }

    /// Removes the records of `scope` from both tiers; waits for the disk.
    pub fn flush(&self, scope: Scope) -> Flushed {
        self.flush_as(0, scope)
    }

    /// Like [`Self::flush`] under a number: records of the scope that were made before it are refused from now on. 0: none are.
    pub fn flush_as(&self, number: u64, scope: Scope) -> Flushed {
        let (residents, bytes) = self.flush_residents(number, &scope);
        let Some(disk) = &self.disk else {
            return Flushed { records: residents, bytes, disk_bytes: 0, is_durable: true };
        };
        let (records, disk_bytes, is_durable) = disk.flush(scope);
        self.state().end_flush(&scope);
        Flushed { records: residents + records, bytes, disk_bytes, is_durable }
    }

    pub(super) fn is_on_disk(&self, key: &RecordKey) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.locate(key).is_some())
    }

    fn pin_from_disk(&self, key: &RecordKey) -> Option<Pin> {
        let disk = self.disk.as_ref()?;
        disk.locate(key)?;
        let _load = self.loads.begin(key, disk)?;
        if let Some(pin) = self.pin_resident(key) {
            return Some(pin);
        }
        // Read before the place, because a place found before a flush must not be trusted after it.
        let flushes = self.state().flushes;
        let place = disk.locate(key)?;
        let class = self.options.record_class;
        if class != CLASS_ANY && place.record_class != class {
            return None;
        }
        let shape = Shape::of_pages(&Disk::extent(&place))?;
        let mut state = self.state();
        let set_aside = state.set_aside(&self.budget, shape, disk.tenant_of(&place));
        drop(state);
        let (mut memory, aside) = set_aside?;
        let is_sound = disk.read(key, place, memory.pages()) == Outcome::Sound;
        let stored = memory.into_stored(aside.owner);
        let pin = stored.pin();
        let mut state = self.state();
        let is_flushing =
            |scope: &Scope| scope.takes(&key.namespace, place.record_class, aside.owner);
        let is_current = state.flushes == flushes && !state.flushing.iter().any(is_flushing);
        if is_sound && is_current && state.policy.peek(key).is_none() {
            state.insert(*key, stored, aside, &self.budget);
            return Some(pin);
        }
        state.policy.put_back(aside.tenant, aside.bytes);
        (is_sound && is_current).then_some(pin)
    }
}

impl Residents for Store {
    /// Takes the lock once for each part of the index, because pins and stores wait meanwhile.
    fn not_on_disk(
        &self,
        index: &Index,
        from: usize,
        bytes: u64,
    ) -> (Vec<Resident>, Option<usize>) {
        let (mut found, mut found_bytes, mut next) = (Vec::new(), 0, Some(from));
        while let Some(from) = next.filter(|_| found_bytes < bytes) {
            let mut keys = Vec::new();
            next = self.state().policy.scan(from, &mut |key, _| keys.push(*key));
            keys.retain(|key| index.get(key).is_none() && !index.is_pending(key));
            // Each peek reads memory that is in no cache.
            for some in keys.chunks(STORE_TURN_KEYS) {
                let state = self.state();
                for key in some {
                    // A record may have been evicted or flushed meanwhile.
                    let Some(record) = state.policy.peek(key) else { continue };
                    found_bytes += record.len() as u64;
                    let (key, tenant) = (*key, record.tenant());
                    found.push(Resident { key, tenant, record: record.pin() });
                }
                drop(state);
                thread::sleep(Duration::from_micros(STORE_TURN_PAUSE_US));
            }
        }
        (found, next)
    }
}
