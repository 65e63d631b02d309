//! Owns the recognition of a connection's protocol, lane or gRPC, by its first bytes, which stay unread.

use rustls::server::Acceptor;

use crate::lane::frame::MAGIC;
use crate::lane::tls::PROTOCOL;
use crate::limits::LISTENER_FIRST_BYTES_MAX;

/// Type of a TLS record with a handshake message.
const TLS_HANDSHAKE: u8 = 22;

/// Protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// More bytes are needed.
    Unclear,
    /// A lane.
    Lane,
    /// gRPC or anything else.
    Other,
}

/// Recognises clear connections by a frame's magic, and TLS by the protocols that the client offers.
pub fn sniff(bytes: &[u8], is_tls: bool) -> Protocol {
    match bytes.first() {
        None => Protocol::Unclear,
        Some(&TLS_HANDSHAKE) if is_tls => by_protocol(bytes),
        _ if bytes.starts_with(&MAGIC) => Protocol::Lane,
        _ if MAGIC.starts_with(bytes) => Protocol::Unclear,
        _ => Protocol::Other,
    }
}

fn by_protocol(bytes: &[u8]) -> Protocol {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        if !matches!(acceptor.read_tls(&mut rest), Ok(1..)) {
            return Protocol::Other;
        }
    }
    match acceptor.accept() {
        Ok(Some(accepted)) => {
            let offered = accepted.client_hello().alpn();
            let is_lane = offered.is_some_and(|mut names| names.any(|name| name == PROTOCOL));
            if is_lane { Protocol::Lane } else { Protocol::Other }
        }
        Ok(None) if bytes.len() < LISTENER_FIRST_BYTES_MAX => Protocol::Unclear,
        // The TLS handshake then tells the client the error.
        Ok(None) | Err(_) => Protocol::Other,
    }
}
