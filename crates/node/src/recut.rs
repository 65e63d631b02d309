//! Owns the binding of the core's cutting of records: from the outbox into leased slots of shorter blocks.

use std::sync::{Arc, LazyLock};

use napi::bindgen_prelude::{AsyncTask, Uint8Array};
use napi_derive::napi;
use tierkv_core::arena::Arena;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::geometry::Geometry;
use tierkv_core::inbox::Wanted;
use tierkv_core::lane::client::Content;
use tierkv_core::limits::{POOL_IDLE_BYTES_MAX, RECUT_BYTES_MAX};
use tierkv_core::pool::Pool;
use tierkv_core::recut::{Piece, decode, longer, place};
use tierkv_core::slots::Lease;
use tierkv_core::store::ItemStatus;

use crate::arena::ARENAS;
use crate::ffi::{hash, run};
use crate::geometry::GEOMETRIES;
use crate::lane_client::keys;
use crate::outbox::RECORDS;
use crate::seal::current;
use crate::store_disk::Background;

static POOL: LazyLock<Arc<Pool>> =
    LazyLock::new(|| Pool::new("recut", RECUT_BYTES_MAX, POOL_IDLE_BYTES_MAX));

/// One record, and the slots that parts of it are placed in.
struct Work {
    wanted: Wanted,
    geometry: Arc<Geometry>,
    record: Result<Content>,
    pieces: Vec<Piece>,
}

/// Verifies and decodes records of blocks of `tokens` tokens, and cuts them into leased slots. Each record has a packed key
/// and two numbers in `records`: geometry of a slot's page, id in the outbox. Each slot has four numbers in `pieces`: index
/// of its record, tokens of the record before it, slot, generation. Returns an `ItemStatus` number per record: 1
/// (accepted), 3 (no key opens it), 4 (invalid), 8 (no memory), 9 (a slot is gone).
#[napi(ts_return_type = "Promise<Uint8Array>")]
pub fn recut_slots(
    arena_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    tokens: u32,
    records: &[u32],
    pieces: &[u32],
) -> napi::Result<AsyncTask<Background<Vec<u8>, Uint8Array>>> {
    let (arena, work) = run(|| {
        let keys = keys(packed)?;
        let (records, odd) = records.as_chunks::<2>();
        let (pieces, rest) = pieces.as_chunks::<4>();
        if keys.len() != records.len() || !odd.is_empty() || !rest.is_empty() {
            let (keys, records) = (keys.len(), records.len());
            let text = format!("{keys} keys, {records} records: one of each");
            return Err(Error::bad_argument(text));
        }
        let namespace = hash("namespace", namespace)?;
        let mut work = Vec::with_capacity(keys.len());
        for (packed_key, [geometry, record]) in keys.iter().zip(records) {
            let wanted = Wanted { fidelity, namespace, packed_key: *packed_key };
            let (geometry, record) = (GEOMETRIES.get(*geometry)?, RECORDS.get(*record));
            work.push(Work { wanted, geometry, record, pieces: Vec::new() });
        }
        for [at, first, slot, generation] in pieces {
            let lease = Lease { slot: *slot, generation: *generation };
            let of = work.get_mut(*at as usize);
            let of =
                of.ok_or_else(|| Error::bad_argument(format!("record {at}: there is none")))?;
            of.pieces.push(Piece { first: *first, lease });
        }
        Ok((ARENAS.get(arena_id)?, work))
    })?;
    Ok(Background::start(move || {
        let status = |one: Work| match land(&arena, tokens, one) {
            Ok(()) => ItemStatus::Accepted as u8,
            Err(error) => status_of(&error) as u8,
        };
        Ok(work.into_iter().map(status).collect())
    }))
}

fn land(arena: &Arc<Arena>, tokens: u32, work: Work) -> Result<()> {
    let Work { wanted, geometry, record, pieces } = work;
    let record = record?.make()?;
    let whole = longer(&geometry, tokens)?;
    let page = decode(&POOL, current().as_deref(), &wanted, &whole, record.bytes())?;
    pieces.into_iter().try_for_each(|piece| place(arena, &page, &whole, piece, &geometry))
}

fn status_of(error: &Error) -> ItemStatus {
    match error.code {
        Code::BadRecord => ItemStatus::BadRecord,
        Code::NoMemory => ItemStatus::OverBudget,
        Code::RecordUnopened => ItemStatus::Missing,
        _ => ItemStatus::Incomplete,
    }
}
