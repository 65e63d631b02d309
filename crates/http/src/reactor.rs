//! Owns the client's thread: which socket is ready, which call gets which connection, and when something took too long.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use slab::Slab;

use crate::address::Address;
use crate::call::{Call, Failure};
use crate::client::{CallId, Command, News, Queue, Times};
use crate::connection::{Connection, Socket, State};
use crate::limits::{EVENTS_AT_ONCE, PIECE_BYTES, READS_AT_ONCE, RESOLVES_MAX, TICK, WAITING_MAX};
use crate::pace::Pace;
use crate::pool::Pool;

/// Token of the waker. A connection at place `n` has `2n + 1`, and the client's socket that it serves `2n + 2`.
pub const WAKER: usize = 0;

type Tell = Box<dyn Fn(Vec<News>) + Send>;

/// All connections, and the calls on them.
pub struct Reactor {
    poll: Poll,
    queue: Arc<Queue>,
    times: Times,
    tell: Tell,
    pools: HashMap<u32, Pool>,
    connections: Slab<Connection>,
    /// Places of the calls that have a connection.
    places: HashMap<CallId, usize>,
    /// Calls that wait for one.
    waiting: HashMap<CallId, Box<Call>>,
    /// Calls whose connection is counted already, while their host's name is resolved.
    named: HashMap<CallId, Box<Call>>,
    resolving: usize,
    /// Places of connections with more to read, whose turn was over.
    again: Vec<usize>,
    unresolved: VecDeque<CallId>,
    scratch: Vec<u8>,
    news: Vec<News>,
}

impl Reactor {
    pub fn new(poll: Poll, queue: Arc<Queue>, times: Times, tell: Tell) -> Self {
        Self {
            poll,
            queue,
            times,
            tell,
            pools: HashMap::new(),
            connections: Slab::new(),
            places: HashMap::new(),
            waiting: HashMap::new(),
            named: HashMap::new(),
            resolving: 0,
            again: Vec::new(),
            unresolved: VecDeque::new(),
            scratch: vec![0; PIECE_BYTES],
            news: Vec::new(),
        }
    }

    /// Serves until it is told to stop.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_AT_ONCE);
        let mut checked = Instant::now();
        let mut rush = Pace::new(checked);
        while self.obey_all() {
            let patience = if self.again.is_empty() { TICK } else { Duration::ZERO };
            let patience = (!self.connections.is_empty()).then_some(patience);
            match self.poll.poll(&mut events, patience) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The descriptors of the poll itself are gone; nothing can be served any more.
                Err(_) => return,
            }
            self.hear(&events);
            let now = Instant::now();
            if now.duration_since(checked) >= TICK {
                checked = now;
                self.check();
            }
            self.report();
            rush.served(events.iter().count(), now);
            if let Some(pause) = rush.pause().filter(|_| self.again.is_empty()) {
                thread::sleep(pause);
            }
        }
    }

    /// Obeys all commands; returns false where it is told to stop.
    fn obey_all(&mut self) -> bool {
        loop {
            let commands = self.queue.take();
            if commands.is_empty() {
                return true;
            }
            for command in commands {
                if matches!(command, Command::Stop) {
                    return false;
                }
                self.obey(command);
            }
            self.report();
        }
    }

    /// Goes on with all connections that are ready.
    fn hear(&mut self, events: &Events) {
        for event in events {
            let Token(token) = event.token();
            if token == WAKER {
                continue;
            }
            let place = (token - 1) / 2;
            if token % 2 == 1
                && let Some(connection) = self.connections.get_mut(place)
            {
                connection.is_readable |= event.is_readable() || event.is_error();
                connection.is_closing |= event.is_read_closed() || event.is_error();
            }
            self.drive(place);
        }
        for place in mem::take(&mut self.again) {
            self.drive(place);
        }
    }

    fn report(&mut self) {
        if !self.news.is_empty() {
            (self.tell)(mem::take(&mut self.news));
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(pool, address, most, signs) => {
                self.pools.insert(pool, Pool::new(address, most, signs));
            }
            Command::Close(pool) => self.close(pool),
            Command::Start(asked) => self.start(Box::new(Call::new(*asked))),
            Command::Resolved(id, found) => self.resolved(id, found),
            Command::More(id) => self.on_call(id, Call::ask),
            Command::Pass(id, passing) => self.on_call(id, |call| call.pass(passing)),
            Command::Abort(id) => self.abort(id),
            Command::Stop => {}
        }
    }

    /// Changes a call that has a connection, and lets it go on.
    fn on_call(&mut self, id: CallId, change: impl FnOnce(&mut Call)) {
        let Some(&place) = self.places.get(&id) else { return };
        if let Some(Connection { state: State::Busy(call), .. }) = self.connections.get_mut(place) {
            change(call);
            self.drive(place);
        }
    }

    fn start(&mut self, call: Box<Call>) {
        let Some(pool) = self.pools.get_mut(&call.pool) else {
            return self.fail(&call, gone());
        };
        if let Some(place) = pool.idle.pop() {
            return self.send(place, call);
        }
        if pool.has_room() {
            pool.open += 1;
            return self.dial(call);
        }
        if pool.waiting.len() >= WAITING_MAX {
            let reason = format!("{WAITING_MAX} requests wait for a connection");
            return self.fail(&call, Failure { code: "EBUSY", reason });
        }
        pool.waiting.push_back(call.id);
        self.waiting.insert(call.id, call);
    }

    fn fail(&mut self, call: &Call, Failure { code, reason }: Failure) {
        self.news.push(News::Failed { call: call.id, code, reason });
    }

    /// Makes a connection for a call, which is counted at its pool already.
    fn dial(&mut self, call: Box<Call>) {
        let Some(pool) = self.pools.get(&call.pool) else { return self.fail(&call, gone()) };
        match &pool.address {
            Address::Ip(address) => self.try_next(call, vec![*address]),
            Address::Unix(path) => {
                let made = Socket::dial_unix(path);
                self.enter(made, call, Vec::new());
            }
            Address::Name(..) => {
                let id = call.id;
                self.named.insert(id, call);
                self.unresolved.push_back(id);
                self.resolve();
            }
        }
    }

    /// Begins to resolve names, as many at once as may be.
    fn resolve(&mut self) {
        while self.resolving < RESOLVES_MAX {
            let Some(id) = self.unresolved.pop_front() else { return };
            let Some(call) = self.named.get(&id) else { continue };
            let Some(pool) = self.pools.get(&call.pool) else { continue };
            let Address::Name(host, port) = pool.address.clone() else { continue };
            let queue = Arc::clone(&self.queue);
            let work = move || {
                let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
                queue.send(Command::Resolved(id, found));
            };
            self.resolving += 1;
            if let Err(error) = thread::Builder::new().name("tierkv-resolve".into()).spawn(work) {
                self.resolved(id, Err(error));
            }
        }
    }

    fn resolved(&mut self, id: CallId, found: io::Result<Vec<SocketAddr>>) {
        self.resolving -= 1;
        if let Some(call) = self.named.remove(&id) {
            match found {
                Ok(mut addresses) => {
                    addresses.reverse();
                    self.try_next(call, addresses);
                }
                Err(error) => {
                    let reason = error.to_string();
                    self.undialed(&call, Failure { code: "ENOTFOUND", reason });
                }
            }
        }
        self.resolve();
    }

    /// Tries the last of these addresses.
    fn try_next(&mut self, call: Box<Call>, mut addresses: Vec<SocketAddr>) {
        let Some(address) = addresses.pop() else {
            let reason = "the host has no address".into();
            return self.undialed(&call, Failure { code: "ENOTFOUND", reason });
        };
        let made = Socket::dial(address);
        self.enter(made, call, addresses);
    }

    fn enter(&mut self, made: io::Result<Socket>, call: Box<Call>, rest: Vec<SocketAddr>) {
        let (id, pool) = (call.id, call.pool);
        let entry = self.connections.vacant_entry();
        let place = entry.key();
        let connected = made.and_then(|socket| {
            let mut connection = Connection::new(socket, pool, State::Idle);
            connection.register(self.poll.registry(), Token(2 * place + 1))?;
            Ok(connection)
        });
        match connected {
            Ok(mut connection) => {
                connection.state = State::Dialing(call, rest);
                entry.insert(connection);
                self.places.insert(id, place);
            }
            Err(error) if rest.is_empty() => self.undialed(&call, undialed(&error)),
            Err(_) => self.try_next(call, rest),
        }
    }

    /// No connection can be made for a call.
    fn undialed(&mut self, call: &Call, failure: Failure) {
        self.places.remove(&call.id);
        self.fail(call, failure);
        self.free(call.pool);
    }

    /// A connection of a pool is gone: a waiting call may have its place.
    fn free(&mut self, pool: u32) {
        let Some(pool) = self.pools.get_mut(&pool) else { return };
        pool.open -= 1;
        while let Some(id) = pool.waiting.pop_front() {
            if let Some(call) = self.waiting.remove(&id) {
                pool.open += 1;
                return self.dial(call);
            }
        }
    }

    /// Goes on with what a connection can do now.
    fn drive(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        match mem::replace(&mut connection.state, State::Idle) {
            State::Idle if connection.is_readable => self.lose_idle(place),
            State::Idle => {}
            State::Dialing(call, rest) => match connection.finish_dialing() {
                Ok(true) => self.send(place, call),
                Ok(false) => connection.state = State::Dialing(call, rest),
                Err(error) => self.dial_again(place, call, rest, &error),
            },
            State::Busy(call) => self.serve(place, call),
        }
    }

    /// An idle connection was closed, or brought bytes that belong to no answer.
    fn lose_idle(&mut self, place: usize) {
        let connection = self.connections.remove(place);
        if let Some(pool) = self.pools.get_mut(&connection.pool) {
            pool.lose(place);
        }
        self.free(connection.pool);
    }

    fn dial_again(
        &mut self,
        place: usize,
        call: Box<Call>,
        rest: Vec<SocketAddr>,
        error: &io::Error,
    ) {
        self.connections.remove(place);
        if rest.is_empty() {
            self.undialed(&call, undialed(error));
        } else {
            self.try_next(call, rest);
        }
    }

    /// Sends a call's request on a connection that is free.
    fn send(&mut self, place: usize, mut call: Box<Call>) {
        let (head, body) = mem::take(&mut call.request);
        self.places.insert(call.id, place);
        self.connections[place].load(head, body);
        self.serve(place, call);
    }

    fn serve(&mut self, place: usize, mut call: Box<Call>) {
        self.exchange(place, &mut call);
        if call.is_over() {
            self.finish(place, &call);
        } else {
            self.connections[place].set(State::Busy(call));
        }
    }

    /// Sends and reads what it can without waiting.
    fn exchange(&mut self, place: usize, call: &mut Call) {
        let connection = &mut self.connections[place];
        let token = Token(2 * place + 2);
        let unsent = connection.flush().err();
        // The engine may have answered before it closed the connection.
        connection.is_readable |= unsent.is_some();
        call.deliver(self.poll.registry(), token, &mut self.news);
        let mut reads = 0;
        while call.wants_more() && connection.is_readable {
            if reads == READS_AT_ONCE {
                return self.again.push(place);
            }
            reads += 1;
            match connection.socket.read(&mut self.scratch) {
                Ok(0) => call.end(),
                Ok(count) => {
                    // The system reports the next bytes, but an end only once.
                    connection.is_readable = count == self.scratch.len() || connection.is_closing;
                    if let Some(pool) = self.pools.get(&connection.pool) {
                        pool.signs.fetch_add(1, Ordering::Relaxed);
                    }
                    let bytes = &self.scratch[..count];
                    if let Err(failure) = call.receive(bytes, &mut connection.input) {
                        call.fail(failure);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.is_readable = false;
                    let Some(error) = &unsent else { return };
                    call.fail(failure_of(error));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => call.fail(failure_of(&error)),
            }
            call.deliver(self.poll.registry(), token, &mut self.news);
        }
    }

    /// A call is over: its connection serves the next one, or is closed.
    fn finish(&mut self, place: usize, call: &Call) {
        self.places.remove(&call.id);
        let connection = &mut self.connections[place];
        let is_clean = connection.is_sent() && connection.input.is_empty();
        let Some(pool) = self.pools.get_mut(&call.pool) else {
            self.connections.remove(place);
            return;
        };
        if !call.keeps() || !is_clean || connection.is_closing {
            self.connections.remove(place);
            return self.free(call.pool);
        }
        connection.set(State::Idle);
        while let Some(id) = pool.waiting.pop_front() {
            if let Some(next) = self.waiting.remove(&id) {
                return self.send(place, next);
            }
        }
        pool.idle.push(place);
    }

    fn abort(&mut self, id: CallId) {
        if self.waiting.remove(&id).is_some() {
            return;
        }
        if let Some(call) = self.named.remove(&id) {
            return self.free(call.pool);
        }
        let Some(place) = self.places.remove(&id) else { return };
        self.cut(place);
    }

    /// Closes a connection, whatever it does; its call is told nothing.
    fn cut(&mut self, place: usize) {
        let connection = self.connections.remove(place);
        if let State::Busy(mut call) = connection.state {
            call.drop_client(self.poll.registry());
        }
        self.free(connection.pool);
    }

    fn close(&mut self, number: u32) {
        let Some(pool) = self.pools.remove(&number) else { return };
        for place in pool.idle {
            self.connections.remove(place);
        }
        let of_pool = |connection: &Connection| connection.pool == number;
        let busy = self.connections.iter().filter(|(_, connection)| of_pool(connection));
        let places: Vec<usize> = busy.map(|(place, _)| place).collect();
        for place in places {
            let connection = self.connections.remove(place);
            if let State::Dialing(mut call, _) | State::Busy(mut call) = connection.state {
                call.drop_client(self.poll.registry());
                self.places.remove(&call.id);
                self.fail(&call, gone());
            }
        }
        for calls in [&mut self.waiting, &mut self.named] {
            for (_, call) in calls.extract_if(|_, call| call.pool == number) {
                let Failure { code, reason } = gone();
                self.news.push(News::Failed { call: call.id, code, reason });
            }
        }
    }

    /// Ends what took too long.
    fn check(&mut self) {
        let times = self.times;
        let late: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| match &connection.state {
                State::Dialing(..) => connection.since.elapsed() >= times.connect,
                State::Idle => connection.since.elapsed() >= times.kept_idle,
                State::Busy(_) => true,
            })
            .map(|(place, _)| place)
            .collect();
        for place in late {
            let connection = &mut self.connections[place];
            match mem::replace(&mut connection.state, State::Idle) {
                State::Idle => self.lose_idle(place),
                State::Dialing(call, rest) => {
                    let late = io::Error::from(io::ErrorKind::TimedOut);
                    self.dial_again(place, call, rest, &late);
                }
                State::Busy(mut call) => {
                    call.check_stall(times.stall, self.poll.registry(), &mut self.news);
                    if call.is_over() {
                        self.finish(place, &call);
                    } else {
                        connection.state = State::Busy(call);
                    }
                }
            }
        }
    }
}

fn gone() -> Failure {
    Failure { code: "ECANCELED", reason: "the engine was removed".into() }
}

/// Why no connection was made, so that no engine has seen the request.
fn undialed(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            Failure { code: "ECONNTIMEDOUT", reason: "no connection in time".into() }
        }
        _ => failure_of(error),
    }
}

fn failure_of(error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::NotFound => "ENOENT",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::BrokenPipe => "EPIPE",
        _ => "ECONNRESET",
    };
    Failure { code, reason: error.to_string() }
}
