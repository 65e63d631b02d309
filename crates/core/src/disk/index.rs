//! Owns the index of the durable tier: the place of each record, in about 75 bytes of memory per record.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::format::Entry;
use crate::key::{RecordKey, Scope};
use crate::limits::{DISK_NAMESPACES_MAX, STORE_LOOKUP_KEYS, STORE_SCAN_PIECES};
use crate::record::Hash;
use crate::table::Table;
use crate::tenant::salt_of;

const SHARD_BITS: u32 = 4;
const SHARDS: usize = 1 << SHARD_BITS;
/// Slots per allocation; growth in fixed pieces neither copies slots nor leaves half of them unused.
const PIECE_SLOTS: usize = 1024;

/// Place of a record on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Id of the segment.
    pub segment: u32,
    /// First page of its entry there.
    pub page: u32,
    /// Length of the record.
    pub record_bytes: u32,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// Number of the tenant in this run; tenants beyond the limit share one.
    pub tenant: u16,
    /// Salt of the tenant, unique within its account.
    pub salt: u32,
}

impl Place {
    /// Returns the place of an entry in a segment, of the tenant with that number.
    #[must_use]
    pub fn of(entry: &Entry, segment: u32, tenant: u16) -> Self {
        let Entry { page, record_bytes, record_class, .. } = *entry;
        Self { segment, page, record_bytes, record_class, tenant, salt: salt_of(entry.tenant) }
    }

    /// Returns the entry at this place, without its tenant.
    #[must_use]
    pub fn entry(&self, key: RecordKey) -> Entry {
        let Self { page, record_bytes, record_class, .. } = *self;
        Entry { key, record_class, page, record_bytes, tenant: 0 }
    }
}

/// Number of a record in the index, for a segment's list of records; reused once the record is gone.
pub type SlotId = u32;

/// A record's key and place in one cache line, so that comparing a key waits for memory once.
#[repr(align(64))]
struct Slot {
    block_hash: Hash,
    namespace: u32,
    place: Place,
    group: u16,
    shard: u16,
    is_hot: AtomicBool,
    is_used: bool,
}

#[derive(Default)]
struct Shard {
    table: Table,
    pieces: Vec<Box<[Slot]>>,
    free: Vec<u32>,
    used: u32,
    pending: HashSet<RecordKey>,
}

/// Records by full key.
pub struct Index {
    hasher: RandomState,
    namespaces: RwLock<Namespaces>,
    shards: [RwLock<Shard>; SHARDS],
    /// Records refused because of too many namespaces, and the last one's namespace.
    refused: Mutex<(u64, Option<Hash>)>,
}

#[derive(Default)]
struct Namespaces {
    numbers: HashMap<Hash, u32>,
    hashes: Vec<Hash>,
}

/// A key with its namespace's number and its hash.
struct Named<'a> {
    hash: u64,
    namespace: u32,
    key: &'a RecordKey,
}

impl Named<'_> {
    fn is(&self, slot: &Slot) -> bool {
        slot.block_hash == self.key.block_hash
            && slot.namespace == self.namespace
            && slot.group == self.key.group
            && slot.shard == self.key.shard
    }

    fn tag(&self) -> u32 {
        (self.hash >> u32::BITS) as u32
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than the number of shards")]
    fn shard(&self) -> usize {
        // The tag uses the other half of the hash.
        (self.hash % SHARDS as u64) as usize
    }
}

impl Default for Index {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            namespaces: RwLock::default(),
            shards: std::array::from_fn(|_| RwLock::default()),
            refused: Mutex::default(),
        }
    }
}

impl Index {
    /// Returns the place of a record.
    #[must_use]
    pub fn get(&self, key: &RecordKey) -> Option<Place> {
        let named = self.named(key)?;
        let shard = self.read(named.shard());
        shard.find(&named).map(|slot| slot.place)
    }

    /// Says for each key whether it has a place; locks each shard once.
    #[must_use]
    pub fn contains_all(&self, keys: &[RecordKey]) -> Vec<bool> {
        let namespaces = self.namespaces();
        let shards: Vec<_> = (0..SHARDS).map(|number| self.read(number)).collect();
        let mut found = Vec::with_capacity(keys.len());
        let mut named = Vec::with_capacity(STORE_LOOKUP_KEYS);
        for batch in keys.chunks(STORE_LOOKUP_KEYS) {
            self.name_all(&namespaces, batch, &mut named);
            // A key costs two memory accesses: its line of the table and its slot. Each is first begun for all keys, so that they overlap.
            let lines =
                named.iter().flatten().map(|key| shards[key.shard()].table.begin(key.tag()));
            black_box(lines.fold(0, u32::wrapping_add));
            let slots = named.iter().flatten().map(|key| shards[key.shard()].begin(key.tag()));
            black_box(slots.fold(0, u32::wrapping_add));
            let is_there = |named: &Named| shards[named.shard()].find(named).is_some();
            found.extend(named.iter().map(|named| named.as_ref().is_some_and(is_there)));
        }
        found
    }

    /// Marks a record as recently used; false when there is none.
    pub fn touch(&self, key: &RecordKey) -> bool {
        let Some(named) = self.named(key) else { return false };
        let shard = self.read(named.shard());
        shard.find(&named).map(|slot| slot.is_hot.store(true, Ordering::Relaxed)).is_some()
    }

    /// Put-if-absent: true for the one caller that may write this record, and must then publish or release it.
    #[must_use]
    pub fn reserve(&self, key: &RecordKey) -> bool {
        let Some(named) = self.intern(key) else { return false };
        let mut shard = self.write(named.shard());
        shard.find(&named).is_none() && shard.pending.insert(*key)
    }

    /// Ends a reservation without a record.
    pub fn release(&self, key: &RecordKey) {
        if let Some(named) = self.named(key) {
            self.write(named.shard()).pending.remove(key);
        }
    }

    /// Whether a caller is writing this record.
    #[must_use]
    pub fn is_pending(&self, key: &RecordKey) -> bool {
        let named = self.named(key);
        named.is_some_and(|named| self.read(named.shard()).pending.contains(key))
    }

    /// Enters a record and ends its reservation. `replaces` decides, given the present place. Returns the record's number
    /// and its previous place, or `None` when it was not entered.
    pub fn publish(
        &self,
        key: &RecordKey,
        place: Place,
        replaces: impl Fn(Option<Place>) -> bool,
    ) -> Option<(SlotId, Option<Place>)> {
        let named = self.intern(key)?;
        let number = named.shard();
        let mut shard = self.write(number);
        shard.pending.remove(key);
        let before = shard.find(&named).map(|slot| slot.place);
        if !replaces(before) {
            return None;
        }
        let local = match before {
            Some(_) => shard.number(&named)?,
            None => shard.add(&named, place),
        };
        let slot = shard.slot_mut(local);
        slot.place = place;
        *slot.is_hot.get_mut() = false;
        Some((local << SHARD_BITS | u32::try_from(number).ok()?, before))
    }

    /// Removes a record if it still lies at `place`.
    pub fn remove(&self, key: &RecordKey, place: Place) -> bool {
        let Some(named) = self.named(key) else { return false };
        let mut shard = self.write(named.shard());
        if shard.find(&named).is_none_or(|slot| slot.place != place) {
            return false;
        }
        shard.remove(&named);
        true
    }

    /// Returns the record with a number if it lies in that segment, and whether it was used recently.
    #[must_use]
    pub fn at(&self, id: SlotId, segment: u32) -> Option<(RecordKey, Place, bool)> {
        let namespaces = self.namespaces();
        let shard = self.read(id as usize % SHARDS);
        let slot = shard.slot(id >> SHARD_BITS)?;
        let found = slot.is_used && slot.place.segment == segment;
        found.then(|| {
            let namespace = namespaces.hashes[slot.namespace as usize];
            let Slot { block_hash, group, shard, .. } = *slot;
            let key = RecordKey { namespace, block_hash, group, shard };
            (key, slot.place, slot.is_hot.load(Ordering::Relaxed))
        })
    }

    /// Returns the records of a scope.
    #[must_use]
    pub fn matching(&self, scope: &Scope) -> Vec<(RecordKey, Place)> {
        let Scope { namespace, record_class, salt } = scope;
        let mut found = Vec::new();
        self.each(|key, place| {
            if namespace.is_none_or(|namespace| namespace == key.namespace)
                && record_class.is_none_or(|class| class == place.record_class)
                && salt.is_none_or(|salt| salt == place.salt)
            {
                found.push((key, place));
            }
        });
        found
    }

    /// Visits all records; a record that stays is visited once. Locks a small part of the index at a time.
    pub fn each(&self, mut visit: impl FnMut(RecordKey, Place)) {
        for number in 0..SHARDS {
            for from in (0..).step_by(STORE_SCAN_PIECES) {
                if !self.some(number, from, &mut visit) {
                    break;
                }
            }
        }
    }

    /// Visits the records of some pieces of a shard from piece `from` on; false behind the last piece.
    fn some(&self, number: usize, from: usize, visit: &mut impl FnMut(RecordKey, Place)) -> bool {
        let namespaces = self.namespaces();
        let shard = self.read(number);
        let last = shard.pieces.len().min(from + STORE_SCAN_PIECES);
        let pieces = shard.pieces.get(from..last).unwrap_or_default();
        for slot in pieces.iter().flatten().filter(|slot| slot.is_used) {
            let Slot { block_hash, group, shard, .. } = *slot;
            let namespace = namespaces.hashes[slot.namespace as usize];
            visit(RecordKey { namespace, block_hash, group, shard }, slot.place);
        }
        !pieces.is_empty()
    }

    /// Namespace of the last record that was refused because there are too many namespaces, and how many records were.
    #[must_use]
    pub fn refused(&self) -> (u64, Option<Hash>) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused
    }

    /// Memory of the index, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let of = |shard: &Shard| {
            let slots = shard.pieces.len() * PIECE_SLOTS * size_of::<Slot>();
            slots + shard.table.memory_bytes() + shard.free.capacity() * size_of::<u32>()
        };
        (0..SHARDS).map(|number| of(&self.read(number)) as u64).sum()
    }

    fn named<'a>(&self, key: &'a RecordKey) -> Option<Named<'a>> {
        self.name(&self.namespaces(), key)
    }

    /// Names all keys; keys of one look-up mostly share their namespace, so that each run of one namespace is looked up once.
    fn name_all<'a>(
        &self,
        namespaces: &Namespaces,
        keys: &'a [RecordKey],
        named: &mut Vec<Option<Named<'a>>>,
    ) {
        let mut last: Option<(&Hash, Option<u32>)> = None;
        let mut number_of = |hash: &'a Hash| match last {
            Some((known, number)) if known == hash => number,
            _ => last.insert((hash, namespaces.numbers.get(hash).copied())).1,
        };
        named.clear();
        named.extend(keys.iter().map(|key| Some(self.named_in(number_of(&key.namespace)?, key))));
    }

    fn name<'a>(&self, namespaces: &Namespaces, key: &'a RecordKey) -> Option<Named<'a>> {
        Some(self.named_in(*namespaces.numbers.get(&key.namespace)?, key))
    }

    fn named_in<'a>(&self, namespace: u32, key: &'a RecordKey) -> Named<'a> {
        let place = u64::from(namespace) << 32 | u64::from(key.group) << 16 | u64::from(key.shard);
        let hash = self.hasher.hash_one((&key.block_hash, place));
        Named { hash, namespace, key }
    }

    /// Names a key that will be entered; `None` when there are too many namespaces.
    fn intern<'a>(&self, key: &'a RecordKey) -> Option<Named<'a>> {
        if let Some(named) = self.named(key) {
            return Some(named);
        }
        let mut namespaces = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
        if !namespaces.numbers.contains_key(&key.namespace) {
            if namespaces.hashes.len() >= DISK_NAMESPACES_MAX {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                *refused = (refused.0 + 1, Some(key.namespace));
                return None;
            }
            let number = u32::try_from(namespaces.hashes.len()).ok()?;
            namespaces.numbers.insert(key.namespace, number);
            namespaces.hashes.push(key.namespace);
        }
        self.name(&namespaces, key)
    }

    fn namespaces(&self) -> RwLockReadGuard<'_, Namespaces> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, number: usize) -> RwLockReadGuard<'_, Shard> {
        self.shards[number].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, number: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[number].write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn slot(&self, local: u32) -> Option<&Slot> {
        self.pieces.get(local as usize / PIECE_SLOTS)?.get(local as usize % PIECE_SLOTS)
    }

    fn slot_mut(&mut self, local: u32) -> &mut Slot {
        &mut self.pieces[local as usize / PIECE_SLOTS][local as usize % PIECE_SLOTS]
    }

    fn number(&self, named: &Named) -> Option<u32> {
        let is = |local| self.slot(local).is_some_and(|slot| named.is(slot));
        self.table.find(named.tag(), is)
    }

    /// Reads the slot that a tag most likely stands for, to begin the memory access; the result is unused.
    fn begin(&self, tag: u32) -> u32 {
        let slot = self.table.find(tag, |_| true).and_then(|local| self.slot(local));
        slot.map_or(0, |slot| slot.namespace)
    }

    fn find(&self, named: &Named) -> Option<&Slot> {
        self.number(named).and_then(|local| self.slot(local))
    }

    fn add(&mut self, named: &Named, place: Place) -> u32 {
        let local = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        if local as usize / PIECE_SLOTS >= self.pieces.len() {
            self.pieces.push((0..PIECE_SLOTS).map(|_| Slot::unused(place)).collect());
        }
        let RecordKey { block_hash, group, shard, .. } = *named.key;
        let (is_hot, namespace) = (AtomicBool::new(false), named.namespace);
        *self.slot_mut(local) =
            Slot { block_hash, namespace, place, group, shard, is_hot, is_used: true };
        self.table.insert(named.tag(), local);
        local
    }

    fn remove(&mut self, named: &Named) {
        let Self { table, pieces, .. } = self;
        let slot = |local: u32| &pieces[local as usize / PIECE_SLOTS][local as usize % PIECE_SLOTS];
        if let Some(local) = table.remove(named.tag(), |local| named.is(slot(local))) {
            self.free.push(local);
            self.slot_mut(local).is_used = false;
        }
    }
}

impl Slot {
    fn unused(place: Place) -> Self {
        Self {
            block_hash: [0; 32],
            namespace: 0,
            place,
            group: 0,
            shard: 0,
            is_hot: AtomicBool::new(false),
            is_used: false,
        }
    }
}
