//! Owns the choice of a TCP socket's buffers: a size of ours only where the system's own tuning would not reach it.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

use rustix::io;
use rustix::net::sockopt;

use crate::limits::LANE_SOCKET_BYTES;

/// Sets the buffers that are worth it. A buffer that is set no longer grows with the path, and Linux cuts it to a limit
/// that is far smaller than what it tunes to by itself where nobody has raised it.
pub fn set_buffers(fd: BorrowedFd<'_>) -> io::Result<()> {
    static SET: LazyLock<[bool; 2]> = LazyLock::new(|| [Side::Receive, Side::Send].map(is_worth));
    let [receive, send] = *SET;
    if receive {
        sockopt::set_socket_recv_buffer_size(fd, LANE_SOCKET_BYTES)?;
    }
    if send {
        sockopt::set_socket_send_buffer_size(fd, LANE_SOCKET_BYTES)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Receive,
    Send,
}

fn is_worth(side: Side) -> bool {
    let [settable, tuned] = match side {
        Side::Receive => ["core/rmem_max", "ipv4/tcp_rmem"],
        Side::Send => ["core/wmem_max", "ipv4/tcp_wmem"],
    };
    let is_tuned = match side {
        Side::Receive => last_number("ipv4/tcp_moderate_rcvbuf") != Some(0),
        Side::Send => true,
    };
    is_larger(last_number(settable), last_number(tuned).filter(|_| is_tuned))
}

/// Whether a buffer that is set is larger than a tuned one. Unknown limits: the system is not Linux, or hides them; what is
/// set is then not cut, and what is tuned not known to be enough.
fn is_larger(settable: Option<u64>, tuned: Option<u64>) -> bool {
    let wanted = LANE_SOCKET_BYTES as u64;
    // Linux doubles what is asked for, for its own use; the limits of tuning include that.
    let set = 2 * settable.map_or(wanted, |most| most.min(wanted));
    tuned.is_none_or(|tuned| set > tuned)
}

/// The last number of a network setting; `None` where there is no such setting.
fn last_number(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    text.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_buffer_is_set_only_where_tuning_gives_less() {
        let usual = Some(208 * KIB);
        assert!(!is_larger(usual, Some(6 * MIB)), "receiving on a usual machine");
        assert!(!is_larger(usual, Some(4 * MIB)), "sending on a usual machine");
        assert!(is_larger(Some(4 * MIB), Some(6 * MIB)), "someone has raised what can be set");
        assert!(!is_larger(Some(64 * MIB), Some(32 * MIB)), "someone has raised both");
        assert!(is_larger(usual, Some(256 * KIB)), "tuning was cut");
        assert!(is_larger(usual, None), "nothing is tuned");
    }
}
