//! Owns the bindings of a vault's listener: lanes stay in Rust, gRPC connections go to JavaScript as descriptors.

use std::collections::HashMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use napi::Status;
use napi::bindgen_prelude::{Buffer, FnArgs, Function};
use napi::threadsafe_function::{
    ThreadsafeCallContext, ThreadsafeFunction, ThreadsafeFunctionCallMode,
};
use napi_derive::napi;
use tierkv_core::error::Error;
use tierkv_core::lane::frame::TOKEN_BYTES;
use tierkv_core::lane::server::{Asked, Options, Right, Server, Span};
use tierkv_core::listener::{self, ConnectionId, ConnectionLimits, GrpcHandler, Listener, Socket};

use crate::ffi::{account_of, count, number, run, size};
use crate::ids::Ids;
use crate::lane_tls::LaneServerTls;
use crate::store::STORES;

static LISTENERS: Ids<Arc<Vault>> = Ids::new("listener");

/// Most connections in transit to JavaScript; while it is busy, others wait at the listener.
const PASSING_MAX: usize = 64;
/// Value instead of a descriptor that ends the connection.
const CUT: i32 = -1;

struct Vault {
    listener: Listener,
    lanes: Arc<Server>,
}

/// Options of a vault's listener.
#[napi(object)]
pub struct ListenerOptions {
    /// `host:port` (0: the system chooses) or `unix:/path`.
    pub address: String,
    /// Further addresses, `host:port`.
    pub also: Option<Vec<String>>,
    pub max_record_bytes: f64,
    pub max_reserved_bytes: f64,
    /// Absent: in clear.
    pub tls: Option<LaneServerTls>,
    /// Most admitted connections, in total and per address.
    pub settled_max: u32,
    pub settled_each_max: u32,
    /// Most connections not admitted yet, in total and per address.
    pub waiting_max: u32,
    pub waiting_each_max: u32,
    /// Time after which a connection that is not admitted is ended.
    pub deadline_ms: u32,
    /// Whether requests with a trace context become spans, for `listenerSpans`.
    pub traces: bool,
}

/// An open listener.
#[napi(object)]
pub struct ListenerInfo {
    pub id: u32,
    /// TCP port; absent for a Unix socket.
    pub port: Option<u16>,
}

/// State of a listener and its lanes.
#[napi(object)]
pub struct ListenerStatus {
    pub lanes: f64,
    pub sessions: f64,
    /// Open fetches and stores.
    pub requests: f64,
    /// Lanes that still send what they took of requests, open or not.
    pub sending: f64,
    /// Counters since the start, by name.
    pub counts: HashMap<String, f64>,
}

/// Connection, descriptor.
type Told = FnArgs<(f64, i32)>;

/// A new connection, or the end of one passed before, so that there are never more of these than connections.
struct Passing(ConnectionId, Option<OwnedFd>);

type Tell = ThreadsafeFunction<Passing, (), Told, Status, false>;

struct JavaScript {
    tell: Tell,
    passing: Arc<AtomicUsize>,
}

impl GrpcHandler for JavaScript {
    fn take(&self, connection: ConnectionId, socket: Socket) -> Result<(), Socket> {
        if self.passing.load(Ordering::Acquire) >= PASSING_MAX {
            return Err(socket);
        }
        self.passing.fetch_add(1, Ordering::AcqRel);
        // If JavaScript has gone, the connection is dropped.
        let passing = Passing(connection, Some(socket.into()));
        self.tell.call(passing, ThreadsafeFunctionCallMode::NonBlocking);
        Ok(())
    }

    fn cut(&self, connection: ConnectionId) {
        self.tell.call(Passing(connection, None), ThreadsafeFunctionCallMode::NonBlocking);
    }
}

/// Listens, and serves the store on lanes to clients with a token; in clear without `tls`. `onCall(connection, fd)`
/// receives a gRPC connection, before its TLS handshake if any. The callback must close the descriptor, and call
/// `listenerSettle` and `listenerLeave`. Descriptor -1 ends that connection.
#[napi(
    ts_args_type = "storeId: number, options: ListenerOptions, onCall: (connection: number, fd: number) => void"
)]
pub fn listener_open(
    store_id: u32,
    options: ListenerOptions,
    on_call: Function<'_, Told, ()>,
) -> napi::Result<ListenerInfo> {
    let passing = Arc::new(AtomicUsize::new(0));
    let passed = Arc::clone(&passing);
    let tell: Tell = on_call.build_threadsafe_function::<Passing>().build_callback(
        move |context: ThreadsafeCallContext<Passing>| {
            let Passing(connection, socket) = context.value;
            let Some(socket) = socket else { return Ok((number(connection), CUT).into()) };
            passed.fetch_sub(1, Ordering::AcqRel);
            Ok((number(connection), socket.into_raw_fd()).into())
        },
    )?;
    run(|| {
        let ListenerOptions { address, tls, .. } = &options;
        let max_record_bytes = count("maxRecordBytes", options.max_record_bytes)?;
        let max_reserved_bytes = count("maxReservedBytes", options.max_reserved_bytes)?;
        let tls = tls.as_ref().map(LaneServerTls::build).transpose()?;
        let mut at = listener::Options::new(address, tls.is_some());
        at.also = options.also.clone().unwrap_or_default();
        at.deadline = Duration::from_millis(options.deadline_ms.into());
        at.limits = ConnectionLimits {
            settled: options.settled_max as usize,
            settled_each: options.settled_each_max as usize,
            waiting: options.waiting_max as usize,
            waiting_each: options.waiting_each_max as usize,
            ..at.limits
        };
        let traces = options.traces;
        let served = Options { tls, traces, ..Options::new(max_record_bytes, max_reserved_bytes) };
        let lanes = Arc::new(Server::new(STORES.get(store_id)?, served));
        let listener = Listener::open(
            at,
            Some(Arc::clone(&lanes)),
            Some(Arc::new(JavaScript { tell, passing })),
        )?;
        let port = listener.port();
        Ok(ListenerInfo { id: LISTENERS.insert(Arc::new(Vault { listener, lanes }))?, port })
    })
}

/// Admits the client of a connection; false if there is no room for it.
#[napi]
pub fn listener_settle(id: u32, connection: f64) -> napi::Result<bool> {
    run(|| Ok(LISTENERS.get(id)?.listener.settle(count("connection", connection)?)))
}

/// Removes a connection whose client has gone.
#[napi]
pub fn listener_leave(id: u32, connection: f64) -> napi::Result<()> {
    run(|| {
        LISTENERS.get(id)?.listener.leave(count("connection", connection)?);
        Ok(())
    })
}

/// Lets `token` (32 bytes, unguessable) open one session of lanes, for a short time; without `may_store` only for reading.
/// `account`: account of the credential, below 2^16; 0: none in particular.
#[napi]
pub fn listener_admit(id: u32, token: &[u8], may_store: bool, account: u32) -> napi::Result<()> {
    run(|| {
        let right = Right { may_store, account: account_of(account)? };
        LISTENERS.get(id)?.lanes.admit(token_of(token)?, right);
        Ok(())
    })
}

/// Ends every lane of an account, and revokes its unused tokens.
#[napi]
pub fn listener_expel(id: u32, account: u32) -> napi::Result<()> {
    run(|| {
        LISTENERS.get(id)?.lanes.expel(account_of(account)?);
        Ok(())
    })
}

/// Returns the current state.
#[napi]
pub fn listener_status(id: u32) -> napi::Result<ListenerStatus> {
    run(|| {
        let vault = LISTENERS.get(id)?;
        let status = vault.lanes.status();
        let counts = status.counts.into_iter().chain(vault.listener.counts());
        Ok(ListenerStatus {
            lanes: size(status.lanes),
            sessions: size(status.sessions),
            requests: size(status.requests),
            sending: size(status.sending),
            counts: counts.map(|(name, n)| (name.to_owned(), number(n))).collect(),
        })
    })
}

/// One traced request at the vault.
#[napi(object)]
pub struct LaneSpan {
    /// Trace context, 25 bytes.
    pub context: Buffer,
    /// `lookup`, `fetch` or `store`.
    pub asked: String,
    /// Start in ms since 1970.
    pub begun_ms: f64,
    pub took_ms: f64,
    /// Records requested; records held, sent or stored; and their bytes.
    pub records: u32,
    pub done: u32,
    pub bytes: f64,
}

/// Spans that ended since the last call.
#[napi(object)]
pub struct LaneSpans {
    pub spans: Vec<LaneSpan>,
    /// Spans dropped for lack of room.
    pub dropped: f64,
}

/// Takes the ended spans; the next call returns later ones.
#[napi]
pub fn listener_spans(id: u32) -> napi::Result<LaneSpans> {
    run(|| {
        let (spans, dropped) = LISTENERS.get(id)?.lanes.take_spans();
        let spans = spans.into_iter().map(LaneSpan::from).collect();
        Ok(LaneSpans { spans, dropped: number(dropped) })
    })
}

impl From<Span> for LaneSpan {
    fn from(Span { context, asked, begun, took, records, done, bytes }: Span) -> Self {
        let asked = match asked {
            Asked::Lookup => "lookup",
            Asked::Fetch => "fetch",
            Asked::Store => "store",
        };
        Self {
            context: context.to_vec().into(),
            asked: asked.to_owned(),
            begun_ms: begun.as_secs_f64() * 1e3,
            took_ms: took.as_secs_f64() * 1e3,
            records,
            done,
            bytes: number(bytes),
        }
    }
}

/// Stops accepting, and refuses new requests on lanes; open ones continue.
#[napi]
pub fn listener_drain(id: u32) -> napi::Result<()> {
    run(|| {
        let vault = LISTENERS.get(id)?;
        vault.listener.stop();
        vault.lanes.drain();
        Ok(())
    })
}

/// Ends every lane; idempotent.
#[napi]
pub fn listener_close(id: u32) -> napi::Result<()> {
    run(|| {
        if let Some(vault) = LISTENERS.remove(id) {
            vault.listener.stop();
            vault.lanes.close();
        }
        Ok(())
    })
}

/// Checks the length of a session's token.
pub fn token_of(bytes: &[u8]) -> Result<[u8; TOKEN_BYTES], Error> {
    bytes.try_into().map_err(|_| {
        Error::bad_argument(format!("token has {} bytes: it must have {TOKEN_BYTES}", bytes.len()))
    })
}
