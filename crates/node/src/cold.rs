//! Owns the bindings over a store that others run: requests by descriptor, one call into JavaScript for each outcome.

use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::{Buffer, FnArgs, Function};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi_derive::napi;
use tierkv_cold::desk::{Answer, Desk, Work};
use tierkv_cold::goal::Goal;
use tierkv_core::error::{Error, Result};
use tierkv_core::lane::client::Kept;

use crate::ffi::{count, hash, number, run};
use crate::ids::Ids;
use crate::inbox::INBOX;
use crate::lane_client::{kept, keys, outgoing, targets};

static STORES: Ids<Arc<Desk>> = Ids::new("store");

/// Request, its error or null, its data (statuses or a bitmap), and the bytes moved.
type Told = FnArgs<(u32, Option<String>, Buffer, Vec<f64>)>;

struct Event(u32, Result<Answer>);

impl Event {
    fn told(self) -> Told {
        let Self(request, outcome) = self;
        let (error, data, bytes) = match outcome {
            Err(error) => (Some(error.to_string()), Vec::new(), 0),
            Ok(Answer::Found(bitmap)) => (None, bitmap, 0),
            Ok(Answer::Done(statuses, bytes, reason)) => {
                (reason.map(|reason| Error::bad_record(reason).to_string()), statuses, bytes)
            }
        };
        (request, error, data.into(), vec![number(bytes)]).into()
    }
}

/// Opens the store of an address, `valkey://...` or `s3://...`, with credentials from the environment; connects to nothing yet. `ttlS`:
/// time to live of a record in s, or null. `onOutcome(request, error, data, numbers)` is called once per request: `data` holds the
/// items' `ItemStatus` numbers or a look-up's bitmap, `numbers[0]` the bytes moved. An error `BAD_RECORD: text` beside them says why
/// a record was refused.
#[napi(
    ts_args_type = "address: string, ttlS: number | null, onOutcome: (request: number, error: string | null, data: Buffer, numbers: number[]) => void"
)]
pub fn cold_open(
    address: String,
    ttl_s: Option<u32>,
    on_outcome: Function<'_, Told, ()>,
) -> napi::Result<u32> {
    let tell: ThreadsafeFunction<Event, (), Told, napi::Status, false, true> = on_outcome
        .build_threadsafe_function::<Event>()
        .weak::<true>()
        .build_callback(|context: ThreadsafeCallContext<Event>| Ok(context.value.told()))?;
    run(|| {
        let sink = move |request, outcome| {
            // A failed call means that JavaScript has ended, so no caller waits.
            tell.call(Event(request, outcome), ThreadsafeFunctionCallMode::NonBlocking);
        };
        let vars = Box::new(|name: &str| std::env::var(name).ok());
        let store = tierkv_cold::open(&address, ttl_s.map(u64::from), vars)?;
        STORES.insert(Arc::new(Desk::open(store, Arc::new(sink))?))
    })
}

fn begin(id: u32, deadline_ms: f64, work: impl FnOnce() -> Result<Work>) -> napi::Result<u32> {
    run(|| {
        let within = Duration::from_millis(count("deadlineMs", deadline_ms.ceil())?);
        STORES.get(id)?.begin(work()?, within)
    })
}

/// Asks which of the packed keys the store has; returns the request's number.
#[napi]
pub fn cold_lookup(
    id: u32,
    deadline_ms: f64,
    namespace: &[u8],
    packed: &[u8],
) -> napi::Result<u32> {
    begin(id, deadline_ms, || {
        Ok(Work::LookUp(hash("namespace", namespace)?, keys(packed)?.to_vec()))
    })
}

/// Fetches records into leased slots, verified and decoded, as `lanesFetch`.
#[napi]
pub fn cold_fetch(
    id: u32,
    arena_id: u32,
    deadline_ms: f64,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
) -> napi::Result<u32> {
    begin(id, deadline_ms, || {
        let targets = targets(arena_id, fidelity, namespace, packed, geometries, leases)?;
        Ok(Work::Fetch(Goal::Slots(targets)))
    })
}

/// Fetches records into the outbox, verified and still encoded, as `lanesTake`.
#[napi]
pub fn cold_take(
    id: u32,
    deadline_ms: f64,
    namespace: &[u8],
    packed: &[u8],
    records: Vec<u32>,
) -> napi::Result<u32> {
    begin(id, deadline_ms, || Ok(Work::Fetch(Goal::Memory(kept(namespace, packed, records)?))))
}

/// Stores records of the outbox that are not there yet.
#[napi]
pub fn cold_store(
    id: u32,
    deadline_ms: f64,
    namespace: &[u8],
    packed: &[u8],
    records: &[u32],
) -> napi::Result<u32> {
    begin(id, deadline_ms, || {
        Ok(Work::Store(hash("namespace", namespace)?, outgoing(packed, records)?))
    })
}

/// Fetches records that a reader could not use, and removes damaged ones (status 10, quarantined).
#[napi]
pub fn cold_check(id: u32, deadline_ms: f64, namespace: &[u8], packed: &[u8]) -> napi::Result<u32> {
    begin(id, deadline_ms, || {
        let (namespace, keys) = (hash("namespace", namespace)?, keys(packed)?.to_vec());
        let inbox = Arc::clone(&INBOX);
        Ok(Work::Check(Kept { namespace, keys, inbox, keep: Box::new(|_, _| {}) }))
    })
}

/// Asks whether the store answers.
#[napi]
pub fn cold_ping(id: u32, deadline_ms: f64) -> napi::Result<u32> {
    begin(id, deadline_ms, || Ok(Work::Ping))
}

/// Gives a request up; its outcome is then an error, unless it came before.
#[napi]
pub fn cold_cancel(id: u32, request: u32) -> napi::Result<()> {
    run(|| {
        STORES.get(id)?.cancel(request);
        Ok(())
    })
}

/// Returns the bytes moved for a request; null once it has its outcome.
#[napi(ts_return_type = "number | null")]
pub fn cold_progress(id: u32, request: u32) -> napi::Result<Option<f64>> {
    run(|| Ok(STORES.get(id)?.progress(request).map(number)))
}

/// Refusals of one kind.
#[napi(object)]
pub struct ColdRefusals {
    pub name: String,
    pub count: f64,
}

/// Returns how often the store has refused, by kind.
#[napi]
pub fn cold_refusals(id: u32) -> napi::Result<Vec<ColdRefusals>> {
    let one =
        |(name, count): (&str, u64)| ColdRefusals { name: name.to_owned(), count: number(count) };
    run(|| Ok(STORES.get(id)?.refusals().into_iter().map(one).collect()))
}

/// Closes the store's connections once running requests have ended; idempotent.
#[napi]
pub fn cold_close(id: u32) -> napi::Result<()> {
    run(|| {
        STORES.remove(id);
        Ok(())
    })
}
