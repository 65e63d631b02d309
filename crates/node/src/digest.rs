//! Owns the binding of the core's digests of leased slots.

use napi::bindgen_prelude::{AsyncTask, Uint8Array};
use napi_derive::napi;
use tierkv_core::digest;
use tierkv_core::error::Result;
use tierkv_core::slots::Lease;

use crate::arena::ARENAS;
use crate::ffi::run;
use crate::geometry::GEOMETRIES;
use crate::store_disk::Background;

/// Computes SHA-256 digests of leased slots' values, 32 bytes each, from triples of geometry, slot and generation. All or none.
#[napi(ts_return_type = "Promise<Uint8Array>")]
pub fn slots_digest(
    arena_id: u32,
    triples: &[u32],
) -> napi::Result<AsyncTask<Background<Vec<u8>, Uint8Array>>> {
    let (arena, work) = run(|| {
        let (triples, _) = triples.as_chunks::<3>();
        let work = triples.iter().map(|[geometry, slot, generation]| {
            Ok((GEOMETRIES.get(*geometry)?, Lease { slot: *slot, generation: *generation }))
        });
        Ok((ARENAS.get(arena_id)?, work.collect::<Result<Vec<_>>>()?))
    })?;
    Ok(Background::start(move || {
        let mut digests = Vec::with_capacity(work.len() * 32);
        for (geometry, lease) in work {
            digests.extend_from_slice(&digest::of_slot(&arena, lease, &geometry)?);
        }
        Ok(digests)
    }))
}
