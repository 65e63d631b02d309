//! Owns a vault's end of the lanes: the listener, who may come in, and how all of it ends.

mod counts;
mod fetching;
mod requests;
mod session;
mod storing;
mod tokens;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use counts::Counts;
pub use tokens::Token;

use self::session::Session;
use self::tokens::Tokens;
use super::frame::{ERROR_TEXT_BYTES_MAX, Frame, Kind};
use super::stream::{Listener, Stream};
use super::tls;
use super::wire::{Alive, Reader, Timing, Turn};
use crate::error::{Error, Result};
use crate::limits::{LANE_CONNECTIONS_MAX, LANE_GREETINGS_MAX};
use crate::store::Store;

/// What a lane server is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` (0: the system chooses) or `unix:/path`.
    pub address: String,
    /// Longest record the store takes.
    pub max_record_bytes: u64,
    /// Record bytes that offers of all clients may have reserved.
    pub max_reserved_bytes: u64,
    /// Lanes open at a time.
    pub connections_max: usize,
    /// Those of them that were not welcomed yet.
    pub greetings_max: usize,
    /// Who we are and who may come in; none: in clear.
    pub tls: Option<tls::Server>,
    /// How long anything may take.
    pub timing: Timing,
}

impl Options {
    /// With the limits of `limits.rs`.
    #[must_use]
    pub fn new(address: &str, max_record_bytes: u64, max_reserved_bytes: u64) -> Self {
        Self {
            address: address.to_owned(),
            max_record_bytes,
            max_reserved_bytes,
            connections_max: LANE_CONNECTIONS_MAX,
            greetings_max: LANE_GREETINGS_MAX,
            tls: None,
            timing: Timing::default(),
        }
    }
}

/// How it is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Connections open.
    pub lanes: usize,
    /// Sessions open.
    pub sessions: usize,
    /// Fetches and stores under way.
    pub requests: usize,
    /// Counters by name.
    pub counts: Vec<(&'static str, u64)>,
}

struct Shared {
    store: Arc<Store>,
    options: Options,
    tokens: Mutex<Tokens>,
    sessions: Mutex<Vec<Weak<Session>>>,
    connections: AtomicUsize,
    greetings: AtomicUsize,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    counts: Counts,
}

/// A vault's lanes. Dropped = closed.
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Listens, and serves whoever brings a token that was admitted.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's reason.
    pub fn open(store: Arc<Store>, options: Options) -> Result<Self> {
        let listener = Arc::new(Listener::bind(&options.address)?);
        let shared = Arc::new(Shared {
            store,
            options,
            tokens: Mutex::default(),
            sessions: Mutex::default(),
            connections: AtomicUsize::new(0),
            greetings: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let (accepting, at) = (Arc::clone(&shared), Arc::clone(&listener));
        let accepting = spawn("tierkv-lane-accept", move || accept(&accepting, &at))?;
        Ok(Self { shared, listener, accepting: Mutex::new(Some(accepting)) })
    }

    /// What a client adds to the host it knows: `:port`; or `unix:/path`.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's reason.
    pub fn address(&self) -> Result<String> {
        self.listener.address()
    }

    /// `token` opens one session, soon.
    pub fn admit(&self, token: Token) {
        lock(&self.shared.tokens).admit(token, true, self.shared.options.timing.token);
    }

    /// The same for one that only reads.
    pub fn admit_reader(&self, token: Token) {
        lock(&self.shared.tokens).admit(token, false, self.shared.options.timing.token);
    }

    /// How it is doing now.
    #[must_use]
    pub fn status(&self) -> Status {
        let sessions: Vec<_> =
            lock(&self.shared.sessions).iter().filter_map(Weak::upgrade).collect();
        Status {
            lanes: self.shared.connections.load(Ordering::Acquire),
            sessions: sessions.len(),
            requests: sessions.iter().map(|session| session.requests()).sum(),
            counts: self.shared.counts.snapshot(),
        }
    }

    /// From now on nothing new is begun; what is under way goes on.
    pub fn drain(&self) {
        self.shared.is_draining.store(true, Ordering::Release);
    }

    /// Ends every lane; idempotent. Their threads end soon after.
    pub fn close(&self) {
        self.drain();
        if !self.shared.is_closing.swap(true, Ordering::AcqRel) {
            self.listener.wake();
        }
        if let Some(accepting) = lock(&self.accepting).take() {
            // It has nothing to say, not even that it panicked.
            let _ = accepting.join();
        }
        for session in lock(&self.shared.sessions).iter().filter_map(Weak::upgrade) {
            session.close(Error::lane_failed("the vault stops"));
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

/// A thread that dies of a panic without taking anybody along.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(|error| Error::lane_failed(format!("starting a thread: {error}")))
}

/// One connection, counted while it lives.
struct Seat(Arc<Shared>);

impl Seat {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let seat = Self(Arc::clone(shared));
        let others = shared.connections.fetch_add(1, Ordering::AcqRel);
        (others < shared.options.connections_max).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One connection that was not welcomed yet: strangers take no more than these.
struct Doorstep(Arc<Shared>);

impl Doorstep {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let doorstep = Self(Arc::clone(shared));
        let others = shared.greetings.fetch_add(1, Ordering::AcqRel);
        (others < shared.options.greetings_max).then_some(doorstep)
    }
}

impl Drop for Doorstep {
    fn drop(&mut self) {
        self.0.greetings.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A pause where the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

fn accept(shared: &Arc<Shared>, listener: &Listener) {
    loop {
        let accepted = listener.accept(shared.options.timing.tick);
        if shared.is_closing.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = accepted else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let (Some(seat), Some(doorstep)) = (Seat::take(shared), Doorstep::take(shared)) else {
            shared.counts.add("lanes_refused", 1);
            refuse(&*stream, &shared.options.timing, "too many lanes are open");
            continue;
        };
        let streams = Arc::clone(&stream);
        if spawn("tierkv-lane-in", move || serve(&seat, doorstep, &stream)).is_err() {
            streams.shutdown();
        }
    }
}

/// Says why, as far as the peer takes it at once, and ends the connection.
fn refuse(stream: &dyn Stream, timing: &Timing, text: &str) {
    struct AtOnce;
    impl Alive for AtOnce {
        fn tick(&self) -> Result<()> {
            Err(Error::lane_failed("refused"))
        }
    }
    let mut turn = Turn::default();
    turn.push_owned(error_frame(0), error_text(text));
    // Whether it arrives or not: the peer sees the end.
    let _ = turn.send(stream, timing.tick, &AtOnce);
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

/// The life of one connection: its handshake, hello, then frames until the session ends.
fn serve(seat: &Seat, doorstep: Doorstep, stream: &Arc<dyn Stream>) {
    let shared = &seat.0;
    let refused = |stream: &dyn Stream, error: &Error| {
        shared.counts.add("lanes_refused", 1);
        refuse(stream, &shared.options.timing, &error.text);
    };
    let secured = match secure(shared, stream) {
        Ok(secured) => secured,
        // Whoever speaks no TLS reads why; whoever does was told by an alert.
        Err(error) => {
            shared.counts.add("tls_refused", 1);
            return refused(&**stream, &error);
        }
    };
    match greet(shared, &secured, doorstep) {
        Ok((session, behind)) => session.serve(&secured, behind),
        Err(error) => refused(&*secured, &error),
    }
}

fn secure(shared: &Shared, stream: &Arc<dyn Stream>) -> Result<Arc<dyn Stream>> {
    let stream = Arc::clone(stream);
    let Some(tls) = &shared.options.tls else { return Ok(stream) };
    let greeting = Greeting { shared, until: Instant::now() + shared.options.timing.hello };
    tls.accept(stream, greeting.until, &greeting)
}

/// Until when a new lane must have said hello.
struct Greeting<'a> {
    shared: &'a Shared,
    until: Instant,
}

impl Alive for Greeting<'_> {
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

/// Its session, and how many lanes are behind it. Whoever reads a welcome has left the doorstep to others.
fn greet(
    shared: &Arc<Shared>,
    stream: &Arc<dyn Stream>,
    doorstep: Doorstep,
) -> Result<(Arc<Session>, u16)> {
    let timing = &shared.options.timing;
    let mut reader = Reader::new(Arc::clone(stream), timing.hello);
    let greeting = Greeting { shared, until: Instant::now() + timing.hello };
    let hello = reader.frame(&greeting)?;
    if hello.kind != Kind::Hello {
        return Err(Error::lane_failed(format!("the first frame is {:?}, not Hello", hello.kind)));
    }
    let token: Token = reader
        .body(&hello, &greeting)?
        .try_into()
        .map_err(|_| Error::lane_failed("a token of another length"))?;
    let session = lock(&shared.tokens).take(&token, (hello.item, hello.code), |may_store| {
        let session = Session::new(Arc::clone(shared), may_store);
        let mut sessions = lock(&shared.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        session
    })?;
    let number = u16::try_from(hello.item).unwrap_or(u16::MAX);
    let behind = hello.code.saturating_sub(number).saturating_sub(1);
    session.join(stream, behind)?;
    drop(doorstep);
    let mut turn = Turn::default();
    turn.push(Frame { item: hello.item, ..Frame::new(Kind::Welcome, 0) }, None);
    let welcomed = turn.send(&**stream, timing.hello, &greeting);
    // The others would leave it what is for this one.
    welcomed.inspect_err(|error| session.close(error.clone()))?;
    Ok((session, behind))
}
