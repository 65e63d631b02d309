//! Owns the list of a store's records, page by page in key order, with each block's position in its prompt.

use std::cell::RefCell;
use std::collections::{BTreeMap, BinaryHeap};

use super::{RecordKey, Store};
use crate::disk::index::Place;
use crate::limits::STORE_LIST_MAX;
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

impl Store {
    /// Returns one page of records of a class after a key, all of one namespace; waits for the disk. Does not count as a use.
    #[must_use]
    pub fn list(&self, record_class: u8, after: Option<&RecordKey>, of: Listed) -> Listing {
        let smallest = RefCell::new(BinaryHeap::with_capacity(STORE_LIST_MAX + 1));
        let consider = |key: &RecordKey| {
            let mut heap = smallest.borrow_mut();
            let is_near = heap.len() < STORE_LIST_MAX || heap.peek().is_some_and(|far| key < far);
            if is_near && after.is_none_or(|after| key > after) {
                heap.push(*key);
                if heap.len() > STORE_LIST_MAX {
                    heap.pop();
                }
            }
            false
        };
        let mut places = BTreeMap::new();
        if let (Some(disk), Listed::All) = (&self.disk, of) {
            disk.each(|key, _| {
                consider(&key);
            });
        }
        let mut rows = BTreeMap::new();
        let state = self.state();
        match of {
            Listed::All => drop(state.policy.keys(&consider)),
            Listed::Hot => drop(state.policy.hot_keys(&consider)),
            Listed::Session(session) => state.session_keys(session).for_each(|key| {
                consider(key);
            }),
        }
        let mut keys = smallest.into_inner().into_sorted_vec();
        // Keys in both tiers were seen twice.
        keys.dedup();
        let namespace = keys.first().map_or([0; HASH_BYTES], |key| key.namespace);
        keys.retain(|key| key.namespace == namespace);
        for key in &keys {
            if let Some(record) = state.policy.peek(key) {
                let header = record::parse(record).ok().map(|parsed| parsed.header);
                let (tenant, bytes) = (record.tenant(), record.len() as u64);
                rows.insert(*key, Row { record_class: record[9], tenant, bytes, header });
            } else if let Some(place) = self.disk.as_ref().and_then(|disk| disk.locate(key)) {
                places.insert(*key, place);
            }
        }
        drop(state);
        for (key, place) in places {
            rows.extend(self.row_at(&place).map(|row| (key, row)));
        }
        let mut packed = Vec::with_capacity(rows.len() * LISTED_BYTES);
        for (key, row) in rows.iter().filter(|(_, row)| row.record_class == record_class) {
            let (number, parent) =
                row.header.as_ref().map_or((u32::MAX, [0; HASH_BYTES]), position);
            packed.extend_from_slice(&key.block_hash);
            packed.extend_from_slice(&key.group.to_le_bytes());
            packed.extend_from_slice(&key.shard.to_le_bytes());
            packed.extend_from_slice(&parent);
            packed.extend_from_slice(&number.to_le_bytes());
            packed.extend_from_slice(&salt_of(row.tenant).to_le_bytes());
            packed.extend_from_slice(&row.bytes.to_le_bytes());
        }
        Listing { namespace, rows: packed, last: keys.last().copied() }
    }

    fn row_at(&self, place: &Place) -> Option<Row> {
        let disk = self.disk.as_ref()?;
        let header = disk.read_header(*place).and_then(|bytes| record::parse(&bytes).ok());
        Some(Row {
            record_class: place.record_class,
            tenant: disk.tenant_of(place),
            bytes: place.record_bytes.into(),
            header: header.map(|parsed| parsed.header),
        })
    }
}
