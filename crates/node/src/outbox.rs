//! Owns the bindings of the core's outbox: records of slots, ready to be sent.

use std::sync::{Arc, LazyLock};

use napi::bindgen_prelude::{Buffer, BufferSlice, Float64Array, Uint32Array};
use napi_derive::napi;
use tierkv_core::codec::{Codec, Weight, weigh};
use tierkv_core::error::{Error, Result};
use tierkv_core::lane::client::Content;
use tierkv_core::outbox::{DeferredRecord, Identity, Outbox};
use tierkv_core::record::{self, HEADER_BYTES};
use tierkv_core::slots::Lease;
use tierkv_core::store::position;

use crate::arena::ARENAS;
use crate::ffi::{count, hash, run, size};
use crate::geometry::GEOMETRIES;
use crate::ids::Ids;
use crate::seal::current;

pub static OUTBOX: LazyLock<Arc<Outbox>> = LazyLock::new(Arc::default);
pub static RECORDS: Ids<Content> = Ids::new("outbox record");

/// A leased slot to encode, and the fields of its record that do not follow from the geometry.
#[napi(object)]
pub struct EncodeItem<'env> {
    pub slot: u32,
    pub generation: u32,
    pub shard: u16,
    pub shard_count: u16,
    pub end_tokens: f64,
    pub block_hash: BufferSlice<'env>,
    pub parent_hash: BufferSlice<'env>,
}

/// Encodes leased slots, on any thread; per item outbox record id and record length. All or none.
#[napi]
pub fn encode_slots(
    arena_id: u32,
    geometry_id: u32,
    codec: u8,
    fidelity: u8,
    namespace: &[u8],
    items: Vec<EncodeItem<'_>>,
) -> napi::Result<Float64Array> {
    run(|| {
        let deferred = deferred(arena_id, geometry_id, (codec, fidelity), namespace, &items)?;
        let made = |deferred: DeferredRecord| Ok(Content::Made(Arc::new(deferred.make()?)));
        insert(deferred.into_iter().map(made).collect::<Result<_>>()?)
    })
}

/// Like `encodeSlots` without encoding; the lane that sends such a record makes it. Its slot must stay leased until it is
/// made or dropped. The lengths are right unless the codec has no codes for a page.
#[napi]
pub fn defer_slots(
    arena_id: u32,
    geometry_id: u32,
    codec: u8,
    fidelity: u8,
    namespace: &[u8],
    items: Vec<EncodeItem<'_>>,
) -> napi::Result<Float64Array> {
    run(|| {
        let deferred = deferred(arena_id, geometry_id, (codec, fidelity), namespace, &items)?;
        insert(deferred.into_iter().map(|deferred| Content::Deferred(Arc::new(deferred))).collect())
    })
}

/// Measurements of a codec on a block.
#[napi(object)]
pub struct CodecWeight {
    pub codec: u8,
    /// Length of the payload.
    pub bytes: f64,
    pub decode_s: f64,
}

/// Measures codecs on a leased slot, on any thread; leaves out those that do not take it or have no codes for its contents.
#[napi]
pub fn weigh_slot(
    arena_id: u32,
    geometry_id: u32,
    slot: u32,
    generation: u32,
    codecs: &[u8],
) -> napi::Result<Vec<CodecWeight>> {
    run(|| {
        let (arena, geometry) = (ARENAS.get(arena_id)?, GEOMETRIES.get(geometry_id)?);
        let _held = arena.access(Lease { slot, generation })?;
        let page = arena.peek(slot)?;
        let known = codecs.iter().filter_map(|id| Codec::from_id(*id));
        let weighed = known.filter_map(|codec| Some((codec, weigh(codec, &geometry, &page)?)));
        let entry = |(codec, weight): (Codec, Weight)| CodecWeight {
            codec: codec.id(),
            bytes: size(weight.bytes),
            decode_s: weight.decode.as_secs_f64(),
        };
        Ok(weighed.map(entry).collect())
    })
}

/// Makes deferred records, on any thread; per record its length. A record that can no longer be made stays as it is: 0.
#[napi]
pub fn outbox_make(record_ids: &[u32]) -> napi::Result<Float64Array> {
    run(|| Ok(record_ids.iter().map(|id| made(*id).map_or(0.0, size)).collect::<Vec<f64>>().into()))
}

/// Makes a deferred record; returns its length.
fn made(id: u32) -> Option<usize> {
    // A dropped record is no longer wanted.
    let Content::Deferred(deferred) = RECORDS.get(id).ok()? else { return None };
    let record = deferred.make().ok()?;
    let length = record.len();
    let put = RECORDS.with(id, |content| {
        *content = Content::Made(Arc::new(record));
        Ok(())
    });
    put.ok().map(|()| length)
}

/// Adds a record made elsewhere, sealed if records are sealed; returns its id. Does not check that it is sound.
#[napi]
pub fn outbox_put(record: &[u8]) -> napi::Result<u32> {
    run(|| RECORDS.insert(Content::Made(Arc::new(OUTBOX.put(record)?))))
}

/// Returns a copy of a made record.
#[napi]
pub fn outbox_view(record_id: u32) -> napi::Result<Buffer> {
    run(|| match RECORDS.get(record_id)? {
        Content::Made(record) => Ok(record.bytes().to_vec().into()),
        Content::Deferred(_) => Err(Error::bad_argument("a deferred record has no bytes")),
    })
}

/// Reserves ids for records that will come (`lanesTake`).
#[napi]
pub fn outbox_reserve(records: u32) -> napi::Result<Uint32Array> {
    let empty = || Content::Made(Arc::new(Vec::new()));
    run(|| Ok(RECORDS.insert_all((0..records).map(|_| empty()).collect())?.into()))
}

/// Returns the number of the record's block in its prompt (all ones: unknown) and the parent hash, packed as in a listing.
/// A sealed record is opened for this, but stays sealed. null: none of our keys opens it.
#[napi]
pub fn outbox_position(record_id: u32) -> napi::Result<Option<Buffer>> {
    run(|| {
        let content = RECORDS.get(record_id)?.make()?;
        let record = content.bytes();
        let parsed =
            record::parse(record).map_err(|refusal| Error::bad_record(refusal.to_string()))?;
        let header = match current() {
            None => parsed.header,
            Some(keys) => {
                let mut copy = record[HEADER_BYTES..].to_vec();
                let Ok((header, _)) = keys.open(&record[..HEADER_BYTES], &mut copy) else {
                    return Ok(None);
                };
                header
            }
        };
        let (number, parent) = position(&header);
        Ok(Some([parent.as_slice(), &number.to_le_bytes()].concat().into()))
    })
}

fn deferred(
    arena_id: u32,
    geometry_id: u32,
    (codec, fidelity): (u8, u8),
    namespace: &[u8],
    items: &[EncodeItem<'_>],
) -> Result<Vec<DeferredRecord>> {
    let (arena, geometry) = (ARENAS.get(arena_id)?, GEOMETRIES.get(geometry_id)?);
    let codec = Codec::from_id(codec)
        .ok_or_else(|| Error::bad_argument(format!("codec {codec} is unknown")))?;
    let namespace = hash("namespace", namespace)?;
    let deferred = |item: &EncodeItem<'_>| {
        let lease = Lease { slot: item.slot, generation: item.generation };
        let identity = Identity {
            shard: item.shard,
            shard_count: item.shard_count,
            end_tokens: count("endTokens", item.end_tokens)?,
            namespace,
            block_hash: hash("blockHash", &item.block_hash)?,
            parent_hash: hash("parentHash", &item.parent_hash)?,
        };
        OUTBOX.defer(&arena, lease, &geometry, (codec, fidelity), identity)
    };
    items.iter().map(deferred).collect()
}

/// Inserts records; returns pairs of id and length.
fn insert(records: Vec<Content>) -> Result<Float64Array> {
    let lengths: Vec<usize> = records.iter().map(Content::length).collect();
    let ids = RECORDS.insert_all(records)?.into_iter();
    let pair = |(id, length)| [f64::from(id), size(length)];
    Ok(ids.zip(lengths).flat_map(pair).collect::<Vec<f64>>().into())
}

/// Drops a record; its memory is freed once no lane sends it. Idempotent.
#[napi]
pub fn outbox_drop(record_id: u32) -> napi::Result<()> {
    run(|| {
        RECORDS.remove(record_id);
        Ok(())
    })
}
