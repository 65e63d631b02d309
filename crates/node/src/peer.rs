//! Owns operations on a Unix socket that Node lacks: the user of the peer, and passing a descriptor to it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use napi_derive::napi;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
use tierkv_core::error::Error;
use tierkv_core::peer::{self, SEND_FLAGS};

use crate::arena::ARENAS;
use crate::ffi::run;

/// User at the other end of a connected Unix socket; null where the system does not tell.
#[napi]
pub fn peer_uid(fd: i32) -> napi::Result<Option<u32>> {
    run(|| {
        peer::uid(socket_at(fd)?)
            .map_err(|error| Error::bad_argument(format!("fd {fd}: its peer: {error}")))
    })
}

/// Sends `frame` on a Unix socket with the arena's descriptor (`SCM_RIGHTS`); returns the bytes sent, 0 if the socket takes
/// none now.
#[napi]
pub fn send_arena(fd: i32, arena: u32, frame: &[u8]) -> napi::Result<u32> {
    run(|| {
        let socket = socket_at(fd)?;
        let arena = ARENAS.get(arena)?;
        let descriptors = [arena.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Error::bad_argument("no room for a descriptor"));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(frame)], &mut control, SEND_FLAGS) {
            Ok(sent) => Ok(u32::try_from(sent).unwrap_or(u32::MAX)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(Error::bad_argument(format!("fd {fd}: sending the arena: {errno}"))),
        }
    })
}

fn socket_at<'a>(fd: i32) -> Result<BorrowedFd<'a>, Error> {
    if fd < 0 {
        return Err(Error::bad_argument(format!("fd is {fd}: it must be an open socket")));
    }
    // SAFETY: Node keeps its socket open during this call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
