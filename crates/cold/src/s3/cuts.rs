//! Owns the cutting of a request: records to store into packs, records to fetch into ranges.

use std::collections::BTreeMap;
use std::sync::Arc;

use tierkv_core::lane::client::{Content, Outgoing};
use tierkv_core::lane::wire::Bytes;
use tierkv_core::limits::{S3_OBJECT_BYTES, S3_OBJECT_RECORDS_MAX, S3_RANGE_BYTES};
use tierkv_core::record::{self, Hash};

use super::places::Place;
use super::runs::{hash_of, is_end};
use crate::store::{PackedKey, made};

/// Records of one run to store, with their numbers in the request.
pub type Pack = Vec<(usize, PackedKey, Arc<dyn Bytes>)>;

/// Records that one range of an object brings, in the order in which they lie there.
pub struct Range {
    pub object: Arc<str>,
    pub items: Vec<(usize, Place)>,
}

impl Range {
    pub fn start(&self) -> u64 {
        self.items[0].1.offset
    }

    pub fn end(&self) -> u64 {
        self.items.last().map_or(0, |(_, place)| place.offset + place.bytes)
    }
}

/// Whether the record belongs behind the one before, in the same object.
fn follows(before: &PackedKey, key: &PackedKey, content: &Content) -> bool {
    let is_after = |parent: &Hash| parent == hash_of(before);
    key[32..] == before[32..]
        && !is_end(hash_of(before))
        && match content {
            Content::Deferred(deferred) => is_after(deferred.parent_hash()),
            // A sealed record hides it, and then has an object of its own.
            Content::Made(bytes) => record::parse(bytes.bytes())
                .is_ok_and(|parsed| is_after(&parsed.header.parent_hash)),
        }
}

/// Gathers records into packs: the blocks of a run, in the order of the prompt.
pub fn packs_of(records: &[Outgoing], wanted: &[usize]) -> Vec<Pack> {
    let mut packs: Vec<(Pack, u64)> = Vec::new();
    for index in wanted {
        let Outgoing { packed_key, content } = &records[*index];
        // The slot of a deferred record was released.
        let Ok(record) = made(content) else { continue };
        let bytes = record.bytes().len() as u64;
        let fits = |(pack, size): &&mut (Pack, u64)| {
            let (_, last, _) = pack.last().expect("a pack has a record");
            pack.len() < S3_OBJECT_RECORDS_MAX
                && *size + bytes <= S3_OBJECT_BYTES
                && follows(last, packed_key, content)
        };
        let item = (*index, *packed_key, record);
        match packs.iter_mut().rev().find(fits) {
            Some((pack, size)) => {
                pack.push(item);
                *size += bytes;
            }
            None => packs.push((vec![item], bytes)),
        }
    }
    packs.into_iter().map(|(pack, _)| pack).collect()
}

/// Cuts the records to fetch into ranges: what lies together in an object, up to a length.
pub fn ranges_of(found: &[Option<Place>]) -> Vec<Range> {
    let mut objects: BTreeMap<Arc<str>, Vec<(usize, Place)>> = BTreeMap::new();
    for (index, place) in found.iter().enumerate() {
        let Some(place) = place else { continue };
        objects.entry(Arc::clone(&place.object)).or_default().push((index, place.clone()));
    }
    let mut ranges: Vec<Range> = Vec::new();
    for (object, mut items) in objects {
        items.sort_by_key(|(_, place)| place.offset);
        let from = ranges.len();
        for (index, place) in items {
            let joins = |range: &&mut Range| {
                place.offset == range.end()
                    && place.offset + place.bytes - range.start() <= S3_RANGE_BYTES
            };
            let last = if ranges.len() > from { ranges.last_mut() } else { None };
            match last.filter(joins) {
                Some(range) => range.items.push((index, place)),
                None => {
                    ranges.push(Range { object: Arc::clone(&object), items: vec![(index, place)] });
                }
            }
        }
    }
    // An engine needs the first blocks first.
    ranges.sort_by_key(|range| range.items.iter().map(|(index, _)| *index).min());
    ranges
}
