//! Owns the listening socket of a vault, TCP or Unix, and the peer's address or user before a byte is read.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::error::{Error, Result};
use crate::lane::stream::{Stream, UNIX_PREFIX, set_ticks, set_up_tcp};
use crate::limits::LISTENER_BACKLOG;
use crate::peer;

/// A socket that accepts connections.
#[derive(Debug)]
pub enum ListeningSocket {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket; its creator chooses and removes the path.
    Unix(UnixListener),
}

/// A connection before a byte is read.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl ListeningSocket {
    /// Listens on `host:port` (port 0: the system chooses) or `unix:/path`.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's name of the error and its reason.
    pub fn bind(address: &str) -> Result<Self> {
        let bound = match address.strip_prefix(UNIX_PREFIX) {
            Some(path) => UnixListener::bind(path).map(Self::Unix),
            None => TcpListener::bind(address).map(Self::Tcp),
        };
        let ready = bound.and_then(|listener| {
            match &listener {
                Self::Tcp(tcp) => tcp.set_nonblocking(true)?,
                Self::Unix(unix) => unix.set_nonblocking(true)?,
            }
            // The standard library's backlog is short; a client that finds it full tries again only after a second.
            rustix::net::listen(&listener, LISTENER_BACKLOG)?;
            Ok(listener)
        });
        ready.map_err(|error| {
            let is_taken = error.kind() == io::ErrorKind::AddrInUse;
            let name = if is_taken { "EADDRINUSE: " } else { "" };
            Error::lane_failed(format!("{name}listening on {address}: {error}"))
        })
    }

    /// TCP port; `None` on a Unix socket.
    ///
    /// # Errors
    /// `LANE_FAILED` with the system's reason.
    pub fn port(&self) -> Result<Option<u16>> {
        let Self::Tcp(listener) = self else { return Ok(None) };
        let bound = listener.local_addr();
        let bound =
            bound.map_err(|error| Error::lane_failed(format!("the bound port: {error}")))?;
        Ok(Some(bound.port()))
    }

    /// Accepts a connection, if one waits; its address is `None` on a Unix socket.
    pub fn accept(&self) -> io::Result<(Socket, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok((Socket::Tcp(stream), Some(peer.ip())))
            }
            Self::Unix(listener) => Ok((Socket::Unix(listener.accept()?.0), None)),
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Socket {
    /// Copies arrived bytes into `buffer` without consuming them; 0: the peer has closed.
    pub(super) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (_, bytes) = recv(self, buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        Ok(bytes)
    }

    /// Whether a Unix peer is our own user or root; TCP peers authenticate otherwise.
    pub(super) fn is_own(&self) -> bool {
        match self {
            Self::Tcp(_) => true,
            Self::Unix(stream) => is_own_user(stream),
        }
    }

    /// Configures the socket for a lane.
    pub(super) fn into_stream(self, tick: Duration) -> io::Result<Arc<dyn Stream>> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                set_up_tcp(&stream, tick)?;
                Ok(Arc::new(stream))
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                set_ticks(&stream, tick)?;
                Ok(Arc::new(stream))
            }
        }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        match socket {
            Socket::Tcp(stream) => stream.into(),
            Socket::Unix(stream) => stream.into(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Whether the peer is our user or root. On systems that do not tell, only the modes of socket and folder protect.
fn is_own_user(stream: &UnixStream) -> bool {
    let own = rustix::process::getuid().as_raw();
    peer::uid(stream.as_fd()).is_ok_and(|uid| uid.is_none_or(|uid| uid == 0 || uid == own))
}
