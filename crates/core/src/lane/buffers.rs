//! Owns the choice of a TCP socket's buffers: a size of ours only where the system's own tuning would not reach it.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;

use rustix::io;
use rustix::net::sockopt;

use crate::limits::LANE_SOCKET_BYTES;

/// Sets the buffers that are worth it. A buffer that is set no longer grows with the path, and Linux cuts it to a limit
/// that is far smaller than the reach of its own tuning where nobody has raised it.
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
    is_enough(last_number(settable), last_number(tuned).filter(|_| is_tuned))
}

/// Whether a buffer that is set has the whole wanted size, or at least what tuning may reach. `None` for an unknown limit:
/// the system is not Linux, or hides it.
fn is_enough(settable: Option<u64>, tuned: Option<u64>) -> bool {
    let wanted = LANE_SOCKET_BYTES as u64;
    let set = settable.map_or(wanted, |most| most.min(wanted));
    // Linux doubles what is asked for, for its own use; the limits of tuning include that.
    set == wanted || tuned.is_none_or(|tuned| 2 * set >= tuned)
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
    fn a_buffer_is_set_only_where_it_has_its_size_or_tuning_gives_less() {
        let usual = Some(208 * KIB);
        assert!(!is_enough(usual, Some(6 * MIB)), "receiving on a usual machine");
        assert!(!is_enough(usual, Some(4 * MIB)), "sending on a usual machine");
        assert!(!is_enough(Some(2 * MIB), Some(6 * MIB)), "raised, and less than tuning");
        assert!(is_enough(Some(4 * MIB), Some(6 * MIB)), "raised to what lanes want");
        assert!(is_enough(Some(64 * MIB), Some(32 * MIB)), "both are raised");
        assert!(is_enough(usual, Some(256 * KIB)), "tuning was cut");
        assert!(is_enough(usual, None), "nothing is tuned");
    }
}
