//! Owns two policies the store's own is measured against: S3-FIFO, and the same where a block goes only after those that follow it.

use std::collections::{HashMap, HashSet, VecDeque};
use tierkv_core::record;
use tierkv_core::store::{Policy, RecordKey, Stored};

use super::lists::{Lists, Node, Place};

/// New records; a tenth of the room.
const SMALL: usize = 0;
/// Those that were used again, or came back soon after they went.
const MAIN: usize = 1;
/// Due to go, but others follow them: without their prefix those could not be used.
const PARKED: usize = 2;
/// Parked ones whose followers have gone: next.
const DUE: usize = 3;
const SMALL_SHARE: u64 = 10;
/// Records can be made to follow each other in a circle: then this part of the room is all they get.
const PARKED_SHARE: u64 = 2;
const USES_MAX: u8 = 3;

/// S3-FIFO, with or without regard to prefixes.
pub struct PrefixPolicy {
    places: HashMap<RecordKey, Place>,
    lists: Lists<4>,
    /// How many records follow one.
    followers: HashMap<RecordKey, u32>,
    ghosts: VecDeque<RecordKey>,
    ghost_set: HashSet<RecordKey>,
    ghosts_max: usize,
    room: u64,
    parks: bool,
}

impl PrefixPolicy {
    /// Room for `bytes` bytes of records and others; remembers `ghosts` evicted keys. `parks`: leaves go first.
    pub fn new(bytes: u64, ghosts: u64, parks: bool) -> Self {
        Self {
            places: HashMap::new(),
            lists: Lists::new(),
            followers: HashMap::new(),
            ghosts: VecDeque::new(),
            ghost_set: HashSet::new(),
            ghosts_max: usize::try_from(ghosts).unwrap_or(usize::MAX),
            room: bytes,
            parks,
        }
    }

    fn take_out(&mut self, place: Place) -> Option<(RecordKey, Stored)> {
        let Node { key, record, parent, .. } = self.lists.remove(place)?;
        self.places.remove(&key);
        if parent != key {
            self.unfollow(&parent);
        }
        Some((key, record))
    }

    /// When the last one that followed a parked record is gone, it is next.
    fn unfollow(&mut self, parent: &RecordKey) {
        let Some(count) = self.followers.get_mut(parent) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.followers.remove(parent);
        if let Some(place) = self.places.get(parent).copied()
            && self.lists.get(place).is_some_and(|node| node.list == PARKED)
        {
            self.lists.move_to(place, DUE);
        }
    }

    /// Evicts one record; `None` when all that is left is pinned.
    fn evict(&mut self) -> Option<(RecordKey, Stored)> {
        // Every record may be looked at as often as it was used, once to move, and once as pinned.
        for _ in 0..=self.lists.len() * (usize::from(USES_MAX) + 2) {
            let is_small_full = self.lists.bytes(SMALL) > self.room / SMALL_SHARE;
            let queues = if is_small_full { [SMALL, MAIN] } else { [MAIN, SMALL] };
            let is_crowded = self.lists.bytes(PARKED) > self.room / PARKED_SHARE;
            let parked = [PARKED].into_iter();
            let first = [DUE].into_iter().chain(parked.clone().filter(|_| is_crowded));
            let mut order = first.chain(queues).chain(parked);
            let list = order.find(|list| self.lists.oldest(*list).is_some())?;
            let place = self.lists.oldest(list)?;
            let key = self.lists.get(place)?.key;
            let is_followed = self.parks && list != PARKED && self.followers.contains_key(&key);
            let node = self.lists.get_mut(place)?;
            if node.record.is_pinned() {
                self.lists.move_to(place, list);
            } else if node.uses > 0 {
                // One use moves a new record on; later uses buy a round each.
                node.uses = if list == SMALL { 0 } else { node.uses - 1 };
                self.lists.move_to(place, MAIN);
            } else if is_followed {
                self.lists.move_to(place, PARKED);
            } else {
                if list != MAIN {
                    self.remember(key);
                }
                return self.take_out(place);
            }
        }
        None
    }

    fn remember(&mut self, key: RecordKey) {
        if self.ghosts_max == 0 || !self.ghost_set.insert(key) {
            return;
        }
        self.ghosts.push_back(key);
        if self.ghosts.len() > self.ghosts_max
            && let Some(oldest) = self.ghosts.pop_front()
        {
            self.ghost_set.remove(&oldest);
        }
    }
}

impl Policy for PrefixPolicy {
    fn len(&self) -> usize {
        self.lists.len()
    }

    fn namespaces(&self) -> usize {
        self.lists.iter().map(|node| node.key.namespace).collect::<HashSet<_>>().len()
    }

    fn resident_bytes(&self) -> u64 {
        (SMALL..=DUE).map(|list| self.lists.bytes(list)).sum()
    }

    fn peek(&self, key: &RecordKey) -> Option<&Stored> {
        self.lists.get(*self.places.get(key)?).map(|node| &node.record)
    }

    fn touch(&mut self, key: &RecordKey) -> Option<&Stored> {
        let place = *self.places.get(key)?;
        let node = self.lists.get_mut(place)?;
        node.uses = (node.uses + 1).min(USES_MAX);
        if matches!(node.list, PARKED | DUE) {
            self.lists.move_to(place, MAIN);
        }
        self.lists.get(place).map(|node| &node.record)
    }

    fn insert(&mut self, key: RecordKey, record: Stored, _: u16) {
        let header = record::parse(&record).map(|parsed| parsed.header);
        let block_hash = header.map(|header| header.parent_hash).unwrap_or_default();
        let parent = RecordKey { block_hash, ..key };
        // One that follows itself would wait for itself.
        if parent != key {
            *self.followers.entry(parent).or_default() += 1;
        }
        let list = if self.ghost_set.contains(&key) { MAIN } else { SMALL };
        let place = self.lists.insert(list, key, record, parent);
        self.places.insert(key, place);
    }

    fn remove(&mut self, key: &RecordKey) -> Option<Stored> {
        let place = *self.places.get(key)?;
        self.take_out(place).map(|(_, record)| record)
    }

    fn keys(&self, matches: &dyn Fn(&RecordKey) -> bool) -> Vec<RecordKey> {
        self.lists.iter().map(|node| node.key).filter(|key| matches(key)).collect()
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
