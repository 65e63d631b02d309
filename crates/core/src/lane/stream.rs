//! Owns the byte streams under lanes: TCP and Unix sockets, connected and configured. TLS is layered on them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer,
    SendAncillaryMessage, SocketType, sockopt,
};

use super::buffers::set_buffers;
use crate::error::{Error, Result};
use crate::limits::{LANE_KEEPALIVE_S, LANE_STALL_MS};
use crate::peer::{self, RECV_FLAGS, SEND_FLAGS, WAITING_SEND_FLAGS};

/// Prefix of a Unix socket's address.
pub const UNIX_PREFIX: &str = "unix:";

/// One connection. One thread reads while another writes, so that all methods take a shared reference. Reads and writes
/// fail with `WouldBlock` after a tick without a byte.
pub trait Stream: Send + Sync {
    /// Receives available bytes, at least one; returns 0 when the peer has closed.
    ///
    /// # Errors
    /// Errors of the system.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends as much of `parts` as fits. After a temporary error the caller must write the same bytes again.
    ///
    /// # Errors
    /// Errors of the system.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends as much of `parts` as fits without blocking. After `WouldBlock` the same rule holds as for `write`.
    ///
    /// # Errors
    /// Errors of the system.
    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Like `write`, and sends a descriptor with the first byte.
    ///
    /// # Errors
    /// Errors of the system; `Unsupported` for all but a plain Unix socket.
    fn write_with(&self, _parts: &[IoSlice<'_>], _fd: BorrowedFd<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Like `read`, and takes a descriptor that comes with the bytes.
    ///
    /// # Errors
    /// Errors of the system.
    fn read_with(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        Ok((self.read(buffer)?, None))
    }

    /// Whether the peer is a process of our own user on this machine, and nothing lies between.
    fn is_own_user(&self) -> bool {
        false
    }

    /// Closes both directions and wakes the reading and the writing thread.
    fn shutdown(&self);

    /// Whether both ends are on one machine, and share its processors.
    fn is_within_machine(&self) -> bool {
        false
    }

    /// Limits unsent bytes in the system's buffer to `bytes`, as far as the system allows.
    fn limit_unsent(&self, _bytes: usize) {}

    /// Longest packet of the path, as far as the system knows.
    fn mtu(&self) -> Option<u32> {
        None
    }
}

impl Stream for TcpStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buffer)
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(parts)
    }

    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send_now(self.as_fd(), parts)
    }

    fn shutdown(&self) {
        // An already closed connection is fine.
        let _ = TcpStream::shutdown(self, Shutdown::Both);
    }

    fn is_within_machine(&self) -> bool {
        self.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback())
    }

    fn limit_unsent(&self, bytes: usize) {
        // With the system's own limit the lane only shares less well.
        let _ = sockopt::set_socket_send_buffer_size(self.as_fd(), bytes);
    }

    #[cfg(target_os = "linux")]
    fn mtu(&self) -> Option<u32> {
        let is_ipv4 = self.peer_addr().ok()?.is_ipv4();
        let mtu = if is_ipv4 { sockopt::ip_mtu(self) } else { sockopt::ipv6_mtu(self) };
        mtu.ok()
    }
}

impl Stream for UnixStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buffer)
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(parts)
    }

    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send_now(self.as_fd(), parts)
    }

    fn shutdown(&self) {
        let _ = UnixStream::shutdown(self, Shutdown::Both);
    }

    fn is_within_machine(&self) -> bool {
        true
    }

    fn write_with(&self, parts: &[IoSlice<'_>], fd: BorrowedFd<'_>) -> io::Result<usize> {
        let descriptors = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(rustix::net::sendmsg(self, parts, &mut control, WAITING_SEND_FLAGS)?)
    }

    fn read_with(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let received = rustix::net::recvmsg(self, &mut parts, &mut control, RECV_FLAGS)?;
        // Further descriptors than there is room for are closed by the system.
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let fd = fds.last();
        Ok((received.bytes, fd))
    }

    fn is_own_user(&self) -> bool {
        is_user(self, rustix::process::getuid().as_raw())
    }
}

/// Whether the peer of a connected Unix socket is of this user; false on systems that do not tell.
fn is_user(stream: &UnixStream, user: u32) -> bool {
    peer::uid(stream.as_fd()).is_ok_and(|uid| uid == Some(user))
}

fn send_now(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SEND_FLAGS)?)
}

/// Connects to `host:port` or `unix:/path`, from the address `local` where one is given.
///
/// # Errors
/// `LANE_FAILED` with the system's reason.
pub fn dial(
    address: &str,
    local: Option<IpAddr>,
    within: Duration,
    tick: Duration,
) -> Result<Arc<dyn Stream>> {
    let failed =
        |error: &io::Error| Error::lane_failed(format!("connecting to {address}: {error}"));
    if let Some(path) = address.strip_prefix(UNIX_PREFIX) {
        let stream = UnixStream::connect(path).map_err(|error| failed(&error))?;
        set_ticks(&stream, tick).map_err(|error| failed(&error))?;
        return Ok(Arc::new(stream));
    }
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for target in address.to_socket_addrs().map_err(|error| failed(&error))? {
        match connect(&target, local, within) {
            Ok(stream) => {
                set_up_tcp(&stream, tick).map_err(|error| failed(&error))?;
                return Ok(Arc::new(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(&last))
}

fn connect(target: &SocketAddr, local: Option<IpAddr>, within: Duration) -> io::Result<TcpStream> {
    let Some(local) = local else { return TcpStream::connect_timeout(target, within) };
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, target) {
        Err(error) if error == Errno::INPROGRESS => {}
        other => other?,
    }
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let seconds = within.as_secs().try_into().unwrap_or_default();
    let timeout = Timespec { tv_sec: seconds, tv_nsec: within.subsec_nanos().into() };
    if poll(&mut fds, Some(&timeout))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    sockopt::socket_error(&socket)??;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// Makes reads and writes return after a tick.
pub(crate) fn set_ticks(stream: &UnixStream, tick: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(tick))?;
    stream.set_write_timeout(Some(tick))
}

/// Sends small frames at once, and lets the kernel detect dead peers.
pub(crate) fn set_up_tcp(stream: &TcpStream, tick: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(tick))?;
    stream.set_write_timeout(Some(tick))?;
    stream.set_nodelay(true)?;
    let fd = stream.as_fd();
    sockopt::set_socket_keepalive(fd, true)?;
    let seconds = Duration::from_secs(LANE_KEEPALIVE_S);
    sockopt::set_tcp_keepidle(fd, seconds)?;
    sockopt::set_tcp_keepintvl(fd, seconds / 4)?;
    sockopt::set_tcp_keepcnt(fd, 4)?;
    set_buffers(fd)?;
    unpace(stream);
    set_user_timeout(stream)
}

/// Avoids a paced congestion control (BBR) within one machine, where there is no path to probe and pacing only adds timer waits.
#[cfg(target_os = "linux")]
fn unpace(stream: &TcpStream) {
    if stream.is_within_machine() {
        // Every kernel has it; where it is forbidden, the system's own works, too.
        let _ = sockopt::set_tcp_congestion(stream, "reno");
    }
}

#[cfg(not(target_os = "linux"))]
fn unpace(_stream: &TcpStream) {}

/// Ends the connection when sent bytes are not acknowledged in time, even while no thread writes.
#[cfg(target_os = "linux")]
fn set_user_timeout(stream: &TcpStream) -> io::Result<()> {
    let ms = u32::try_from(LANE_STALL_MS).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, ms)?)
}

/// Elsewhere the deadline of a write finds a dead peer.
#[cfg(not(target_os = "linux"))]
fn set_user_timeout(_stream: &TcpStream) -> io::Result<()> {
    let _ = LANE_STALL_MS;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn within_one_machine_nobody_paces() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            // An IPv4 client also where the listener uses IPv6.
            let near = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (far, _) = listener.accept().unwrap();
            for stream in [near, far] {
                set_up_tcp(&stream, Duration::from_secs(1)).unwrap();
                assert_eq!(sockopt::tcp_congestion(&stream).unwrap(), "reno", "{address}");
            }
        }
    }
}
