//! Owns the differences between systems in socket flags and peer credentials.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, SendFlags};

/// The call never blocks, and a closed peer raises no signal.
#[cfg(not(target_os = "macos"))]
pub const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// macOS has no such flag, but Node ignores the signal for the whole process.
#[cfg(target_os = "macos")]
pub const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

/// The same for a call that may wait.
#[cfg(not(target_os = "macos"))]
pub const WAITING_SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
/// macOS has no such flag.
#[cfg(target_os = "macos")]
pub const WAITING_SEND_FLAGS: SendFlags = SendFlags::empty();

/// A descriptor that comes with the bytes is not passed on to programs that this process starts.
#[cfg(not(target_os = "macos"))]
pub const RECV_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
/// macOS has no such flag, and nothing is lent there.
#[cfg(target_os = "macos")]
pub const RECV_FLAGS: RecvFlags = RecvFlags::empty();

/// User at the other end of a connected Unix socket; `None` where the system does not tell.
///
/// # Errors
/// Errors of the system, for another kind of socket.
#[cfg(target_os = "linux")]
pub fn uid(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(Some(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw()))
}

/// User at the other end of a connected Unix socket.
///
/// # Errors
/// Errors of the system, for another kind of socket.
#[cfg(target_os = "macos")]
pub fn uid(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    use std::os::fd::AsRawFd;
    let (mut uid, mut gid) = (0, 0);
    // SAFETY: the descriptor is open for the call, and both results are this function's own.
    match unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut uid, &raw mut gid) } {
        0 => Ok(Some(uid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `None`, because this system does not tell.
///
/// # Errors
/// None.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn uid(_socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(None)
}
