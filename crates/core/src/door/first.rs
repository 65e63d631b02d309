//! Owns what the first bytes of a connection say: a lane, or gRPC. They are looked at, and left for whoever reads.

use rustls::server::Acceptor;

use crate::lane::frame::MAGIC;
use crate::lane::tls::PROTOCOL;
use crate::limits::DOOR_FIRST_BYTES_MAX;

/// Type of a TLS record with a handshake message.
const TLS_HANDSHAKE: u8 = 22;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// More bytes must come before it is known.
    Unclear,
    /// A lane.
    Lane,
    /// Somebody else: gRPC, or what is no use to anybody.
    Other,
}

/// In the clear by the magic of a frame; over TLS by the protocols that the client offers.
pub fn first(bytes: &[u8], is_tls: bool) -> First {
    match bytes.first() {
        None => First::Unclear,
        Some(&TLS_HANDSHAKE) if is_tls => by_protocol(bytes),
        _ if bytes.starts_with(&MAGIC) => First::Lane,
        _ if MAGIC.starts_with(bytes) => First::Unclear,
        _ => First::Other,
    }
}

fn by_protocol(bytes: &[u8]) -> First {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        if !matches!(acceptor.read_tls(&mut rest), Ok(1..)) {
            return First::Other;
        }
    }
    match acceptor.accept() {
        Ok(Some(accepted)) => {
            let offered = accepted.client_hello().alpn();
            let is_lane = offered.is_some_and(|mut names| names.any(|name| name == PROTOCOL));
            if is_lane { First::Lane } else { First::Other }
        }
        Ok(None) if bytes.len() < DOOR_FIRST_BYTES_MAX => First::Unclear,
        // Whoever shakes hands tells him what is wrong.
        Ok(None) | Err(_) => First::Other,
    }
}
