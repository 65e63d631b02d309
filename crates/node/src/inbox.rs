//! Owns the skin over the core's inbox: records that arrive and become pages.

use std::sync::{Arc, LazyLock};

use napi::Env;
use napi_derive::napi;
use tierkv_core::inbox::{Arrival, Inbox, Wanted};
use tierkv_core::slots::Lease;

use crate::arena::ARENAS;
use crate::geometry::GEOMETRIES;
use crate::ids::Ids;
use crate::record::RecordHeader;
use crate::skin::{count, hash, packed_key, run};

pub static INBOX: LazyLock<Arc<Inbox>> = LazyLock::new(Arc::default);
static ARRIVALS: Ids<Arrival> = Ids::new("inbox");

/// Opens the way for one record into a leased slot; returns the inbox id.
#[napi]
pub fn open_inbox(
    arena_id: u32,
    slot: u32,
    generation: u32,
    geometry_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    record_bytes: f64,
) -> napi::Result<u32> {
    run(|| {
        let wanted = Wanted {
            fidelity,
            namespace: hash("namespace", namespace)?,
            packed_key: packed_key(packed)?,
        };
        ARRIVALS.insert(INBOX.open(
            &ARENAS.get(arena_id)?,
            Lease { slot, generation },
            &GEOMETRIES.get(geometry_id)?,
            wanted,
            count("recordBytes", record_bytes)?,
        )?)
    })
}

/// Takes the next piece; true when the record is complete.
#[napi]
pub fn inbox_write(inbox_id: u32, offset: f64, data: &[u8]) -> napi::Result<bool> {
    run(|| {
        let offset = count("offset", offset)?;
        ARRIVALS.with(inbox_id, |arrival| arrival.write(offset, data))
    })
}

/// Checks everything and decodes into the slot; the inbox is gone afterwards, whatever the outcome.
#[napi]
pub fn inbox_finish(env: &Env, inbox_id: u32) -> napi::Result<RecordHeader<'_>> {
    let header = run(|| ARRIVALS.take(inbox_id)?.finish())?;
    RecordHeader::new(env, &header)
}

/// Gives it up; idempotent.
#[napi]
pub fn inbox_abort(inbox_id: u32) -> napi::Result<()> {
    run(|| {
        ARRIVALS.remove(inbox_id);
        Ok(())
    })
}
