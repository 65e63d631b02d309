//! Owns the one door of a vault: it accepts, shares places out, tells lanes from gRPC, and ends who is not let in within a time.

mod first;
mod listener;
mod places;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::listener::Socket;
pub use self::places::{ConnectionLimits, PlaceId};

use self::first::{First, first};
use self::listener::Listener;
use self::places::Places;
use crate::error::{Error, Result};
use crate::lane::server::{Admission, Counts, Server};
use crate::lane::stream::Stream;
use crate::limits::{
    DOOR_ACCEPTS_PER_TURN, DOOR_DEADLINE_MS, DOOR_FIRST_BYTES_MAX, DOOR_KNOWN_MAX, DOOR_RESERVE,
    DOOR_SETTLED_EACH_MAX, DOOR_SETTLED_MAX, DOOR_WAITING_EACH_MAX, DOOR_WAITING_MAX,
};

/// What a door is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` (0: the system chooses) or `unix:/path`.
    pub address: String,
    /// Whether those who come speak TLS.
    pub is_tls: bool,
    /// How many may be there.
    pub limits: ConnectionLimits,
    /// Who is not let in after this time has to go.
    pub deadline: Duration,
}

impl Options {
    /// With the limits of `limits.rs`.
    #[must_use]
    pub fn new(address: &str, is_tls: bool) -> Self {
        let limits = ConnectionLimits {
            settled: DOOR_SETTLED_MAX,
            settled_each: DOOR_SETTLED_EACH_MAX,
            waiting: DOOR_WAITING_MAX,
            waiting_each: DOOR_WAITING_EACH_MAX,
            reserve: DOOR_RESERVE,
            known: DOOR_KNOWN_MAX,
        };
        let deadline = Duration::from_millis(DOOR_DEADLINE_MS);
        Self { address: address.to_owned(), is_tls, limits, deadline }
    }
}

/// Whoever speaks gRPC.
pub trait Front: Send + Sync {
    /// Takes a connection of which nothing was read; given back: it has no room just now.
    ///
    /// # Errors
    /// The connection.
    fn take(&self, place: PlaceId, socket: Socket) -> std::result::Result<(), Socket>;

    /// Ends a connection that it took, and that was not let in.
    fn cut(&self, place: PlaceId);
}

/// What can be ended of a connection that was passed on and was not let in yet.
enum Passed {
    Lane(Arc<dyn Stream>),
    Front,
}

struct State {
    places: Places,
    passed: HashMap<PlaceId, Passed>,
}

struct Inner {
    options: Options,
    /// None: lanes are not served.
    lanes: Option<Arc<Server>>,
    /// None: all are lanes.
    front: Option<Arc<dyn Front>>,
    state: Mutex<State>,
    counts: Counts,
    is_closing: AtomicBool,
}

/// A vault's door. Dropped = stopped.
pub struct Door {
    shared: Arc<Inner>,
    port: Option<u16>,
    waker: UnixStream,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Door {
    /// Listens, and passes lanes and gRPC connections on.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's reason.
    pub fn open(
        options: Options,
        lanes: Option<Arc<Server>>,
        front: Option<Arc<dyn Front>>,
    ) -> Result<Self> {
        let listener = Listener::bind(&options.address)?;
        let port = listener.port()?;
        let failed = |error: io::Error| Error::lane_failed(format!("opening the door: {error}"));
        let (waker, wake) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let places = Places::new(options.limits);
        let state = Mutex::new(State { places, passed: HashMap::new() });
        let (counts, is_closing) = (Counts::default(), AtomicBool::new(false));
        let shared = Arc::new(Inner { options, lanes, front, state, counts, is_closing });
        let waiting = BTreeMap::new();
        let mut porter = Porter { shared: Arc::clone(&shared), listener, wake, waiting };
        let builder = thread::Builder::new().name("tierkv-door".to_owned());
        let thread = builder.spawn(move || porter.run()).map_err(failed)?;
        Ok(Self { shared, port, waker, thread: Mutex::new(Some(thread)) })
    }

    /// The port on TCP; none on a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whoever spoke gRPC at this place was let in; false: there is no place for him.
    #[must_use]
    pub fn settle(&self, place: PlaceId) -> bool {
        self.shared.settle(place)
    }

    /// Whoever spoke gRPC at this place is gone.
    pub fn leave(&self, place: PlaceId) {
        self.shared.leave(place);
    }

    /// Counters by name.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.snapshot()
    }

    /// Accepts no more, and ends those of which nothing was received; idempotent.
    pub fn stop(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        // One byte is enough, and a full pipe has one.
        let _ = io::Write::write(&mut &self.waker, &[0]);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has nothing to say, not even that it panicked.
            let _ = thread.join();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, place: PlaceId) -> bool {
        let mut state = self.state();
        state.passed.remove(&place);
        let is_settled = state.places.settle(place);
        if !is_settled {
            self.counts.add("connections_refused", 1);
        }
        is_settled
    }

    fn leave(&self, place: PlaceId) {
        let mut state = self.state();
        state.passed.remove(&place);
        state.places.leave(place);
    }
}

/// A lane at its place.
struct DoorPermit {
    shared: Arc<Inner>,
    place: PlaceId,
}

impl Admission for DoorPermit {
    fn welcome(&self) -> bool {
        self.shared.settle(self.place)
    }
}

impl Drop for DoorPermit {
    fn drop(&mut self) {
        self.shared.leave(self.place);
    }
}

/// One that was accepted, and how much of it has arrived.
struct Waiting {
    socket: Socket,
    received: usize,
}

/// How often those are looked at that have begun to speak, or that found no room.
const RETRY: Duration = Duration::from_millis(5);
/// How often it is looked who waits for too long.
const TICK: Duration = Duration::from_millis(100);

/// The thread at the door.
struct Porter {
    shared: Arc<Inner>,
    listener: Listener,
    wake: UnixStream,
    waiting: BTreeMap<PlaceId, Waiting>,
}

impl Porter {
    fn run(&mut self) {
        loop {
            let spoke = self.wait();
            if self.shared.is_closing.load(Ordering::Acquire) {
                break;
            }
            if self.accept().is_err() {
                // The system has no room for another one.
                thread::sleep(RETRY);
            }
            let mut bytes = [0; DOOR_FIRST_BYTES_MAX];
            for place in spoke {
                self.look(place, &mut bytes);
            }
            self.expire();
        }
        for place in std::mem::take(&mut self.waiting).into_keys() {
            self.shared.leave(place);
        }
    }

    /// Until somebody comes or speaks, or a tick is over; returns those to look at.
    fn wait(&mut self) -> Vec<PlaceId> {
        let silent =
            |(place, waiting): (&PlaceId, &Waiting)| (waiting.received == 0).then_some(*place);
        let silent: Vec<_> = self.waiting.iter().filter_map(silent).collect();
        let is_all = silent.len() == self.waiting.len();
        let mut fds = vec![
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        fds.extend(silent.iter().map(|p| PollFd::new(&self.waiting[p].socket, PollFlags::IN)));
        let timeout = if is_all { TICK } else { RETRY };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        if poll(&mut fds, Some(&timeout)).is_err() {
            return Vec::new();
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = silent.iter().zip(&fds[2..]).filter(|(_, fd)| is_ready(fd));
        let mut spoke: Vec<_> = ready.map(|(place, _)| *place).collect();
        if is_ready(&fds[0]) {
            // What it says is in `is_closing`.
            let _ = io::Read::read(&mut &self.wake, &mut [0; 8]);
        }
        let begun = self.waiting.iter().filter(|(_, waiting)| waiting.received > 0);
        spoke.extend(begun.map(|(place, _)| *place));
        spoke
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..DOOR_ACCEPTS_PER_TURN {
            let (socket, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    // Gone before it was taken.
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
            let (place, lost) = self.shared.state().places.enter(from, Instant::now());
            if let Some(lost) = lost {
                self.end(lost);
            }
            if self.shared.front.is_none() {
                self.pass_to_lanes(place, socket);
            } else {
                self.waiting.insert(place, Waiting { socket, received: 0 });
            }
        }
        Ok(())
    }

    /// Passes one on as soon as its first bytes say where to.
    fn look(&mut self, place: PlaceId, bytes: &mut [u8]) {
        let Some(mut waiting) = self.waiting.remove(&place) else { return };
        let received = match waiting.socket.peek(bytes) {
            Ok(received @ 1..) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.insert(place, waiting);
                return;
            }
            Ok(_) | Err(_) => return self.shared.leave(place),
        };
        waiting.received = received;
        match first(&bytes[..received], self.shared.options.is_tls) {
            First::Lane => self.pass_to_lanes(place, waiting.socket),
            First::Unclear => drop(self.waiting.insert(place, waiting)),
            First::Other => self.pass_to_front(place, waiting),
        }
    }

    fn pass_to_lanes(&self, place: PlaceId, socket: Socket) {
        let permit = DoorPermit { shared: Arc::clone(&self.shared), place };
        let Some(lanes) = &self.shared.lanes else { return };
        let Ok(stream) = socket.into_stream(lanes.tick()) else { return };
        let passed = Passed::Lane(Arc::clone(&stream));
        self.shared.state().passed.insert(place, passed);
        lanes.take(stream, Box::new(permit));
    }

    fn pass_to_front(&mut self, place: PlaceId, waiting: Waiting) {
        let Some(front) = &self.shared.front else { return };
        let Waiting { socket, received } = waiting;
        let mut state = self.shared.state();
        match front.take(place, socket) {
            Ok(()) => drop(state.passed.insert(place, Passed::Front)),
            Err(socket) => drop(self.waiting.insert(place, Waiting { socket, received })),
        }
    }

    fn expire(&mut self) {
        let deadline = self.shared.options.deadline;
        let late = self.shared.state().places.expire(Instant::now(), deadline);
        for place in late {
            self.end(place);
        }
    }

    /// Ends one that has lost its place.
    fn end(&mut self, place: PlaceId) {
        self.shared.counts.add("connections_refused", 1);
        self.waiting.remove(&place);
        let passed = self.shared.state().passed.remove(&place);
        match passed {
            Some(Passed::Lane(stream)) => stream.shutdown(),
            Some(Passed::Front) => self.shared.front.iter().for_each(|front| front.cut(place)),
            None => {}
        }
    }
}
