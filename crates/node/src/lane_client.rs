//! Owns the bindings of a client's lanes: requests by descriptor, one call into JavaScript per outcome.

use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::{Buffer, FnArgs, Function};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::key::pack_all;
use tierkv_core::lane::client::{
    Client, Content, Keep, Kept, Options, Outcome, Outgoing, Rail, Target, Targets,
};
use tierkv_core::lane::frame::{TRACE_BYTES, TraceContext};
use tierkv_core::lane::wire::Timing;
use tierkv_core::record::PACKED_KEY_BYTES;
use tierkv_core::slots::Lease;
use tierkv_core::store::ItemStatus;

use crate::arena::ARENAS;
use crate::ffi::{count, hash, ip, number, run};
use crate::geometry::GEOMETRIES;
use crate::goodput::Goodput;
use crate::ids::Ids;
use crate::inbox::INBOX;
use crate::lane_tls::LaneClientTls;
use crate::listener::token_of;
use crate::outbox::{OUTBOX, RECORDS};

static LANES: Ids<Arc<Client>> = Ids::new("lanes");

/// Request, error or null, result (statuses or a bitmap), bytes transferred.
type Told = FnArgs<(u32, Option<String>, Buffer, f64)>;

struct Event(u32, Outcome);

impl Event {
    fn told(self) -> Told {
        let Self(request, outcome) = self;
        let (error, data, bytes) = match outcome {
            Outcome::Up => (None, Vec::new(), 0),
            Outcome::Found(bitmap) => (None, bitmap, 0),
            Outcome::Done(statuses, bytes, reason) => {
                let reason = reason.map(|reason| Error::bad_record(reason).to_string());
                (reason, unless_all_accepted(statuses), bytes)
            }
            Outcome::Down(error) => (Some(error.to_string()), Vec::new(), 0),
            Outcome::Failed(error, statuses) => (Some(error.to_string()), statuses, 0),
        };
        (request, error, data.into(), number(bytes)).into()
    }
}

/// Nothing where every item was accepted, because handing memory to JavaScript takes longer than all else that is told.
fn unless_all_accepted(statuses: Vec<u8>) -> Vec<u8> {
    let is_all = statuses.iter().all(|status| *status == ItemStatus::Accepted as u8);
    if is_all { Vec::new() } else { statuses }
}

/// One network path to a vault.
#[napi(object)]
pub struct LaneRail {
    /// `host:port` or `unix:/path`.
    pub address: String,
    /// Local IP address; absent: the system chooses.
    pub local: Option<String>,
}

/// Dials in the background and calls `onOutcome(request, error, data, bytes)` once per request. Request 0 reports without
/// an error that the lanes are up, and with an error `CODE: text` that they have ended. `data` holds the items'
/// `ItemStatus` numbers (none: every item was accepted), or a look-up's bitmap; an error `BAD_RECORD: text` beside them is the reason of a refused record.
#[napi(
    ts_args_type = "rails: readonly LaneRail[], token: Uint8Array, lanes: number, down: Goodput, up: Goodput, onOutcome: (request: number, error: string | null, data: Buffer, bytes: number) => void, tls?: LaneClientTls | undefined | null"
)]
pub fn lanes_open(
    rails: Vec<LaneRail>,
    token: &[u8],
    lanes: u16,
    down: &Goodput,
    up: &Goodput,
    on_outcome: Function<'_, Told, ()>,
    tls: Option<LaneClientTls>,
) -> napi::Result<u32> {
    let tell: ThreadsafeFunction<Event, (), Told, napi::Status, false, true> = on_outcome
        .build_threadsafe_function::<Event>()
        .weak::<true>()
        .build_callback(|context: ThreadsafeCallContext<Event>| Ok(context.value.told()))?;
    run(|| {
        let tls = tls.as_ref().map(LaneClientTls::build).transpose()?;
        let (down, up) = (Arc::clone(&down.0), Arc::clone(&up.0));
        let (token, timing) = (token_of(token)?, Timing::default());
        let rails = rails.into_iter().map(rail).collect::<Result<_>>()?;
        let options = Options {
            rails,
            token,
            lanes,
            tls,
            timing,
            down,
            up,
            lends: Some(Arc::clone(&OUTBOX)),
        };
        let sink = move |request, outcome| {
            // A call fails only if JavaScript has gone, and then no code waits for it.
            tell.call(Event(request, outcome), ThreadsafeFunctionCallMode::NonBlocking);
        };
        LANES.insert(Arc::new(Client::open(options, Arc::new(sink))?))
    })
}

fn rail(LaneRail { address, local }: LaneRail) -> Result<Rail> {
    let local = local.map(|text| ip("local", &text)).transpose()?;
    Ok(Rail { address, local })
}

/// Returns the rails that ended the lanes or kept them from opening; empty if none did.
#[napi]
pub fn lanes_failed_rails(id: u32) -> napi::Result<Vec<u32>> {
    run(|| {
        let rails = LANES.get(id)?.failed_rails();
        Ok(rails.into_iter().filter_map(|rail| rail.try_into().ok()).collect())
    })
}

/// Whether the vault's records are read where they stand in its memory, and ours in ours.
#[napi]
pub fn lanes_lend(id: u32) -> napi::Result<Vec<bool>> {
    run(|| Ok(LANES.get(id)?.lends().to_vec()))
}

/// Longest packet on the first lane's path, as far as the system knows.
#[napi(ts_return_type = "number | null")]
pub fn lanes_mtu(id: u32) -> napi::Result<Option<u32>> {
    run(|| Ok(LANES.get(id)?.mtu()))
}

/// Asks which packed keys the vault holds, counted in its hit rate or not; returns the request's number. `trace`: trace context, 25 bytes.
#[napi]
pub fn lanes_lookup(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
    is_counted: bool,
    trace: Option<&[u8]>,
) -> napi::Result<u32> {
    run(|| {
        let trace = context(trace)?;
        let namespace = hash("namespace", namespace)?;
        LANES.get(id)?.look_up_in(&namespace, keys(packed)?, is_counted, trace.as_ref())
    })
}

/// Checks the length of a trace context.
fn context(bytes: Option<&[u8]>) -> Result<Option<TraceContext>> {
    let Some(bytes) = bytes else { return Ok(None) };
    bytes.try_into().map(Some).map_err(|_| {
        let text = format!("trace has {} bytes: it must have {TRACE_BYTES}", bytes.len());
        Error::bad_argument(text)
    })
}

/// Destination of a fetch, and its patience.
#[napi(object)]
pub struct LaneFetch {
    pub arena: u32,
    pub fidelity: u8,
    /// Time without a byte, in ms, after which the request fails with `FETCH_STALLED`; absent: any time.
    pub stall_ms: Option<u32>,
}

/// Fetches records straight into leased slots, verified and decoded; returns the request's number. Per key a geometry, and
/// a pair of slot and generation. `trace` as for a look-up.
#[napi]
pub fn lanes_fetch(
    id: u32,
    fetch: LaneFetch,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
    trace: Option<&[u8]>,
) -> napi::Result<u32> {
    let LaneFetch { arena, fidelity, stall_ms } = fetch;
    run(|| {
        let targets = targets(arena, fidelity, namespace, packed, geometries, leases)?;
        let stall = stall_ms.map(|ms| Duration::from_millis(ms.into()));
        LANES.get(id)?.fetch(Targets { trace: context(trace)?, stall, ..targets })
    })
}

/// Destinations of records.
pub fn targets(
    arena_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
) -> Result<Targets> {
    let keys = keys(packed)?;
    let (leases, rest) = leases.as_chunks::<2>();
    if keys.len() != geometries.len() || keys.len() != leases.len() || !rest.is_empty() {
        let text = format!(
            "{} keys, {} geometries, {} leases: one of each",
            keys.len(),
            geometries.len(),
            leases.len()
        );
        return Err(Error::bad_argument(text));
    }
    let mut items = Vec::with_capacity(keys.len());
    for ((packed_key, geometry), [slot, generation]) in keys.iter().zip(geometries).zip(leases) {
        let lease = Lease { slot: *slot, generation: *generation };
        items.push(Target { packed_key: *packed_key, lease, geometry: GEOMETRIES.get(*geometry)? });
    }
    Ok(Targets {
        namespace: hash("namespace", namespace)?,
        fidelity,
        arena: ARENAS.get(arena_id)?,
        inbox: Arc::clone(&INBOX),
        items,
        trace: None,
        stall: None,
    })
}

/// Fetches records as they are, verified, into the outbox under reserved ids, one per key; returns the request's number.
/// Records with status 1 (accepted) are then in the outbox.
#[napi]
pub fn lanes_take(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
    records: Vec<u32>,
) -> napi::Result<u32> {
    run(|| LANES.get(id)?.take(kept(namespace, packed, records)?))
}

/// Records to fetch into the outbox, under reserved ids.
pub fn kept(namespace: &[u8], packed: &[u8], records: Vec<u32>) -> Result<Kept> {
    let keys = keys(packed)?.to_vec();
    if keys.len() != records.len() {
        let text = format!("{} keys, {} records: one of each", keys.len(), records.len());
        return Err(Error::bad_argument(text));
    }
    let keep: Keep = Box::new(move |index, record| {
        // A record dropped meanwhile is no longer wanted.
        let _ = RECORDS.with(records[index], |content| {
            *content = Content::Made(record);
            Ok(())
        });
    });
    Ok(Kept { namespace: hash("namespace", namespace)?, keys, inbox: Arc::clone(&INBOX), keep })
}

/// Offers records of the outbox and sends those that the vault wants; returns the request's number. Their memory is kept
/// until it is sent, even if dropped. `known`: the last flush their maker knew of. A deferred record that can no longer be made
/// ends as 9 (incomplete). `trace` as for a look-up.
#[napi]
pub fn lanes_store(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
    records: &[u32],
    tenant: f64,
    known: f64,
    trace: Option<&[u8]>,
) -> napi::Result<u32> {
    run(|| {
        let (tenant, known) = (count("tenant", tenant)?, count("known", known)?);
        let (records, trace) = (outgoing(packed, records)?, context(trace)?);
        let namespace = hash("namespace", namespace)?;
        LANES.get(id)?.store_for(tenant, known, &namespace, records, trace.as_ref())
    })
}

/// Records of the outbox, with their keys.
pub fn outgoing(packed: &[u8], records: &[u32]) -> Result<Vec<Outgoing>> {
    let keys = keys(packed)?;
    if keys.len() != records.len() {
        let text = format!("{} keys, {} records: one of each", keys.len(), records.len());
        return Err(Error::bad_argument(text));
    }
    let outgoing = |(packed_key, record): (&[u8; PACKED_KEY_BYTES], &u32)| {
        Ok(Outgoing { packed_key: *packed_key, content: RECORDS.get(*record)? })
    };
    keys.iter().zip(records).map(outgoing).collect()
}

/// Moves `chunks` chunks of 1 MiB that are no record, from the vault or to it; returns the request's number.
#[napi]
pub fn lanes_probe(id: u32, chunks: u32, to_vault: bool) -> napi::Result<u32> {
    run(|| LANES.get(id)?.probe(chunks, to_vault))
}

/// Gives a request up; its outcome is then an error, unless it came before.
#[napi]
pub fn lanes_cancel(id: u32, request: u32) -> napi::Result<()> {
    run(|| {
        LANES.get(id)?.cancel(request);
        Ok(())
    })
}

/// Bytes transferred for a request; null after its outcome.
#[napi(ts_return_type = "number | null")]
pub fn lanes_progress(id: u32, request: u32) -> napi::Result<Option<f64>> {
    run(|| Ok(LANES.get(id)?.progress(request).map(number)))
}

/// Closes the lanes; idempotent. Open requests fail.
#[napi]
pub fn lanes_close(id: u32) -> napi::Result<()> {
    run(|| {
        LANES.remove(id);
        Ok(())
    })
}

/// Packs the keys of all shards of the blocks at `indexes` (absent: of all), from block hashes of 32 bytes each.
#[napi]
pub fn pack_keys(
    hashes: &[u8],
    group: u16,
    shards: u16,
    indexes: Option<&[u32]>,
) -> napi::Result<Buffer> {
    run(|| Ok(pack_all(hashes, indexes, group, shards)?.into()))
}

/// Splits packed keys.
pub fn keys(packed: &[u8]) -> Result<&[[u8; PACKED_KEY_BYTES]]> {
    let (keys, rest) = packed.as_chunks::<PACKED_KEY_BYTES>();
    if rest.is_empty() {
        return Ok(keys);
    }
    let text = format!("keys has {} bytes: a multiple of {PACKED_KEY_BYTES}", packed.len());
    Err(Error::bad_argument(text))
}
