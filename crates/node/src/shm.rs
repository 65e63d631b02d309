//! Owns the bindings over a shared region: requests by descriptor, one call into JavaScript for each outcome.

use std::path::Path;
use std::sync::Arc;

use napi::bindgen_prelude::{AsyncTask, Buffer, FnArgs, Function};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::key::RecordKey;
use tierkv_core::limits::SHM_CHUNK_BYTES;
use tierkv_shm::desk::{Answer, Desk, Outcome, Work};
use tierkv_shm::doctor::{Report, Way, answer, ask};
use tierkv_shm::file::group_id;
use tierkv_shm::flushes::{Label, News, Scope};
use tierkv_shm::opening::Options;
use tierkv_shm::visibility::Coherence;

use crate::ffi::{count, hash, number, run};
use crate::ids::Ids;
use crate::lane_client::{kept, keys, outgoing, targets};
use crate::store_disk::Background;

static REGIONS: Ids<Arc<Desk>> = Ids::new("shared region");

/// Request, its error or null, its data (statuses, a bitmap or flushes), and numbers: the last flush first.
type Told = FnArgs<(u32, Option<String>, Buffer, Vec<f64>)>;

struct Event(u32, Outcome);

impl Event {
    fn told(self) -> Told {
        let Self(request, outcome) = self;
        let (error, data, numbers) = match outcome {
            Err(error) => (Some(error.to_string()), Vec::new(), Vec::new()),
            Ok((answer, flush)) => {
                let (error, data, mut numbers) = parts(answer);
                numbers.insert(0, flush);
                (error, data, numbers)
            }
        };
        let numbers = numbers.into_iter().map(number).collect();
        (request, error, data.into(), numbers).into()
    }
}

fn parts(answer: Answer) -> (Option<String>, Vec<u8>, Vec<u64>) {
    match answer {
        Answer::Found(bitmap) => (None, bitmap, Vec::new()),
        Answer::Done(statuses, bytes, reason) => {
            (reason.map(|reason| Error::bad_record(reason).to_string()), statuses, vec![bytes])
        }
        Answer::Flushed(records, bytes) => (None, Vec::new(), vec![records, bytes]),
        Answer::News(News { flushes, .. }) => {
            let is_whole = u64::from(flushes.is_some());
            let flushes = flushes.unwrap_or_default();
            (None, flushes.iter().flat_map(packed_flush).collect(), vec![is_whole])
        }
        Answer::Fill(fill) => {
            let numbers = [fill.records, fill.used_bytes, fill.max_bytes, fill.evicted];
            (None, Vec::new(), [&numbers[..], &[fill.members]].concat())
        }
    }
}

/// Packs a flush: number and tenant (8 bytes each, little-endian), class, whether there is a namespace, and the namespace.
fn packed_flush((number, scope): &(u64, Scope)) -> Vec<u8> {
    let mut packed = Vec::new();
    packed.extend_from_slice(&number.to_le_bytes());
    packed.extend_from_slice(&scope.tenant.unwrap_or_default().to_le_bytes());
    packed.push(scope.record_class.unwrap_or_default());
    packed.push(u8::from(scope.namespace.is_some()));
    packed.extend_from_slice(&scope.namespace.unwrap_or_default());
    packed
}

/// An opened region.
#[napi(object)]
pub struct ShmInfo {
    pub id: u32,
    /// Identity of the region; a new file has another one.
    pub epoch: f64,
    /// Number of the last flush; 0: none.
    pub flush: f64,
    /// How the caches are kept coherent: `hardware`, or `clflush`.
    pub coherence: String,
}

/// Opens and joins the region in that file. A missing region is made with at most `max_bytes` (0: it is not made). With `must_fit` a
/// region of another size is refused. `coherence`: "hardware" or "clflush". `host`: number of this host among those that map the
/// region, or null. `group`: group whose users may map it, by name or number, or null.
/// `onOutcome(request, error, data, numbers)` is called once per request; `numbers[0]` is the region's last flush. `data` holds the
/// items' `ItemStatus` numbers (`numbers[1]`: bytes moved), or the bitmap of a look-up. An error `BAD_RECORD: text` beside them says
/// why a record was refused.
#[napi(
    ts_args_type = "path: string, maxBytes: number, mustFit: boolean, coherence: string, host: number | null, group: string | null, onOutcome: (request: number, error: string | null, data: Buffer, numbers: number[]) => void",
    ts_return_type = "Promise<ShmInfo>"
)]
pub fn shm_open(
    path: String,
    max_bytes: f64,
    must_fit: bool,
    coherence: String,
    host: Option<u32>,
    group: Option<String>,
    on_outcome: Function<'_, Told, ()>,
) -> napi::Result<AsyncTask<Background<ShmInfo, ShmInfo>>> {
    let tell: ThreadsafeFunction<Event, (), Told, napi::Status, false, true> = on_outcome
        .build_threadsafe_function::<Event>()
        .weak::<true>()
        .build_callback(|context: ThreadsafeCallContext<Event>| Ok(context.value.told()))?;
    // Runs on a thread of its own, because it reads the whole index, and waits for the lock and for memory.
    Ok(Background::start(move || {
        let sink = move |request, outcome| {
            // A failed call means that JavaScript has ended, so no caller waits.
            tell.call(Event(request, outcome), ThreadsafeFunctionCallMode::NonBlocking);
        };
        let max_bytes = count("maxBytes", max_bytes)?;
        let coherence = Coherence::named(&coherence).ok_or_else(|| {
            Error::bad_argument(format!("coherence {coherence}: it is hardware or clflush"))
        })?;
        let group = group.as_deref().map(group_id).transpose()?;
        let (chunk_bytes, host) = (SHM_CHUNK_BYTES, host.map(u64::from));
        let options = Options { max_bytes, chunk_bytes, coherence, address: 0, host, group };
        let desk = Desk::open(Path::new(&path), &options, must_fit, Arc::new(sink))?;
        let (epoch, flush) = (number(desk.epoch()), number(desk.joined_at_flush()));
        let coherence = desk.coherence().name().to_owned();
        Ok(ShmInfo { id: REGIONS.insert(Arc::new(desk))?, epoch, flush, coherence })
    }))
}

/// Throws where this machine has no group of that name or number.
///
/// # Errors
/// `BAD_ARGUMENT` naming the key, the group and what to write.
#[napi]
pub fn shm_check_group(name: String) -> napi::Result<()> {
    run(|| group_id(&name).map(drop))
}

fn begin(id: u32, work: impl FnOnce() -> Result<Work>) -> napi::Result<u32> {
    run(|| REGIONS.get(id)?.begin(work()?))
}

/// Asks which of the packed keys the region holds; returns the request's number.
#[napi]
pub fn shm_lookup(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<u32> {
    begin(id, || Ok(Work::LookUp(hash("namespace", namespace)?, keys(packed)?.to_vec())))
}

/// Result of a look-up.
#[napi(object)]
pub struct ShmFound {
    /// Bitmap over the keys.
    pub found: Buffer,
    /// Number of the region's last flush.
    pub flush: f64,
}

/// Looks up at once if the region's lock is free; null: ask by `shmLookup`.
#[napi]
pub fn shm_lookup_now(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<Option<ShmFound>> {
    run(|| {
        let found = REGIONS.get(id)?.look_up_now(hash("namespace", namespace)?, keys(packed)?);
        Ok(found.map(|(found, flush)| ShmFound { found: found.into(), flush: number(flush) }))
    })
}

/// Fetches records into leased slots, verified and decoded, as `lanesFetch`.
#[napi]
pub fn shm_fetch(
    id: u32,
    arena_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
) -> napi::Result<u32> {
    begin(id, || {
        Ok(Work::Fetch(targets(arena_id, fidelity, namespace, packed, geometries, leases)?))
    })
}

/// Fetches records into the outbox, verified and still encoded, as `lanesTake`.
#[napi]
pub fn shm_take(id: u32, namespace: &[u8], packed: &[u8], records: Vec<u32>) -> napi::Result<u32> {
    begin(id, || Ok(Work::Take(kept(namespace, packed, records)?)))
}

/// Stores records of the outbox, all of one class, as `lanesStore`.
#[napi]
pub fn shm_store(
    id: u32,
    record_class: u8,
    namespace: &[u8],
    packed: &[u8],
    records: &[u32],
    tenant: f64,
    known: f64,
) -> napi::Result<u32> {
    begin(id, || {
        let (tenant, known) = (count("tenant", tenant)?, count("known", known)?);
        let label = Label { record_class, tenant, known };
        Ok(Work::Store(label, hash("namespace", namespace)?, outgoing(packed, records)?))
    })
}

/// Verifies records that a reader could not use, and removes damaged ones (status 10, quarantined).
#[napi]
pub fn shm_check(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<u32> {
    begin(id, || {
        let namespace = hash("namespace", namespace)?;
        let keys = keys(packed)?.iter().map(|packed| RecordKey::from_packed(namespace, packed));
        Ok(Work::Check(keys.collect()))
    })
}

/// Stores the digest of the model that a namespace belongs to.
#[napi]
pub fn shm_name(id: u32, namespace: &[u8], model: &[u8]) -> napi::Result<u32> {
    begin(id, || Ok(Work::Name(hash("namespace", namespace)?, hash("model", model)?)))
}

/// Removes the records of a scope (absent: all; class 0: both; tenant 0: all; `model`: its namespaces). `numbers` are the flush, records and bytes.
#[napi]
pub fn shm_flush(
    id: u32,
    namespace: Option<&[u8]>,
    record_class: u8,
    tenant: f64,
    model: Option<&[u8]>,
) -> napi::Result<u32> {
    begin(id, || {
        let tenant = count("tenant", tenant)?;
        let scope = Scope {
            namespace: namespace.map(|namespace| hash("namespace", namespace)).transpose()?,
            record_class: (record_class != 0).then_some(record_class),
            tenant: (tenant != 0).then_some(tenant),
        };
        Ok(Work::Flush(scope, model.map(|model| hash("model", model)).transpose()?))
    })
}

/// Returns the flushes after `known`, and frees what dead processes held. `numbers[1]` is 0 if some are not remembered. `data` has 50
/// bytes for each: number and tenant (8 bytes each), class, whether there is a namespace, and the namespace (32).
#[napi]
pub fn shm_news(id: u32, known: f64) -> napi::Result<u32> {
    begin(id, || Ok(Work::News(count("known", known)?)))
}

/// Asks for the fill: `numbers` are the last flush, records, bytes used, bytes at most, evicted records, joined processes.
#[napi]
pub fn shm_fill(id: u32) -> napi::Result<u32> {
    begin(id, || Ok(Work::Fill))
}

/// Cancels a request: none of its remaining items is begun.
#[napi]
pub fn shm_cancel(id: u32, request: u32) -> napi::Result<()> {
    run(|| {
        REGIONS.get(id)?.cancel(request);
        Ok(())
    })
}

/// Returns the bytes moved for a request; null once it has its outcome.
#[napi(ts_return_type = "number | null")]
pub fn shm_progress(id: u32, request: u32) -> napi::Result<Option<f64>> {
    run(|| Ok(REGIONS.get(id)?.progress(request).map(number)))
}

/// Leaves the region after running requests have ended; idempotent.
#[napi]
pub fn shm_close(id: u32) -> napi::Result<()> {
    run(|| {
        REGIONS.remove(id);
        Ok(())
    })
}

/// Measurements of one way to keep caches coherent.
#[napi(object)]
pub struct ShmWay {
    pub in_per_s: f64,
    pub out_per_s: f64,
    /// Rounds that the other process did not see in time; `wrong`: rounds that it read differently than published.
    pub unseen: f64,
    pub wrong: f64,
    /// Round trip, p50 and p99 in ns; 0: not measured.
    pub trip_ns: Vec<f64>,
}

impl From<Way> for ShmWay {
    fn from(Way { in_per_s, out_per_s, unseen, wrong, trip_ns }: Way) -> Self {
        let (unseen, wrong) = (number(unseen), number(wrong));
        Self { in_per_s, out_per_s, unseen, wrong, trip_ns: trip_ns.to_vec() }
    }
}

/// Measurements of a memory by two processes.
#[napi(object)]
pub struct ShmReport {
    pub is_same_host: bool,
    /// NUMA node; absent if the system does not tell.
    pub node: Option<f64>,
    pub write_back: String,
    pub load_ns: f64,
    /// Latency of this host's own memory in ns; 0: not measured.
    pub own_load_ns: f64,
    pub rounds: f64,
    pub hardware: ShmWay,
    pub clflush: Option<ShmWay>,
    /// Time of the lock, p50 and p99 in ns; absent between hosts.
    pub lock_ns: Option<Vec<f64>>,
}

impl From<Report> for ShmReport {
    fn from(report: Report) -> Self {
        Self {
            is_same_host: report.is_same_host,
            node: report.node.map(number),
            write_back: report.write_back.to_owned(),
            load_ns: report.load_ns,
            own_load_ns: report.own_load_ns,
            rounds: number(report.rounds),
            hardware: report.hardware.into(),
            clflush: report.clflush.map(ShmWay::from),
            lock_ns: report.lock_ns.map(Vec::from),
        }
    }
}

/// Measures the memory of a file that another process made with `shmAnswer`.
#[napi(ts_return_type = "Promise<ShmReport>")]
pub fn shm_ask(path: String) -> AsyncTask<Background<Report, ShmReport>> {
    Background::start(move || ask(Path::new(&path)))
}

/// Makes the file, and answers the process that measures it.
#[napi(ts_return_type = "Promise<void>")]
pub fn shm_answer(path: String) -> AsyncTask<Background<(), ()>> {
    Background::start(move || answer(Path::new(&path)))
}
