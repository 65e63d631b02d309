//! Owns who is at the other end of a Unix socket.

use napi_derive::napi;
use tierkv_core::error::Error;

use crate::skin::run;

/// The user at the other end of a connected Unix socket; null where the system does not tell.
#[napi]
pub fn peer_uid(fd: i32) -> napi::Result<Option<u32>> {
    run(|| uid_of(fd))
}

#[cfg(target_os = "linux")]
fn uid_of(fd: i32) -> Result<Option<u32>, Error> {
    use std::os::fd::BorrowedFd;

    if fd < 0 {
        return Err(Error::bad_argument(format!("fd is {fd}: it must be an open socket")));
    }
    // SAFETY: Node keeps the socket open for the duration of this call, which is its own.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|error| Error::bad_argument(format!("fd {fd}: its peer: {error}")))?;
    Ok(Some(peer.uid.as_raw()))
}

#[cfg(not(target_os = "linux"))]
fn uid_of(_fd: i32) -> Result<Option<u32>, Error> {
    Ok(None)
}
