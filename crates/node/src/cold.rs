//! Owns the bindings over a store that others run: requests by descriptor, one call into JavaScript for each outcome.

use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::{Buffer, FnArgs, Function};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi_derive::napi;
use tierkv_cold::Settings;
use tierkv_cold::desk::{Answer, Desk, Work};
use tierkv_cold::goal::Goal;
use tierkv_cold::store::{Asker, Flushed, NodeFacts, Scope};
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
            Ok(Answer::Flushed(flushed)) => (None, text_of_flushed(&flushed), 0),
            Ok(Answer::Nodes(nodes)) => (None, text_of_nodes(&nodes), 0),
            Ok(Answer::Done(statuses, bytes, reason)) => {
                (reason.map(|reason| Error::bad_record(reason).to_string()), statuses, bytes)
            }
        };
        (request, error, data.into(), vec![number(bytes)]).into()
    }
}

/// How a deployment uses a store; all of it concerns Valkey.
#[napi(object)]
pub struct ColdSettings {
    /// Number of the class of all records.
    pub class: u8,
    /// Time to live of a record in s.
    pub ttl_s: Option<u32>,
    /// Before all keys; left out: tierkv.
    pub prefix: Option<String>,
    /// Whether replicas are read.
    pub reads_replicas: Option<bool>,
    /// User of the access list; left out: `VALKEY_USERNAME`.
    pub user: Option<String>,
    /// Left out: `VALKEY_PASSWORD`.
    pub password: Option<String>,
    /// Certificates of the authorities of `valkeys://`, as PEM; left out: the system's.
    pub ca_pem: Option<Buffer>,
    /// Certificate of this client and its key, as PEM.
    pub cert_pem: Option<Buffer>,
    /// Key of `certPem`.
    pub key_pem: Option<Buffer>,
}

/// Opens the store of an address, `valkey://...`, `valkeys://...` or `s3://...`, with credentials from the settings or the environment;
/// connects to nothing yet. `onOutcome(request, error, data, numbers)` is called once per request: `data` holds the items' `ItemStatus`
/// numbers, a look-up's bitmap, or the JSON of a flush or of nodes; `numbers[0]` the bytes moved. An error `BAD_RECORD: text` beside them
/// says why a record was refused.
#[napi(
    ts_args_type = "address: string, settings: ColdSettings, onOutcome: (request: number, error: string | null, data: Buffer, numbers: number[]) => void"
)]
pub fn cold_open(
    address: String,
    settings: ColdSettings,
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
        let bytes = |buffer: Buffer| buffer.to_vec();
        let settings = Settings {
            class: settings.class,
            ttl_s: settings.ttl_s.map(u64::from),
            prefix: settings.prefix.unwrap_or_default(),
            reads_replicas: settings.reads_replicas.unwrap_or_default(),
            user: settings.user,
            password: settings.password,
            ca_pem: settings.ca_pem.map(bytes),
            identity: settings.cert_pem.map(bytes).zip(settings.key_pem.map(bytes)),
        };
        let store = tierkv_cold::open(&address, settings, vars)?;
        STORES.insert(Arc::new(Desk::open(store, Arc::new(sink))?))
    })
}

fn begin(
    id: u32,
    deadline_ms: f64,
    asker: Asker,
    work: impl FnOnce() -> Result<Work>,
) -> napi::Result<u32> {
    run(|| {
        let within = Duration::from_millis(count("deadlineMs", deadline_ms.ceil())?);
        STORES.get(id)?.begin(work()?, within, asker)
    })
}

fn of_tenant(tenant: f64) -> napi::Result<Asker> {
    run(|| Ok(Asker { tenant: count("tenant", tenant)?, flushed: None }))
}

/// Asks which of the packed keys the store has; returns the request's number.
#[napi]
pub fn cold_lookup(
    id: u32,
    deadline_ms: f64,
    tenant: f64,
    namespace: &[u8],
    packed: &[u8],
) -> napi::Result<u32> {
    begin(id, deadline_ms, of_tenant(tenant)?, || {
        Ok(Work::LookUp(hash("namespace", namespace)?, keys(packed)?.to_vec()))
    })
}

/// Where fetched records go, and for whom.
#[napi(object)]
pub struct ColdWindow {
    /// Id of the arena.
    pub arena: u32,
    /// Number of the fidelity class.
    pub fidelity: u8,
    /// Tenant of all records.
    pub tenant: f64,
}

/// Fetches records into leased slots, verified and decoded, as `lanesFetch`.
#[napi]
pub fn cold_fetch(
    id: u32,
    deadline_ms: f64,
    window: ColdWindow,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
) -> napi::Result<u32> {
    let ColdWindow { arena, fidelity, tenant } = window;
    begin(id, deadline_ms, of_tenant(tenant)?, || {
        let targets = targets(arena, fidelity, namespace, packed, geometries, leases)?;
        Ok(Work::Fetch(Goal::Slots(targets)))
    })
}

/// Fetches records into the outbox, verified and still encoded, as `lanesTake`.
#[napi]
pub fn cold_take(
    id: u32,
    deadline_ms: f64,
    tenant: f64,
    namespace: &[u8],
    packed: &[u8],
    records: Vec<u32>,
) -> napi::Result<u32> {
    begin(id, deadline_ms, of_tenant(tenant)?, || {
        Ok(Work::Fetch(Goal::Memory(kept(namespace, packed, records)?)))
    })
}

/// Stores records of the outbox that are not there yet. `flushed`: number of the last flush that was known when they were made, or null.
#[napi]
pub fn cold_store(
    id: u32,
    deadline_ms: f64,
    tenant: f64,
    flushed: Option<f64>,
    namespace: &[u8],
    packed: &[u8],
    records: &[u32],
) -> napi::Result<u32> {
    let flushed = run(|| flushed.map(|number| count("flushed", number)).transpose())?;
    begin(id, deadline_ms, Asker { flushed, ..of_tenant(tenant)? }, || {
        Ok(Work::Store(hash("namespace", namespace)?, outgoing(packed, records)?))
    })
}

/// Fetches records that a reader could not use, and removes damaged ones (status 10, quarantined).
#[napi]
pub fn cold_check(
    id: u32,
    deadline_ms: f64,
    tenant: f64,
    namespace: &[u8],
    packed: &[u8],
) -> napi::Result<u32> {
    begin(id, deadline_ms, of_tenant(tenant)?, || {
        let (namespace, keys) = (hash("namespace", namespace)?, keys(packed)?.to_vec());
        let inbox = Arc::clone(&INBOX);
        Ok(Work::Check(Kept { namespace, keys, inbox, keep: Box::new(|_, _| {}) }))
    })
}

/// Asks whether the store answers, and learns flushes.
#[napi]
pub fn cold_ping(id: u32, deadline_ms: f64) -> napi::Result<u32> {
    begin(id, deadline_ms, Asker::default(), || Ok(Work::Ping))
}

/// Records that a flush takes; what is left out takes all.
#[napi(object)]
pub struct ColdScope {
    /// Number of the class; 0: both.
    pub class: u8,
    pub namespace: Option<Buffer>,
    pub model: Option<String>,
    /// 0: all.
    pub tenant: f64,
}

/// Puts records out of reach for all clients. The outcome's data is JSON: `isUnknown`, `models`, `copies`, `isEverything`,
/// `removed`, `isLeft`.
#[napi]
pub fn cold_flush(id: u32, deadline_ms: f64, scope: ColdScope) -> napi::Result<u32> {
    begin(id, deadline_ms, Asker::default(), || {
        let namespace = scope.namespace.map(|bytes| hash("namespace", &bytes)).transpose()?;
        let tenant = count("tenant", scope.tenant)?;
        Ok(Work::Flush(Scope { class: scope.class, namespace, model: scope.model, tenant }))
    })
}

/// Names a namespace's model.
#[napi]
pub fn cold_name(id: u32, deadline_ms: f64, namespace: &[u8], model: String) -> napi::Result<u32> {
    begin(id, deadline_ms, Asker::default(), || {
        Ok(Work::Name(hash("namespace", namespace)?, model))
    })
}

/// Notes a namespace's model, without a request.
#[napi]
pub fn cold_learn_model(id: u32, namespace: &[u8], model: String) -> napi::Result<()> {
    run(|| {
        STORES.get(id)?.learn_model(&hash("namespace", namespace)?, &model);
        Ok(())
    })
}

/// Asks the nodes for their memory. The outcome's data is JSON: a list of `address`, `usedBytes`, `maxBytes`, `policy`, `keys`,
/// `expiring` and `trouble`.
#[napi]
pub fn cold_nodes(id: u32, deadline_ms: f64) -> napi::Result<u32> {
    begin(id, deadline_ms, Asker::default(), || Ok(Work::Nodes))
}

/// Flushes since the first contact.
#[napi(object)]
pub struct ColdNews {
    /// Their number so far.
    pub number: f64,
    /// Flushes after the number asked for.
    pub scopes: Vec<ColdScope>,
}

/// Returns the flushes that the client has learnt after the first `known`.
#[napi]
pub fn cold_news(id: u32, known: f64) -> napi::Result<ColdNews> {
    run(|| {
        let (count, scopes) = STORES.get(id)?.news(count("known", known)?);
        let scopes =
            scopes.into_iter().map(|Scope { class, namespace, model, tenant }| ColdScope {
                class,
                namespace: namespace.map(|bytes| bytes.to_vec().into()),
                model,
                tenant: number(tenant),
            });
        Ok(ColdNews { number: number(count), scopes: scopes.collect() })
    })
}

fn text_of_flushed(flushed: &Flushed) -> Vec<u8> {
    let Flushed { is_unknown, models, copies: (taken, all), is_everything, removed, is_left } =
        flushed;
    let models: Vec<_> = models.iter().map(|model| quoted(model)).collect();
    let models = models.join(",");
    format!(
        "{{\"isUnknown\":{is_unknown},\"models\":[{models}],\"copies\":[{taken},{all}],\"isEverything\":{is_everything},\"removed\":{removed},\"isLeft\":{is_left}}}"
    )
    .into_bytes()
}

fn text_of_nodes(nodes: &[NodeFacts]) -> Vec<u8> {
    let one = |node: &NodeFacts| {
        let NodeFacts { address, used_bytes, max_bytes, policy, keys, expiring, trouble } = node;
        let [address, policy, trouble] = [address, policy, trouble].map(|text| quoted(text));
        format!(
            "{{\"address\":{address},\"usedBytes\":{used_bytes},\"maxBytes\":{max_bytes},\"policy\":{policy},\"keys\":{keys},\"expiring\":{expiring},\"trouble\":{trouble}}}"
        )
    };
    format!("[{}]", nodes.iter().map(one).collect::<Vec<_>>().join(",")).into_bytes()
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            // Control letters of a server's words say nothing.
            _ if letter < ' ' => out.push(' '),
            _ => out.push(letter),
        }
    }
    out.push('"');
    out
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

/// A count of one kind.
#[napi(object)]
pub struct ColdCount {
    pub name: String,
    pub count: f64,
}

fn counts(all: Vec<(&'static str, u64)>) -> Vec<ColdCount> {
    let one =
        |(name, count): (&str, u64)| ColdCount { name: name.to_owned(), count: number(count) };
    all.into_iter().map(one).collect()
}

/// Returns how often the store has refused, by kind.
#[napi]
pub fn cold_refusals(id: u32) -> napi::Result<Vec<ColdCount>> {
    run(|| Ok(counts(STORES.get(id)?.refusals())))
}

/// Returns what the requests to a bucket cost: `reads`, `writes`, `read_bytes`, `written_bytes`; nothing of other stores.
#[napi]
pub fn cold_spent(id: u32) -> napi::Result<Vec<ColdCount>> {
    run(|| Ok(counts(STORES.get(id)?.spent())))
}

/// Closes the store's connections once running requests have ended; idempotent.
#[napi]
pub fn cold_close(id: u32) -> napi::Result<()> {
    run(|| {
        STORES.remove(id);
        Ok(())
    })
}
