//! Owns what systems do differently about who is at the other end of a socket.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::SendFlags;

/// Never waits, and no signal ends the process when the other end is gone.
#[cfg(not(target_os = "macos"))]
pub const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// macOS has no such flag; Node ignores the signal for the whole process.
#[cfg(target_os = "macos")]
pub const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

/// The user at the other end of a connected Unix socket; None where the system does not tell.
///
/// # Errors
/// The system's, for what is no such socket.
#[cfg(target_os = "linux")]
pub fn uid(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(Some(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw()))
}

/// The user at the other end of a connected Unix socket.
///
/// # Errors
/// The system's, for what is no such socket.
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

/// Not told here.
///
/// # Errors
/// None.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn uid(_socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(None)
}
