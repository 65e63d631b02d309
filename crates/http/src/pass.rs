//! Owns passing an answer's body on to a client's socket: framing, the client's pace, and how it ended.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Source as _;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;

use crate::meter::Meter;

/// A client's socket that takes an answer's body behind a head that somebody else wrote.
#[derive(Debug)]
pub struct Passing {
    client: OwnedFd,
    /// Whether the body goes in chunks; its last one is left to whoever wrote the head.
    is_chunked: bool,
    /// Counts the tokens that pass; `None`: nobody asks.
    meter: Option<Arc<Mutex<Meter>>>,
    out: Vec<u8>,
    at: usize,
    is_watched: bool,
    /// When the client last took something, while it has not taken all.
    blocked: Option<Instant>,
}

impl Passing {
    pub fn new(client: OwnedFd, is_chunked: bool, meter: Option<Arc<Mutex<Meter>>>) -> Self {
        let out = Vec::new();
        Self { client, is_chunked, meter, out, at: 0, is_watched: false, blocked: None }
    }

    /// Whether the client has taken all.
    pub fn is_free(&self) -> bool {
        self.at == self.out.len()
    }

    /// Whether the client has taken nothing for too long.
    pub fn is_stalled(&self, stall: Duration) -> bool {
        self.blocked.is_some_and(|since| since.elapsed() > stall)
    }

    /// Adds bytes of the body; call only when the client has taken all before.
    pub fn put(&mut self, bytes: &[u8]) {
        if let Some(meter) = &self.meter {
            meter.lock().unwrap_or_else(PoisonError::into_inner).pass(bytes);
        }
        self.out.clear();
        self.at = 0;
        if self.is_chunked {
            self.out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        }
        self.out.extend_from_slice(bytes);
        if self.is_chunked {
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Writes what the client takes.
    ///
    /// # Errors
    /// The client has left.
    pub fn flush(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        while !self.is_free() {
            match rustix::io::write(&self.client, &self.out[self.at..]) {
                Ok(count) => {
                    self.at += count;
                    self.blocked = self.blocked.map(|_| Instant::now());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.watch(registry, token),
                Err(error) => return Err(error.into()),
            }
        }
        self.blocked = None;
        Ok(())
    }

    fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.blocked.get_or_insert_with(Instant::now);
        if !self.is_watched {
            self.is_watched = true;
            let raw = self.client.as_raw_fd();
            SourceFd(&raw).register(registry, token, Interest::WRITABLE)?;
        }
        Ok(())
    }

    /// Takes the socket from the registry; the descriptor is closed with the value, which leaves the connection open.
    pub fn close(self, registry: &Registry) {
        if self.is_watched {
            // A failure means that the system has forgotten it already.
            let _ = SourceFd(&self.client.as_raw_fd()).deregister(registry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use mio::{Poll, Token};

    use super::Passing;

    const STALL: Duration = Duration::from_secs(60);

    #[test]
    fn a_client_stalls_only_while_it_takes_nothing() {
        let poll = Poll::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut passing = Passing::new(OwnedFd::from(ours), true, None);
        passing.put(&vec![b'x'; 1 << 22]);
        passing.flush(poll.registry(), Token(0)).unwrap();
        assert!(!passing.is_free() && !passing.is_stalled(STALL));
        passing.blocked = Instant::now().checked_sub(2 * STALL);
        assert!(passing.is_stalled(STALL));
        std::io::Read::read_exact(&mut theirs, &mut vec![0; 1 << 16]).unwrap();
        passing.flush(poll.registry(), Token(0)).unwrap();
        assert!(!passing.is_stalled(STALL), "it took something");
        passing.close(poll.registry());
    }
}
