//! Owns the client's handle: commands to its thread, and the news that the thread reports.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mio::{Poll, Token, Waker};

use crate::address::Address;
use crate::meter::Meter;
use crate::pass::Passing;
use crate::reactor::{Reactor, WAKER};

/// How long something may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Making a connection to one address.
    pub connect: Duration,
    /// A connection without a request, before it is closed.
    pub kept_idle: Duration,
    /// A client that takes nothing, before it is given up.
    pub stall: Duration,
}

/// Number of a call, chosen by the caller; no two open calls share one.
pub type CallId = u32;

/// Form in which an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The whole body as text, of at most so many bytes.
    Text(usize),
    /// The token ids in the whole body, which has at most so many bytes.
    Ids(usize),
    /// Its head with its first bytes, and the rest as it is asked for.
    Pieces,
}

/// One request.
#[derive(Debug)]
pub struct Asked {
    /// Its number.
    pub call: CallId,
    /// The engine's connections.
    pub pool: u32,
    /// Request line and fields, with the empty line.
    pub head: Vec<u8>,
    /// Body, as long as the head says.
    pub body: Vec<u8>,
    /// Whether the answer has a body: false for HEAD.
    pub has_body: bool,
    /// Form in which the answer is wanted.
    pub want: Want,
}

/// How passing an answer on ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The client has taken all of it.
    Whole,
    /// The client left.
    Gone,
    /// The client took nothing for too long.
    Stalled,
    /// The engine broke off.
    Broken,
}

/// News of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// An answer that was wanted whole.
    Text {
        /// The call, which is over.
        call: CallId,
        /// Status.
        status: u16,
        /// Body; bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// An answer that was wanted for its token ids.
    Ids {
        /// The call, which is over.
        call: CallId,
        /// Status.
        status: u16,
        /// Ids; empty: the answer has none by which a prompt's blocks are known.
        ids: Vec<u32>,
    },
    /// An answer has begun.
    Began {
        /// The call.
        call: CallId,
        /// Status.
        status: u16,
        /// Fields as `name\nvalue` joined by `\n`.
        fields: Vec<u8>,
        /// First bytes of the body, or all of it.
        first: Vec<u8>,
        /// Whether this is all; the call is over then.
        is_whole: bool,
        /// Tokens of a whole answer, as it reports; `None`: it does not.
        tokens: Option<u64>,
    },
    /// The next bytes, asked for by `more`; the call is over with the last ones, which may be none.
    Piece {
        /// The call.
        call: CallId,
        /// Bytes of the body.
        bytes: Vec<u8>,
        /// Whether the body ends here.
        is_last: bool,
    },
    /// Passing on has ended, and with it the call.
    Passed {
        /// The call.
        call: CallId,
        /// How it ended.
        outcome: Outcome,
        /// Whether the bytes passed end between two events.
        is_at_border: bool,
    },
    /// The call failed, and is over.
    Failed {
        /// The call.
        call: CallId,
        /// Name of the error, as Node names those of connections.
        code: &'static str,
        /// Its text.
        reason: String,
    },
}

/// Commands to the thread.
#[derive(Debug)]
pub enum Command {
    Open(u32, Address, usize, Arc<AtomicU64>),
    Close(u32),
    Start(Box<Asked>),
    Resolved(CallId, io::Result<Vec<SocketAddr>>),
    More(CallId),
    Pass(CallId, Passing),
    Abort(CallId),
    Stop,
}

#[derive(Debug, Default)]
struct Waiting {
    commands: VecDeque<Command>,
    is_asleep: bool,
}

/// Commands on their way to the thread.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    waker: Waker,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command; the thread hears of it by `wake`.
    pub fn put(&self, command: Command) {
        self.lock().commands.push_back(command);
    }

    /// Wakes the thread where it sleeps with commands.
    pub fn wake(&self) {
        let mut waiting = self.lock();
        let is_wanted = waiting.is_asleep && !waiting.commands.is_empty();
        if is_wanted {
            waiting.is_asleep = false;
            drop(waiting);
            // A failure leaves the commands for the thread's next tick.
            let _ = self.waker.wake();
        }
    }

    pub fn send(&self, command: Command) {
        self.put(command);
        self.wake();
    }

    /// Takes all commands; where there are none, the next one wakes the thread.
    pub fn take(&self) -> VecDeque<Command> {
        let mut waiting = self.lock();
        waiting.is_asleep = waiting.commands.is_empty();
        std::mem::take(&mut waiting.commands)
    }
}

/// One thread with all connections to engines. Dropping it ends the thread and its connections.
#[derive(Debug)]
pub struct Client {
    queue: Arc<Queue>,
}

impl Client {
    /// Starts the thread, which calls `tell` with news in their order.
    ///
    /// # Errors
    /// The system has no room for the thread or its descriptors.
    pub fn start(times: Times, tell: impl Fn(Vec<News>) + Send + 'static) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), Token(WAKER))?;
        let queue = Arc::new(Queue { waiting: Mutex::default(), waker });
        let reactor = Reactor::new(poll, Arc::clone(&queue), times, Box::new(tell));
        thread::Builder::new().name("tierkv-http".into()).spawn(move || reactor.run())?;
        Ok(Self { queue })
    }

    /// Makes room for an engine's connections under a new number; returns the count of pieces that come from it.
    #[must_use]
    pub fn open(&self, pool: u32, address: Address, most: usize) -> Arc<AtomicU64> {
        let signs = Arc::new(AtomicU64::new(0));
        self.queue.send(Command::Open(pool, address, most, Arc::clone(&signs)));
        signs
    }

    /// Ends an engine's connections, and fails their calls.
    pub fn close(&self, pool: u32) {
        self.queue.send(Command::Close(pool));
    }

    /// Sends a request, at the next `wake` at the latest.
    pub fn request(&self, asked: Asked) {
        self.queue.put(Command::Start(Box::new(asked)));
    }

    /// Asks for the next piece of an answer that has begun, at the next `wake` at the latest.
    pub fn more(&self, call: CallId) {
        self.queue.put(Command::More(call));
    }

    /// Wakes the thread for all that was asked of it. Callers with several requests at once save most of its cost.
    pub fn wake(&self) {
        self.queue.wake();
    }

    /// Passes the rest of an answer to a client's socket, in chunks or as it is, at the next `wake` at the latest; `meter`
    /// counts what passes.
    pub fn pass(
        &self,
        call: CallId,
        client: OwnedFd,
        is_chunked: bool,
        meter: Option<Arc<Mutex<Meter>>>,
    ) {
        self.queue.put(Command::Pass(call, Passing::new(client, is_chunked, meter)));
    }

    /// Ends a call, whatever it does; no news of it follow. Its connection is closed, so that the engine hears of it.
    pub fn abort(&self, call: CallId) {
        self.queue.send(Command::Abort(call));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.queue.send(Command::Stop);
    }
}
