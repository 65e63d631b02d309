//! Owns functions that only tests call: they read and write slots, parse and spoil records, and say how full memory is.
//!
//! Absent from a build without the feature `test-exports`, and from `index.d.ts` in any: `test/support/native.ts`
//! declares the types.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Buffer, BufferSlice};
use napi_derive::napi;
use tierkv_core::crc32c as checksum;
use tierkv_core::error::{Error, Result};
use tierkv_core::inbox::Wanted;
use tierkv_core::record::{self, Header, PACKED_KEY_BYTES};
use tierkv_core::slots::Lease;
use tierkv_core::store::{MADE_NOW, Offer, RecordKey};

use crate::arena::ARENAS;
use crate::ffi::{count, hash, number, run, size};
use crate::geometry::GEOMETRIES;
use crate::inbox::INBOX;
use crate::outbox::{OUTBOX, RECORDS};
use crate::record::RecordHeader;
use crate::store::{STORES, keys};

/// Returns the number of records that are arriving, and their bytes.
#[napi(skip_typescript)]
pub fn inbox_status() -> napi::Result<Vec<f64>> {
    run(|| {
        let (open, bytes) = INBOX.live();
        Ok(vec![size(open), size(bytes)])
    })
}

/// Returns the number of records not yet dropped, and the bytes of all records still in memory.
#[napi(skip_typescript)]
pub fn outbox_status() -> napi::Result<Vec<f64>> {
    run(|| Ok(vec![size(RECORDS.len()), size(OUTBOX.live().1)]))
}

/// Receives a record into a leased slot in chunks of `step` bytes, as a lane does.
#[allow(clippy::too_many_arguments, reason = "flat, as JavaScript has it")]
#[napi(skip_typescript)]
pub fn receive_record<'env>(
    env: &'env Env,
    id: u32,
    slot: u32,
    generation: u32,
    geometry_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    record: &[u8],
    step: u32,
) -> napi::Result<RecordHeader<'env>> {
    let header = run(|| {
        let wanted = Wanted {
            fidelity,
            namespace: hash("namespace", namespace)?,
            packed_key: packed_key(packed)?,
        };
        let lease = Lease { slot, generation };
        let (arena, geometry) = (ARENAS.get(id)?, GEOMETRIES.get(geometry_id)?);
        let reassembly = INBOX.begin(&arena, lease, &geometry, wanted, record.len() as u64)?;
        Arc::new(reassembly).take(record, step as usize)
    })?;
    header_object(env, &header)
}

/// Stores a record; returns its `ItemStatus` number.
#[napi(skip_typescript)]
pub fn store_put(id: u32, namespace: &[u8], packed: &[u8], record: &[u8]) -> napi::Result<u32> {
    run(|| {
        let key = RecordKey::from_packed(hash("namespace", namespace)?, &packed_key(packed)?);
        match STORES.get(id)?.reserve_since(MADE_NOW, 0, key, record.len() as u64) {
            Offer::Refused(status) => Ok(status as u32),
            Offer::Wanted(mut reservation) => {
                reservation.write(0, record)?;
                Ok(reservation.commit() as u32)
            }
        }
    })
}

/// Pins records and drops them at once: counts as a use, as a fetch does.
#[napi(skip_typescript)]
pub fn store_touch(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<()> {
    run(|| {
        let store = STORES.get(id)?;
        for key in keys(namespace, packed)? {
            drop(store.pin(&key));
        }
        Ok(())
    })
}

/// Parses and checks the header at the start of `bytes`.
#[napi(skip_typescript)]
pub fn parse_record_header<'env>(env: &'env Env, bytes: &[u8]) -> napi::Result<RecordHeader<'env>> {
    let parsed = run(|| Ok(record::parse(bytes)?))?;
    header_object(env, &parsed.header)
}

/// Parses and checks a whole record, payload included.
#[napi(skip_typescript)]
pub fn verify_record<'env>(env: &'env Env, bytes: &[u8]) -> napi::Result<RecordHeader<'env>> {
    let header = run(|| Ok(record::verify(bytes)?))?;
    header_object(env, &header)
}

/// Returns the CRC32C of `bytes`.
#[napi(js_name = "crc32c", skip_typescript)]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum::checksum(bytes)
}

/// Adds one share to a leased slot.
#[napi(skip_typescript)]
pub fn retain_slot(id: u32, slot: u32, generation: u32) -> napi::Result<()> {
    run(|| ARENAS.get(id)?.slots().retain(Lease { slot, generation }))
}

/// Returns a copy of a slot, leased or not.
#[napi(skip_typescript)]
pub fn read_slot(id: u32, slot: u32) -> napi::Result<Buffer> {
    run(|| Ok(ARENAS.get(id)?.peek(slot)?.into()))
}

/// Overwrites the start of a slot, leased or not.
#[napi(skip_typescript)]
pub fn write_slot(id: u32, slot: u32, bytes: &[u8]) -> napi::Result<()> {
    run(|| ARENAS.get(id)?.poke(slot, bytes))
}

/// Flips a bit of one byte of a stored record.
#[napi(skip_typescript)]
pub fn corrupt_record(id: u32, namespace: &[u8], packed: &[u8], offset: f64) -> napi::Result<()> {
    run(|| {
        let key = RecordKey::from_packed(hash("namespace", namespace)?, &packed_key(packed)?);
        let offset = count("offset", offset)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if STORES.get(id)?.corrupt(&key, offset) {
            return Ok(());
        }
        Err(Error::bad_argument(format!("no such record, or it has no byte {offset}")))
    })
}

/// Makes the transfer object of a core header.
fn header_object<'env>(env: &'env Env, header: &Header) -> napi::Result<RecordHeader<'env>> {
    Ok(RecordHeader {
        codec: header.codec,
        record_class: header.record_class,
        fidelity: header.fidelity,
        layout: header.layout,
        group: header.group,
        shard: header.shard,
        shard_count: header.shard_count,
        dtype: header.dtype,
        parts: header.parts,
        tokens: header.tokens,
        layers: header.layers,
        heads: header.heads,
        dim_k: header.dim_k,
        dim_v: header.dim_v,
        end_tokens: number(header.end_tokens),
        payload_bytes: number(header.payload_bytes),
        source_bytes: number(header.source_bytes),
        namespace: BufferSlice::copy_from(env, header.namespace)?,
        block_hash: BufferSlice::copy_from(env, header.block_hash)?,
        parent_hash: BufferSlice::copy_from(env, header.parent_hash)?,
    })
}

/// Checks the length of one packed key.
fn packed_key(bytes: &[u8]) -> Result<[u8; PACKED_KEY_BYTES]> {
    bytes.try_into().map_err(|_| {
        Error::bad_argument(format!(
            "packedKey has {} bytes: it must have {PACKED_KEY_BYTES}",
            bytes.len()
        ))
    })
}
