//! Owns one connection to an engine: making it, sending a request, reading what came. It never blocks.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::call::Call;
use crate::limits::JOINED_BYTES_MAX;

/// A socket of either family.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn dial(address: SocketAddr) -> io::Result<Self> {
        TcpStream::connect(address).map(Self::Tcp)
    }

    pub fn dial_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::Unix)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(parts),
            Self::Unix(stream) => stream.write_vectored(parts),
        }
    }

    /// Returns whether the connection is made; an error where it failed.
    fn is_made(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Self::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            Self::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
        };
        match (error, peer) {
            (None, Ok(())) => Ok(true),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (Some(error), _) | (None, Err(error)) => Err(error),
        }
    }
}

/// Use of a connection.
#[derive(Debug)]
pub enum State {
    /// Being made for a call; further addresses to try.
    Dialing(Box<Call>, Vec<SocketAddr>),
    /// Serves a call.
    Busy(Box<Call>),
    Idle,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub socket: Socket,
    pub pool: u32,
    pub state: State,
    /// When this state began.
    pub since: Instant,
    /// Whether bytes may be there to read.
    pub is_readable: bool,
    /// Whether the engine closed its side: a read that takes less than there is room for may not be the last.
    pub is_closing: bool,
    /// The request that is being sent, and how many of its bytes were.
    head: Vec<u8>,
    body: Vec<u8>,
    sent: usize,
    /// Bytes of an answer's head that is not whole yet.
    pub input: Vec<u8>,
}

impl Connection {
    pub fn new(socket: Socket, pool: u32, state: State) -> Self {
        Self {
            socket,
            pool,
            state,
            since: Instant::now(),
            is_readable: false,
            is_closing: false,
            head: Vec::new(),
            body: Vec::new(),
            sent: 0,
            input: Vec::new(),
        }
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Whether the connection is made.
    pub fn finish_dialing(&mut self) -> io::Result<bool> {
        let is_made = self.socket.is_made()?;
        if let (true, Socket::Tcp(stream)) = (is_made, &self.socket) {
            stream.set_nodelay(true)?;
        }
        Ok(is_made)
    }

    pub fn set(&mut self, state: State) {
        self.state = state;
        self.since = Instant::now();
    }

    /// Takes a request, which `flush` sends.
    pub fn load(&mut self, mut head: Vec<u8>, mut body: Vec<u8>) {
        if body.len() <= JOINED_BYTES_MAX {
            head.append(&mut body);
        }
        (self.head, self.body, self.sent) = (head, body, 0);
    }

    /// Whether the whole request was sent.
    pub fn is_sent(&self) -> bool {
        self.sent == self.head.len() + self.body.len()
    }

    /// Sends what the system takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.is_sent() {
            let head = &self.head[self.sent.min(self.head.len())..];
            let body = &self.body[self.sent.saturating_sub(self.head.len())..];
            match self.socket.write(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A long body is needed no more; an engine may take an hour to answer it.
        (self.head, self.body, self.sent) = (Vec::new(), Vec::new(), 0);
        Ok(())
    }
}
