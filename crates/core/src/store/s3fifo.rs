//! Owns the eviction policy: S3-FIFO (Yang et al., SOSP 2023), by bytes and by tenant, in about 76 bytes of memory per record.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::time::Duration;

use super::ghosts::Ghosts;
use super::lately::Lately;
use super::names::Names;
use super::queues::{Entry, Queue, Queues};
use super::tenants::Quotas;
use super::{Policy, RecordKey, Stored};
use crate::table::Table;

/// Divisor of a tenant's bytes: the share of the small queue, unless the main queue is empty.
const SMALL_SHARE: u64 = 10;
/// Divisor of a tenant's bytes: the largest share of the small queue while many records come.
const LATELY_SHARE: u64 = 4;
const USES_MAX: u8 = 3;

/// The tables grow one after another, so that neither memory nor a lock's hold time doubles at once.
const TABLES: usize = 16;

/// Records by key in the four queues of [`Queue`]. A use only counts; it moves no entry.
pub struct S3Fifo {
    hasher: RandomState,
    names: Names,
    tables: [Table; TABLES],
    queues: Queues,
    ghosts: Ghosts,
    lately: Lately,
    room: u64,
}

/// A key with its namespace's number and its tag.
#[derive(Clone, Copy)]
struct Named<'a> {
    namespace: u32,
    tag: u32,
    key: &'a RecordKey,
}

impl Named<'_> {
    fn is(&self, entry: &Entry) -> bool {
        entry.block_hash == self.key.block_hash
            && entry.namespace == self.namespace
            && entry.group == self.key.group
            && entry.shard == self.key.shard
    }
}

impl S3Fifo {
    /// Returns a policy for `bytes` bytes of records and other uses; remembers `ghosts` evicted keys.
    #[must_use]
    pub fn new(bytes: u64, ghosts: u64) -> Self {
        Self {
            hasher: RandomState::new(),
            names: Names::default(),
            tables: std::array::from_fn(|_| Table::default()),
            queues: Queues::new(),
            ghosts: Ghosts::new(ghosts),
            lately: Lately::new(Duration::ZERO),
            room: bytes,
        }
    }

    /// Gives records that came within `span` a larger share, because a long prompt would evict its own first blocks before
    /// any request can ask for them.
    #[must_use]
    pub fn sparing(self, span: Duration) -> Self {
        Self { lately: Lately::new(span), ..self }
    }

    /// Hashes the namespace itself, not its number, because ghosts outlive numbers.
    fn tag(&self, key: &RecordKey) -> u32 {
        (self.hasher.hash_one(key) >> u32::BITS) as u32
    }

    fn named<'a>(&self, key: &'a RecordKey) -> Option<Named<'a>> {
        let namespace = self.names.number(&key.namespace)?;
        Some(Named { namespace, tag: self.tag(key), key })
    }

    fn key_of(&self, entry: &Entry) -> RecordKey {
        let Entry { block_hash, group, shard, .. } = *entry;
        RecordKey { namespace: *self.names.name(entry.namespace), block_hash, group, shard }
    }

    fn table(&self, tag: u32) -> &Table {
        &self.tables[tag as usize % TABLES]
    }

    fn find(&self, named: &Named<'_>) -> Option<u32> {
        self.table(named.tag).find(named.tag, |number| named.is(self.queues.entry(number)))
    }

    /// Names all keys; keys of one look-up mostly share their namespace, so that each run of one namespace is looked up once.
    fn name_all<'a>(&self, keys: impl Iterator<Item = &'a RecordKey>) -> Vec<Option<Named<'a>>> {
        let mut last = None;
        let name = |key: &'a RecordKey| {
            let namespace = match last {
                Some((known, number)) if known == key.namespace => number,
                _ => last.insert((key.namespace, self.names.number(&key.namespace))).1,
            };
            Some(Named { namespace: namespace?, tag: self.tag(key), key })
        };
        keys.map(name).collect()
    }

    fn take_out(&mut self, number: u32) -> Option<(RecordKey, Stored)> {
        let Entry { block_hash, namespace, group, shard, tag, record, .. } =
            self.queues.remove(number);
        self.tables[tag as usize % TABLES].remove(tag, |other| other == number);
        let key = RecordKey { namespace: *self.names.name(namespace), block_hash, group, shard };
        self.names.leave(namespace);
        Some((key, record?))
    }

    /// Evicts one record of the tenant that gives way; `None` when all records left are pinned.
    fn evict(&mut self) -> Option<(RecordKey, Stored)> {
        let mut stuck = Vec::new();
        let lately = self.lately.bytes();
        loop {
            let tenant = self.queues.tenants.victim(&stuck)?;
            let gone = self.evict_of(tenant, lately);
            if gone.is_some() {
                return gone;
            }
            stuck.push(tenant);
        }
    }

    fn evict_of(&mut self, tenant: u16, lately: u64) -> Option<(RecordKey, Stored)> {
        let records = self.queues.tenants.get(tenant).records;
        // The eviction looks at a record once per use, once to move it, and once while it is pinned.
        for _ in 0..=records * (usize::from(USES_MAX) + 2) {
            let of = self.queues.tenants.get(tenant);
            let share = lately.clamp(of.bytes() / SMALL_SHARE, of.bytes() / LATELY_SHARE);
            let is_small_full = of.ends[Queue::Small as usize].bytes > share;
            let [first, second] = if is_small_full {
                [Queue::Small, Queue::Main]
            } else {
                [Queue::Main, Queue::Small]
            };
            let oldest = |queue| self.queues.oldest(tenant, queue);
            let number =
                oldest(Queue::Last).or_else(|| oldest(first)).or_else(|| oldest(second))?;
            let entry = self.queues.entry_mut(number);
            let queue = entry.queue;
            if entry.record.as_ref().is_some_and(Stored::is_pinned) {
                // A pinned record left in the small queue would hide the records behind it that can go.
                self.queues.move_to(number, Queue::Main);
            } else if entry.uses > 0 {
                // One use moves a record from the small or last queue on; each use in the main queue buys one more round.
                entry.uses = if queue == Queue::Main { entry.uses - 1 } else { 0 };
                self.queues.move_to(number, Queue::Main);
            } else {
                if queue != Queue::Main {
                    self.ghosts.remember(entry.tag);
                }
                return self.take_out(number);
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn len(&self) -> usize {
        self.queues.len()
    }

    fn namespaces(&self) -> usize {
        self.names.len()
    }

    fn resident_bytes(&self) -> u64 {
        self.queues.bytes()
    }

    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        let number = self.find(&self.named(key)?)?;
        self.queues.entry(number).record.as_ref()
    }

    fn find_all(&self, keys: &[RecordKey], found: &mut [bool]) {
        let missing = keys.iter().zip(&*found).filter(|(_, found)| !**found).map(|(key, _)| key);
        let named = self.name_all(missing);
        // A key costs two memory accesses: its line of a table and its entry. Each is first begun for all keys, so that they overlap.
        let lines = named.iter().flatten().map(|key| self.table(key.tag).begin(key.tag));
        black_box(lines.fold(0, u32::wrapping_add));
        let numbers =
            named.iter().flatten().filter_map(|key| self.table(key.tag).find(key.tag, |_| true));
        black_box(numbers.map(|number| self.queues.entry(number).tag).fold(0, u32::wrapping_add));
        let there =
            named.iter().map(|key| key.as_ref().is_some_and(|key| self.find(key).is_some()));
        for (found, is_there) in found.iter_mut().filter(|found| !**found).zip(there) {
            *found = is_there;
        }
    }

    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        let number = self.find(&self.named(key)?)?;
        let entry = self.queues.entry_mut(number);
        entry.uses = (entry.uses + 1).min(USES_MAX);
        entry.record.as_ref()
    }

    fn demote(&mut self, key: &RecordKey) -> bool {
        let Some(number) = self.named(key).and_then(|named| self.find(&named)) else {
            return false;
        };
        let entry = self.queues.entry_mut(number);
        let stays = matches!(entry.queue, Queue::Last | Queue::Kept);
        if stays || entry.record.as_ref().is_some_and(Stored::is_pinned) {
            return false;
        }
        entry.uses = 0;
        self.queues.move_to(number, Queue::Last);
        true
    }

    fn keep(&mut self, key: &RecordKey, most: u64) {
        let Some(number) = self.named(key).and_then(|named| self.find(&named)) else { return };
        let entry = self.queues.entry(number);
        let charge = entry.record.as_ref().map_or(0, Stored::charge);
        let tenant = self.queues.tenants.get(entry.tenant);
        let of_quota = u128::from(tenant.quota()) * u128::from(most) / u128::from(self.room.max(1));
        let own = tenant.ends[Queue::Kept as usize].bytes + charge;
        let fits = self.queues.kept_bytes() + charge <= most
            && (tenant.quota() == 0 || u128::from(own) <= of_quota);
        if fits && entry.queue != Queue::Kept {
            self.queues.move_to(number, Queue::Kept);
        }
    }

    fn unkeep(&mut self, key: &RecordKey) {
        if self.is_kept(key)
            && let Some(number) = self.named(key).and_then(|named| self.find(&named))
        {
            self.queues.move_to(number, Queue::Main);
        }
    }

    fn is_kept(&self, key: &RecordKey) -> bool {
        let number = self.named(key).and_then(|named| self.find(&named));
        number.is_some_and(|number| self.queues.entry(number).queue == Queue::Kept)
    }

    fn kept_bytes(&self) -> u64 {
        self.queues.kept_bytes()
    }

    fn insert(&mut self, key: RecordKey, record: Stored, tenant: u16) {
        let tag = self.tag(&key);
        let queue = if self.ghosts.forget(tag) { Queue::Main } else { Queue::Small };
        self.lately.add(record.charge());
        let number = self.queues.insert(Entry {
            block_hash: key.block_hash,
            namespace: self.names.join(&key.namespace),
            group: key.group,
            shard: key.shard,
            tag,
            tenant,
            queue,
            record: Some(record),
            ..Entry::FREE
        });
        self.tables[tag as usize % TABLES].insert(tag, number);
    }

    fn limit_tenants(&mut self, each: u64, own: &[(u64, u64)]) {
        self.queues.tenants.limit(Quotas { each, own: own.iter().copied().collect() });
    }

    fn used_by(&self, tenant: u64) -> u64 {
        self.queues.tenants.used(tenant)
    }

    fn may_set_aside(&self, tenant: u64, bytes: u64) -> bool {
        self.queues.tenants.may_set_aside(tenant, bytes)
    }

    fn set_aside(&mut self, tenant: u64, bytes: u64) -> u16 {
        self.queues.tenants.set_aside(tenant, bytes)
    }

    fn put_back(&mut self, tenant: u16, bytes: u64) {
        self.queues.tenants.put_back(tenant, bytes);
    }

    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        let number = self.find(&self.named(key)?)?;
        self.take_out(number).map(|(_, record)| record)
    }

    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        self.queues.iter().map(|entry| self.key_of(entry)).filter(matches).collect()
    }

    fn scan(&self, from: usize, visit: &mut dyn FnMut(&RecordKey, bool)) -> Option<usize> {
        for entry in self.queues.some(from)? {
            let is_hot = entry.uses > 0 || matches!(entry.queue, Queue::Main | Queue::Kept);
            visit(&self.key_of(entry), is_hot);
        }
        Some(from + crate::limits::STORE_SCAN_PIECES)
    }

    fn hold(&mut self, bytes: u64) -> Vec<(RecordKey, Stored)> {
        let mut evicted = Vec::new();
        while self.resident_bytes() + bytes > self.room {
            let Some(gone) = self.evict() else { break };
            evicted.push(gone);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, ENTRY_BYTES, Shape};

    /// Checked after each insertion, so that the moment of most memory counts, too.
    #[test]
    fn an_entry_costs_no_more_than_is_counted_for_it() {
        let room = 1 << 30;
        let (budget, mut policy) = (Budget::new(room), S3Fifo::new(room, 0));
        for number in 0..100_000_u32 {
            let mut block_hash = [0; 32];
            block_hash[..4].copy_from_slice(&number.to_le_bytes());
            let key = RecordKey { namespace: [0; 32], block_hash, group: 0, shard: 0 };
            policy.insert(
                key,
                budget.charge(Shape::of_record(200).unwrap(), |_| ()).unwrap().into_stored(0),
                0,
            );
            let tables: usize = policy.tables.iter().map(Table::memory_bytes).sum();
            let index_bytes = (tables + policy.queues.memory_bytes()) as u64;
            let counted = ENTRY_BYTES * policy.len() as u64;
            assert!(number < 20_000 || index_bytes <= counted, "{number}: {index_bytes}");
        }
    }
}
