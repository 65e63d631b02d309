//! Owns the listener of a vault: it accepts and limits connections, tells lanes from gRPC, and ends those not admitted in time.

mod connections;
mod sniff;
mod socket;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::connections::{ConnectionId, ConnectionLimits};
pub use self::socket::Socket;

use self::connections::Connections;
use self::sniff::{Protocol, sniff};
use self::socket::ListeningSocket;
use crate::error::{Error, Result};
use crate::lane::server::{Admission, Counts, Server};
use crate::lane::stream::Stream;
use crate::limits::{
    LISTENER_ACCEPTS_PER_POLL, LISTENER_DEADLINE_MS, LISTENER_FIRST_BYTES_MAX, LISTENER_KNOWN_MAX,
    LISTENER_RESERVE, LISTENER_SETTLED_EACH_MAX, LISTENER_SETTLED_MAX, LISTENER_WAITING_EACH_MAX,
    LISTENER_WAITING_MAX,
};

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` (0: the system chooses) or `unix:/path`.
    pub address: String,
    /// Further addresses, `host:port`.
    pub also: Vec<String>,
    /// Whether clients speak TLS.
    pub is_tls: bool,
    /// Limits of the number of connections.
    pub limits: ConnectionLimits,
    /// Time after which a connection that is not admitted is ended.
    pub deadline: Duration,
}

impl Options {
    /// Options with the limits of `limits.rs`.
    #[must_use]
    pub fn new(address: &str, is_tls: bool) -> Self {
        let limits = ConnectionLimits {
            settled: LISTENER_SETTLED_MAX,
            settled_each: LISTENER_SETTLED_EACH_MAX,
            waiting: LISTENER_WAITING_MAX,
            waiting_each: LISTENER_WAITING_EACH_MAX,
            reserve: LISTENER_RESERVE,
            known: LISTENER_KNOWN_MAX,
        };
        let deadline = Duration::from_millis(LISTENER_DEADLINE_MS);
        Self { address: address.to_owned(), also: Vec::new(), is_tls, limits, deadline }
    }
}

/// The gRPC server behind the listener.
pub trait GrpcHandler: Send + Sync {
    /// Takes a connection of which nothing was read; gives it back if it has no room at present.
    ///
    /// # Errors
    /// The connection.
    fn take(&self, connection: ConnectionId, socket: Socket) -> std::result::Result<(), Socket>;

    /// Ends a taken connection that was not admitted.
    fn cut(&self, connection: ConnectionId);
}

/// A connection that was passed on and is not admitted yet, with the means to end it.
enum Passed {
    Lane(Arc<dyn Stream>),
    Grpc,
}

struct State {
    connections: Connections,
    passed: HashMap<ConnectionId, Passed>,
}

struct Inner {
    options: Options,
    /// `None` where lanes are not served.
    lanes: Option<Arc<Server>>,
    /// `None` where all connections are lanes.
    grpc: Option<Arc<dyn GrpcHandler>>,
    state: Mutex<State>,
    counts: Counts,
    is_closing: AtomicBool,
}

/// A vault's listener. Dropping it stops it.
pub struct Listener {
    shared: Arc<Inner>,
    port: Option<u16>,
    waker: UnixStream,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// Starts to listen, and passes connections to lanes or gRPC.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's reason.
    pub fn open(
        options: Options,
        lanes: Option<Arc<Server>>,
        grpc: Option<Arc<dyn GrpcHandler>>,
    ) -> Result<Self> {
        let first = ListeningSocket::bind(&options.address)?;
        let port = first.port()?;
        let mut listeners = vec![first];
        for also in &options.also {
            listeners.push(ListeningSocket::bind(also)?);
        }
        let failed =
            |error: io::Error| Error::lane_failed(format!("opening the listener: {error}"));
        let (waker, wake) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let connections = Connections::new(options.limits);
        let state = Mutex::new(State { connections, passed: HashMap::new() });
        let (counts, is_closing) = (Counts::default(), AtomicBool::new(false));
        let shared = Arc::new(Inner { options, lanes, grpc, state, counts, is_closing });
        let waiting = BTreeMap::new();
        let mut accepting = AcceptLoop { shared: Arc::clone(&shared), listeners, wake, waiting };
        let builder = thread::Builder::new().name("tierkv-listener".to_owned());
        let thread = builder.spawn(move || accepting.run()).map_err(failed)?;
        Ok(Self { shared, port, waker, thread: Mutex::new(Some(thread)) })
    }

    /// TCP port; `None` on a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Admits a gRPC connection; false if there is no room for it.
    #[must_use]
    pub fn settle(&self, connection: ConnectionId) -> bool {
        self.shared.settle(connection)
    }

    /// Removes a gRPC connection that has ended.
    pub fn leave(&self, connection: ConnectionId) {
        self.shared.leave(connection);
    }

    /// Counters by name.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.snapshot()
    }

    /// Stops accepting, and ends the connections of which nothing was received; idempotent.
    pub fn stop(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        // One byte wakes the thread; a full pipe has one already.
        let _ = io::Write::write(&mut &self.waker, &[0]);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread returns no result, and its panic is not reported either.
            let _ = thread.join();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, connection: ConnectionId) -> bool {
        let mut state = self.state();
        state.passed.remove(&connection);
        let is_settled = state.connections.settle(connection);
        if !is_settled {
            self.counts.add("connections_refused", 1);
        }
        is_settled
    }

    fn leave(&self, connection: ConnectionId) {
        let mut state = self.state();
        state.passed.remove(&connection);
        state.connections.leave(connection);
    }
}

/// A lane connection's place in the table, given back when dropped.
struct ConnectionPermit {
    shared: Arc<Inner>,
    connection: ConnectionId,
}

impl Admission for ConnectionPermit {
    fn welcome(&self) -> bool {
        self.shared.settle(self.connection)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shared.leave(self.connection);
    }
}

/// An accepted connection, and how many of its first bytes were seen.
struct Waiting {
    socket: Socket,
    received: usize,
}

/// Interval for connections whose first bytes are incomplete, or that gRPC had no room for.
const RETRY: Duration = Duration::from_millis(5);
/// Interval of the check for late connections.
const TICK: Duration = Duration::from_millis(100);

/// The accepting thread.
struct AcceptLoop {
    shared: Arc<Inner>,
    listeners: Vec<ListeningSocket>,
    wake: UnixStream,
    waiting: BTreeMap<ConnectionId, Waiting>,
}

impl AcceptLoop {
    fn run(&mut self) {
        loop {
            let spoke = self.wait();
            if self.shared.is_closing.load(Ordering::Acquire) {
                break;
            }
            if (0..self.listeners.len()).any(|listener| self.accept(listener).is_err()) {
                // The system is out of descriptors or memory.
                thread::sleep(RETRY);
            }
            let mut bytes = [0; LISTENER_FIRST_BYTES_MAX];
            for connection in spoke {
                self.look(connection, &mut bytes);
            }
            self.expire();
        }
        for connection in std::mem::take(&mut self.waiting).into_keys() {
            self.shared.leave(connection);
        }
    }

    /// Waits for a new connection, for bytes, or for the interval; returns the connections to look at.
    fn wait(&mut self) -> Vec<ConnectionId> {
        let silent = |(connection, waiting): (&ConnectionId, &Waiting)| {
            (waiting.received == 0).then_some(*connection)
        };
        let silent: Vec<_> = self.waiting.iter().filter_map(silent).collect();
        let is_all = silent.len() == self.waiting.len();
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let first = fds.len();
        fds.extend(silent.iter().map(|p| PollFd::new(&self.waiting[p].socket, PollFlags::IN)));
        let timeout = if is_all { TICK } else { RETRY };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        if poll(&mut fds, Some(&timeout)).is_err() {
            return Vec::new();
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = silent.iter().zip(&fds[first..]).filter(|(_, fd)| is_ready(fd));
        let mut spoke: Vec<_> = ready.map(|(connection, _)| *connection).collect();
        if is_ready(&fds[0]) {
            // The message itself is in `is_closing`.
            let _ = io::Read::read(&mut &self.wake, &mut [0; 8]);
        }
        let begun = self.waiting.iter().filter(|(_, waiting)| waiting.received > 0);
        spoke.extend(begun.map(|(connection, _)| *connection));
        spoke
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        for _ in 0..LISTENER_ACCEPTS_PER_POLL {
            let (socket, from) = match self.listeners[listener].accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    // The peer has gone before it was accepted.
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                },
            };
            if !socket.is_own() {
                self.shared.counts.add("connections_refused", 1);
                continue;
            }
            let (connection, lost) = self.shared.state().connections.enter(from, Instant::now());
            if let Some(lost) = lost {
                self.end(lost);
            }
            if self.shared.grpc.is_none() {
                self.pass_to_lanes(connection, socket);
            } else {
                self.waiting.insert(connection, Waiting { socket, received: 0 });
            }
        }
        Ok(())
    }

    /// Passes a connection on as soon as its first bytes show the protocol.
    fn look(&mut self, connection: ConnectionId, bytes: &mut [u8]) {
        let Some(mut waiting) = self.waiting.remove(&connection) else { return };
        let received = match waiting.socket.peek(bytes) {
            Ok(received @ 1..) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.insert(connection, waiting);
                return;
            }
            Ok(_) | Err(_) => return self.shared.leave(connection),
        };
        waiting.received = received;
        match sniff(&bytes[..received], self.shared.options.is_tls) {
            Protocol::Lane => self.pass_to_lanes(connection, waiting.socket),
            Protocol::Unclear => drop(self.waiting.insert(connection, waiting)),
            Protocol::Other => self.pass_to_grpc(connection, waiting),
        }
    }

    fn pass_to_lanes(&self, connection: ConnectionId, socket: Socket) {
        let permit = ConnectionPermit { shared: Arc::clone(&self.shared), connection };
        let Some(lanes) = &self.shared.lanes else { return };
        let Ok(stream) = socket.into_stream(lanes.tick()) else { return };
        let passed = Passed::Lane(Arc::clone(&stream));
        self.shared.state().passed.insert(connection, passed);
        lanes.take(stream, Box::new(permit));
    }

    fn pass_to_grpc(&mut self, connection: ConnectionId, waiting: Waiting) {
        let Some(grpc) = &self.shared.grpc else { return };
        let Waiting { socket, received } = waiting;
        let mut state = self.shared.state();
        match grpc.take(connection, socket) {
            Ok(()) => drop(state.passed.insert(connection, Passed::Grpc)),
            Err(socket) => drop(self.waiting.insert(connection, Waiting { socket, received })),
        }
    }

    fn expire(&mut self) {
        let deadline = self.shared.options.deadline;
        let late = self.shared.state().connections.expire(Instant::now(), deadline);
        for connection in late {
            self.end(connection);
        }
    }

    /// Ends a connection that was removed from the table.
    fn end(&mut self, connection: ConnectionId) {
        self.shared.counts.add("connections_refused", 1);
        self.waiting.remove(&connection);
        let passed = self.shared.state().passed.remove(&connection);
        match passed {
            Some(Passed::Lane(stream)) => stream.shutdown(),
            Some(Passed::Grpc) => self.shared.grpc.iter().for_each(|grpc| grpc.cut(connection)),
            None => {}
        }
    }
}
