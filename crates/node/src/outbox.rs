//! Owns the skin over the core's outbox: records of slots, ready to be sent.

use std::sync::{Arc, LazyLock};

use napi::Env;
use napi::bindgen_prelude::{BufferSlice, Float64Array};
use napi_derive::napi;
use tierkv_core::codec::Codec;
use tierkv_core::error::{Error, Result};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::pool::PooledBuffer;
use tierkv_core::slots::Lease;

use crate::arena::ARENAS;
use crate::geometry::GEOMETRIES;
use crate::ids::Ids;
use crate::skin::{count, hash, run, size};

pub static OUTBOX: LazyLock<Outbox> = LazyLock::new(Outbox::default);
pub static RECORDS: Ids<Arc<PooledBuffer>> = Ids::new("outbox record");

/// One leased slot to encode, and what its record says besides the geometry.
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

/// How full the outbox is.
#[napi(object)]
pub struct OutboxStatus {
    pub records: f64,
    pub bytes: f64,
}

/// Encodes leased slots, in any thread; per item: outbox record id, record length. All or none.
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
        let arena = ARENAS.get(arena_id)?;
        let geometry = GEOMETRIES.get(geometry_id)?;
        let codec = Codec::from_id(codec)
            .ok_or_else(|| Error::bad_argument(format!("codec {codec} is unknown")))?;
        let namespace = hash("namespace", namespace)?;
        let encode = |item: &EncodeItem<'_>| {
            let lease = Lease { slot: item.slot, generation: item.generation };
            let identity = Identity {
                shard: item.shard,
                shard_count: item.shard_count,
                end_tokens: count("endTokens", item.end_tokens)?,
                namespace,
                block_hash: hash("blockHash", &item.block_hash)?,
                parent_hash: hash("parentHash", &item.parent_hash)?,
            };
            OUTBOX.encode(&arena, lease, &geometry, (codec, fidelity), &identity)
        };
        let records = items.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let lengths: Vec<usize> = records.iter().map(|record| record.len()).collect();
        let ids = RECORDS.insert_all(records.into_iter().map(Arc::new).collect())?;
        let pairs: Vec<f64> = ids
            .into_iter()
            .zip(lengths)
            .flat_map(|(id, length)| [f64::from(id), size(length)])
            .collect();
        Ok(pairs.into())
    })
}

/// A view of a record, without a copy; it keeps the memory.
#[napi]
pub fn outbox_view(env: &Env, record_id: u32) -> napi::Result<BufferSlice<'_>> {
    let record = run(|| RECORDS.get(record_id))?;
    let (start, bytes) = (record.as_ptr().cast_mut(), record.len());
    // SAFETY: the memory lives as long as `record`, which the finalizer owns; nobody writes it any more.
    unsafe { BufferSlice::from_external(env, start, bytes, record, |_env, record| drop(record)) }
}

/// Gives a record up; its memory goes when the last view has. Idempotent.
#[napi]
pub fn outbox_drop(record_id: u32) -> napi::Result<()> {
    run(|| {
        RECORDS.remove(record_id);
        Ok(())
    })
}

/// Records that were not dropped, and the bytes of all that are still in memory.
#[napi]
pub fn outbox_status() -> napi::Result<OutboxStatus> {
    run(|| Ok(OutboxStatus { records: size(RECORDS.len()), bytes: size(OUTBOX.live().1) }))
}
