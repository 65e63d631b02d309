//! Owns the list of a store's records, page by page in key order, with each block's position in its prompt.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{RecordKey, Store};
use crate::disk::Disk;
use crate::disk::index::Place;
use crate::limits::{
    STORE_LIST_AHEAD, STORE_LIST_BATCH, STORE_LIST_MAX, STORE_LIST_MS, STORE_LIST_READS,
    STORE_LISTINGS_MAX,
};
use crate::record::{self, HASH_BYTES, Header, PACKED_KEY_BYTES};
use crate::tenant::salt_of;

/// Packed key, parent hash (zeros: unknown), block number in the prompt (all ones: unknown), salt of the tenant, record length.
const LISTED_BYTES: usize = PACKED_KEY_BYTES + HASH_BYTES + 4 + 4 + 8;

/// Selects the records of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// All records of both tiers.
    All,
    /// Records of a session.
    Session(u32),
    /// Records in memory that were used again since they came, or are kept.
    Hot,
}

/// One page of a listing.
pub struct Listing {
    /// Namespace of all its rows.
    pub namespace: [u8; HASH_BYTES],
    /// Rows of 84 bytes.
    pub rows: Vec<u8>,
    /// Last key considered, after which the next page begins; `None` at the end.
    pub last: Option<RecordKey>,
}

/// Returns the number of the record's block in its prompt and the parent hash; the number of a sealed record is unknown.
#[must_use]
pub fn position(header: &Header) -> (u32, [u8; HASH_BYTES]) {
    let tokens = u64::from(header.tokens);
    let is_said = header.end_tokens > 0 && header.end_tokens.is_multiple_of(tokens);
    let number = is_said.then(|| header.end_tokens / tokens - 1);
    let number = number.and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX);
    (number, header.parent_hash)
}

struct Row {
    record_class: u8,
    tenant: u64,
    bytes: u64,
    header: Option<Header>,
}

impl Row {
    fn pack(&self, key: &RecordKey, packed: &mut Vec<u8>) {
        let (number, parent) = self.header.as_ref().map_or((u32::MAX, [0; HASH_BYTES]), position);
        packed.extend_from_slice(&key.block_hash);
        packed.extend_from_slice(&key.group.to_le_bytes());
        packed.extend_from_slice(&key.shard.to_le_bytes());
        packed.extend_from_slice(&parent);
        packed.extend_from_slice(&number.to_le_bytes());
        packed.extend_from_slice(&salt_of(self.tenant).to_le_bytes());
        packed.extend_from_slice(&self.bytes.to_le_bytes());
    }
}

/// Listings under way; the longest idle one is forgotten first.
#[derive(Default)]
pub(super) struct Cursors {
    idle: Mutex<VecDeque<Cursor>>,
}

/// Position of a listing, with the keys that follow it.
struct Cursor {
    of: Listed,
    after: Option<RecordKey>,
    /// In order; some may have gone since the scan.
    keys: VecDeque<RecordKey>,
}

impl Cursors {
    /// The cursor that stands at a position, if one does.
    fn take(&self, after: Option<&RecordKey>, of: Listed) -> Option<Cursor> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |cursor: &Cursor| cursor.of == of && cursor.after.as_ref() == after;
        let at = idle.iter().position(is)?;
        idle.remove(at)
    }

    /// Keeps a cursor for its next page.
    fn keep(&self, cursor: Cursor) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= STORE_LISTINGS_MAX {
            idle.pop_front();
        }
        idle.push_back(cursor);
    }
}

impl Cursor {
    /// The next keys of a page: all of one namespace.
    fn batch(&mut self, most: usize) -> Vec<RecordKey> {
        let namespace = self.keys.front().map(|key| key.namespace);
        let is_same = |key: &&RecordKey| Some(key.namespace) == namespace;
        let count = self.keys.iter().take(most).take_while(is_same).count();
        let keys: Vec<_> = self.keys.drain(..count).collect();
        self.after = keys.last().copied().or(self.after);
        keys
    }
}

/// The smallest keys behind a position, of those considered.
struct Smallest {
    after: Option<RecordKey>,
    keys: BinaryHeap<RecordKey>,
}

impl Smallest {
    fn consider(&mut self, key: &RecordKey) {
        let is_near =
            self.keys.len() < STORE_LIST_AHEAD || self.keys.peek().is_some_and(|far| key < far);
        if is_near && self.after.is_none_or(|after| *key > after) {
            self.keys.push(*key);
            if self.keys.len() > STORE_LIST_AHEAD {
                self.keys.pop();
            }
        }
    }
}

impl Store {
    /// Returns one page of records of a class after a key, all of one namespace; waits for disk and archive. Does not count as
    /// a use. A page ends early where these are slow.
    #[must_use]
    pub fn list(&self, record_class: u8, after: Option<&RecordKey>, of: Listed) -> Listing {
        let until = Instant::now() + Duration::from_millis(STORE_LIST_MS);
        let mut cursor = self.cursors.take(after, of).unwrap_or_else(|| self.scan(after, of));
        let namespace = cursor.keys.front().map(|key| key.namespace);
        let (mut packed, mut last, mut listed) = (Vec::new(), None, 0);
        packed.reserve(cursor.keys.len().min(STORE_LIST_MAX) * LISTED_BYTES);
        while listed < STORE_LIST_MAX
            && Instant::now() < until
            && cursor.keys.front().map(|key| key.namespace) == namespace
        {
            let keys = cursor.batch(STORE_LIST_BATCH.min(STORE_LIST_MAX - listed));
            let Some(end) = keys.last() else { break };
            (last, listed) = (Some(*end), listed + keys.len());
            for (key, row) in self.rows(&keys) {
                if row.record_class == record_class {
                    row.pack(&key, &mut packed);
                }
            }
        }
        if !cursor.keys.is_empty() {
            self.cursors.keep(cursor);
        }
        Listing { namespace: namespace.unwrap_or_default(), rows: packed, last }
    }

    /// Finds the next keys of a listing in both tiers; locks each for a moment at a time.
    fn scan(&self, after: Option<&RecordKey>, of: Listed) -> Cursor {
        let mut found = Smallest { after: after.copied(), keys: BinaryHeap::new() };
        if let (Some(disk), Listed::All) = (&self.disk, of) {
            disk.each(|key, _| found.consider(&key));
        }
        match of {
            Listed::All | Listed::Hot => {
                let mut position = Some(0);
                while let Some(from) = position {
                    position = self.state().policy.scan(from, &mut |key, is_hot| {
                        if is_hot || of == Listed::All {
                            found.consider(key);
                        }
                    });
                }
            }
            Listed::Session(session) => {
                self.state().session_keys(session).for_each(|key| found.consider(key));
            }
        }
        let mut keys = found.keys.into_sorted_vec();
        // Keys in both tiers were seen twice.
        keys.dedup();
        Cursor { of, after: after.copied(), keys: keys.into() }
    }

    /// Returns the rows of those keys whose records are still there.
    fn rows(&self, keys: &[RecordKey]) -> BTreeMap<RecordKey, Row> {
        let (mut rows, mut elsewhere) = (BTreeMap::new(), Vec::new());
        let state = self.state();
        for key in keys {
            let Some(record) = state.policy.peek(key) else {
                elsewhere.push(key);
                continue;
            };
            let header = record::parse(record).ok().map(|parsed| parsed.header);
            let (tenant, bytes) = (record.tenant(), record.len() as u64);
            rows.insert(*key, Row { record_class: record[9], tenant, bytes, header });
        }
        drop(state);
        let Some(disk) = &self.disk else { return rows };
        let of = |key: &&RecordKey| Some((**key, disk.locate(key)?));
        let mut places: Vec<_> = elsewhere.iter().filter_map(of).collect();
        // Along the disk.
        places.sort_unstable_by_key(|(_, place)| (place.segment, place.page));
        rows.extend(rows_at(disk, &places));
        rows
    }
}

/// Reads the headers of records side by side, because a hard disk or an archive takes long for each.
fn rows_at(disk: &Disk, places: &[(RecordKey, Place)]) -> Vec<(RecordKey, Row)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        while let Some((key, place)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            rows.push((*key, row_at(disk, place)));
        }
        rows
    };
    if places.len() <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        let count = places.len().min(STORE_LIST_READS);
        let threads: Vec<_> = (1..count)
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut rows = work();
        rows.extend(threads.into_iter().filter_map(|thread| thread.join().ok()).flatten());
        rows
    })
}

fn row_at(disk: &Disk, place: &Place) -> Row {
    let header = disk.read_header(*place).and_then(|bytes| record::parse(&bytes).ok());
    Row {
        record_class: place.record_class,
        tenant: disk.tenant_of(place),
        bytes: place.record_bytes.into(),
        header: header.map(|parsed| parsed.header),
    }
}
