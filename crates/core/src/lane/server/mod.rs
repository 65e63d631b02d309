//! Owns a vault's end of the lanes: admission, sessions, and the end of all of them.

mod counts;
mod fetching;
mod found;
mod kept;
mod lookups;
mod reading;
mod requests;
mod session;
mod spans;
mod standing;
mod storing;
mod tokens;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use counts::Counts;
pub use spans::{Asked, Span};
pub use tokens::{Right, Token};

use self::kept::Pool;
use self::reading::{Ahead, Crew, TIERS};
use self::session::Session;
use self::spans::{OpenSpan, Spans};
use self::tokens::Tokens;
use super::frame::{ERROR_TEXT_BYTES_MAX, Frame, Kind};
use super::stream::Stream;
use super::tls;
use super::wire::{Alive, Reader, Timing, WriteBatch};
use crate::error::{Error, Result};
use crate::limits::{LANE_CONNECTIONS_MAX, LANE_KEPT_BYTES_MAX, RAIL_SOCKET_BYTES};
use crate::store::{SlowTier, Store};

/// Options of a lane server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest record the store takes.
    pub max_record_bytes: u64,
    /// Record bytes that open offers of all clients may reserve.
    pub max_reserved_bytes: u64,
    /// Memory that requests of all sessions share besides records, beyond each session's own reserve.
    pub max_kept_bytes: usize,
    /// Most open lanes.
    pub connections_max: usize,
    /// Our certificate and the trusted clients; `None` for lanes in clear.
    pub tls: Option<tls::Server>,
    /// Time limits.
    pub timing: Timing,
    /// Whether requests with a trace context become spans.
    pub traces: bool,
}

impl Options {
    /// Options with the limits of `limits.rs`.
    #[must_use]
    pub fn new(max_record_bytes: u64, max_reserved_bytes: u64) -> Self {
        Self {
            max_record_bytes,
            max_reserved_bytes,
            max_kept_bytes: LANE_KEPT_BYTES_MAX,
            connections_max: LANE_CONNECTIONS_MAX,
            tls: None,
            timing: Timing::default(),
            traces: false,
        }
    }
}

/// State of a lane server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Connections open.
    pub lanes: usize,
    /// Sessions open.
    pub sessions: usize,
    /// Open fetches and stores.
    pub requests: usize,
    /// Lanes that still send what they took of requests, open or not.
    pub sending: usize,
    /// Counters by name.
    pub counts: Vec<(&'static str, u64)>,
}

struct Inner {
    store: Arc<Store>,
    pool: Arc<Pool>,
    /// Bytes read ahead from slow tiers, and the threads that read, by tier.
    ahead: Arc<Ahead>,
    crews: [Arc<Crew>; TIERS],
    options: Options,
    tokens: Mutex<Tokens>,
    sessions: Mutex<Vec<Weak<Session>>>,
    connections: AtomicUsize,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    counts: Counts,
    spans: Option<Arc<Spans>>,
}

impl Inner {
    /// Begins the span of a request that is part of a trace, if spans are collected.
    fn span(&self, asked: Asked, body: &[u8], records: usize) -> Option<OpenSpan> {
        self.spans.as_ref()?.begin(asked, body, records)
    }
}

/// A connection that the listener accepted; dropped when it ends.
pub trait Admission: Send {
    /// Admits the authenticated connection; false if there is no room for it.
    fn welcome(&self) -> bool;
}

/// A vault's lanes, closed when dropped.
pub struct Server {
    shared: Arc<Inner>,
}

impl Server {
    /// Returns a server for clients that bring an admitted token.
    #[must_use]
    pub fn new(store: Arc<Store>, options: Options) -> Self {
        let spans = options.traces.then(Arc::default);
        let ahead = Arc::new(Ahead::of(&store));
        let crews = [SlowTier::Disk, SlowTier::Archive].map(|tier| Crew::new(tier, &store));
        let shared = Arc::new(Inner {
            store,
            ahead,
            crews,
            pool: Arc::new(Pool::new(options.max_kept_bytes)),
            options,
            tokens: Mutex::default(),
            sessions: Mutex::default(),
            connections: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            counts: Counts::default(),
            spans,
        });
        Self { shared }
    }

    /// Interval at which its streams return from waiting.
    #[must_use]
    pub fn tick(&self) -> Duration {
        self.shared.options.timing.tick
    }

    /// Serves one connection on threads of its own.
    pub fn take(&self, stream: Arc<dyn Stream>, admission: Box<dyn Admission>) {
        let Some(permit) = ConnectionPermit::take(&self.shared) else {
            self.shared.counts.add("lanes_refused", 1);
            return refuse(&*stream, &self.shared.options.timing, "too many lanes are open");
        };
        let streams = Arc::clone(&stream);
        if spawn("tierkv-lane-in", move || serve(&permit, &*admission, &stream)).is_err() {
            streams.shutdown();
        }
    }

    /// Lets `token` open one session, for a short time.
    pub fn admit(&self, token: Token, right: Right) {
        lock(&self.shared.tokens).admit(token, right, self.shared.options.timing.token);
    }

    /// Ends the lanes of an account, and revokes its unused tokens.
    pub fn expel(&self, account: u16) {
        // Both locks are held together, so that a session being opened is found in one of the two.
        let mut tokens = lock(&self.shared.tokens);
        tokens.expel(account);
        let sessions: Vec<_> =
            lock(&self.shared.sessions).iter().filter_map(Weak::upgrade).collect();
        drop(tokens);
        for session in sessions.iter().filter(|session| session.right.account == account) {
            session.close(Error::lane_failed("the credential was revoked"));
        }
    }

    /// Returns the current state.
    #[must_use]
    pub fn status(&self) -> Status {
        let sessions: Vec<_> =
            lock(&self.shared.sessions).iter().filter_map(Weak::upgrade).collect();
        Status {
            lanes: self.shared.connections.load(Ordering::Acquire),
            sessions: sessions.len(),
            requests: sessions.iter().map(|session| session.requests()).sum(),
            sending: sessions.iter().map(|session| session.sending()).sum(),
            counts: self.shared.counts.snapshot(),
        }
    }

    /// Takes the ended spans of traced requests, and the number of spans dropped for lack of room.
    #[must_use]
    pub fn take_spans(&self) -> (Vec<Span>, u64) {
        self.shared.spans.as_ref().map_or_else(Default::default, |spans| spans.take())
    }

    /// Refuses new requests from now on; open ones continue.
    pub fn drain(&self) {
        self.shared.is_draining.store(true, Ordering::Release);
    }

    /// Ends every lane; idempotent. The threads end soon after.
    pub fn close(&self) {
        self.drain();
        self.shared.is_closing.store(true, Ordering::Release);
        // A token that waits for more lanes keeps its session, and that keeps what has the token.
        let tokens = std::mem::take(&mut *lock(&self.shared.tokens));
        drop(tokens);
        for session in lock(&self.shared.sessions).iter().filter_map(Weak::upgrade) {
            session.close(Error::lane_failed("the vault stops"));
        }
        for crew in &self.shared.crews {
            crew.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread whose panic ends only itself.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(|error| Error::lane_failed(format!("starting a thread: {error}")))
}

/// One connection, counted while it lives.
struct ConnectionPermit(Arc<Inner>);

impl ConnectionPermit {
    fn take(shared: &Arc<Inner>) -> Option<Self> {
        let permit = Self(Arc::clone(shared));
        let others = shared.connections.fetch_add(1, Ordering::AcqRel);
        (others < shared.options.connections_max).then_some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Sends the reason, as far as the peer takes it at once, and ends the connection.
fn refuse(stream: &dyn Stream, timing: &Timing, text: &str) {
    struct AtOnce;
    impl Alive for AtOnce {
        fn tick(&self) -> Result<()> {
            Err(Error::lane_failed("refused"))
        }
    }
    let mut batch = WriteBatch::default();
    batch.push_owned(error_frame(0), error_text(text));
    // The peer sees the end, whether or not the reason arrives.
    let _ = batch.send(stream, timing.tick, &AtOnce);
    stream.shutdown();
}

fn error_frame(request: u32) -> Frame {
    Frame::new(Kind::Error, request)
}

fn error_text(text: &str) -> Vec<u8> {
    let mut end = text.len().min(ERROR_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes()[..end].to_vec()
}

/// Serves one connection: TLS handshake, hello, then frames until the session ends.
fn serve(permit: &ConnectionPermit, admission: &dyn Admission, stream: &Arc<dyn Stream>) {
    let shared = &permit.0;
    let refused = |stream: &dyn Stream, error: &Error| {
        shared.counts.add("lanes_refused", 1);
        refuse(stream, &shared.options.timing, &error.text);
    };
    let secured = match secure(shared, stream) {
        Ok(secured) => secured,
        // A peer without TLS reads the reason; one with TLS got an alert.
        Err(error) => {
            shared.counts.add("tls_refused", 1);
            return refused(&**stream, &error);
        }
    };
    match handshake(shared, &secured, admission) {
        Ok((session, behind)) => session.serve(&secured, behind),
        Err(error) => refused(&*secured, &error),
    }
}

fn secure(shared: &Inner, stream: &Arc<dyn Stream>) -> Result<Arc<dyn Stream>> {
    let stream = Arc::clone(stream);
    let Some(tls) = &shared.options.tls else { return Ok(stream) };
    let handshake = Handshake { shared, until: Instant::now() + shared.options.timing.hello };
    tls.accept(stream, handshake.until, &handshake)
}

/// Deadline for the hello of a new lane.
struct Handshake<'a> {
    shared: &'a Inner,
    until: Instant,
}

impl Alive for Handshake<'_> {
    fn tick(&self) -> Result<()> {
        if self.shared.is_closing.load(Ordering::Acquire) {
            return Err(Error::lane_failed("the vault stops"));
        }
        if Instant::now() > self.until {
            return Err(Error::lane_failed("no hello came in time"));
        }
        Ok(())
    }
}

/// A descriptor of the store's memory for a client that lends its own, if it is a process of our user on this machine.
fn lent_to(shared: &Inner, hello: &Frame, stream: &dyn Stream) -> Option<OwnedFd> {
    let is_lent = hello.record_bytes == 1 && stream.is_own_user();
    let lent = is_lent.then(|| shared.store.lendable()?.for_readers().ok()).flatten();
    shared.counts.add("lanes_lent", lent.is_some().into());
    lent
}

/// Returns the lane's session and the number of lanes behind it. A welcomed client no longer counts as waiting at the listener.
fn handshake(
    shared: &Arc<Inner>,
    stream: &Arc<dyn Stream>,
    admission: &dyn Admission,
) -> Result<(Arc<Session>, u16)> {
    let timing = &shared.options.timing;
    let mut reader = Reader::new(Arc::clone(stream), timing.hello);
    let handshake = Handshake { shared, until: Instant::now() + timing.hello };
    let (hello, lent) = reader.first_frame(&handshake)?;
    if hello.kind != Kind::Hello {
        return Err(Error::lane_failed(format!("the first frame is {:?}, not Hello", hello.kind)));
    }
    let token: Token = reader
        .body(&hello, &handshake)?
        .try_into()
        .map_err(|_| Error::lane_failed("a token of another length"))?;
    let session = lock(&shared.tokens).take(&token, (hello.item, hello.code), |right| {
        let session = Session::new(Arc::clone(shared), right);
        let mut sessions = lock(&shared.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        session
    })?;
    let number = u16::try_from(hello.item).unwrap_or(u16::MAX);
    let behind = hello.code.saturating_sub(number).saturating_sub(1);
    session.join(stream, behind)?;
    if hello.offset > 1 {
        stream.limit_unsent(RAIL_SOCKET_BYTES);
    }
    if !admission.welcome() {
        let full = Error::lane_failed("too many lanes are open");
        session.close(full.clone());
        return Err(full);
    }
    let code = lent.is_some_and(|lent| session.borrow(&**stream, &lent)).into();
    let welcome = Frame { item: hello.item, code, ..Frame::new(Kind::Welcome, 0) };
    let welcomed = if let Some(fd) = lent_to(shared, &hello, &**stream) {
        session.lends.store(true, Ordering::Release);
        let welcome = Frame { record_bytes: 1, ..welcome };
        WriteBatch::send_with(&**stream, (welcome, &[]), fd.as_fd(), timing.hello, &handshake)
    } else {
        let mut batch = WriteBatch::default();
        batch.push(welcome, None);
        batch.send(&**stream, timing.hello, &handshake).map(|()| true)
    };
    // The session ends, because its other lanes would leave this lane's share unsent.
    welcomed.inspect_err(|error| session.close(error.clone()))?;
    Ok((session, behind))
}
