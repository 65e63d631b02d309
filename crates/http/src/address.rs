//! Owns the address of an engine's server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Where an engine's server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A host's name, which is resolved for each new connection, and a port.
    Name(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host:port`, `[v6]:port` or `unix:/path`.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let wrong = || format!("address {text:?}: write host:port or unix:/path");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if bare.is_empty() {
            return Err(wrong());
        }
        let named = |_| Self::Name(bare.into(), port);
        Ok(bare.parse().map_or_else(named, |ip: IpAddr| Self::Ip(SocketAddr::new(ip, port))))
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn an_address_is_an_ip_a_name_or_a_socket() {
        assert_eq!(Address::parse("[::1]:80"), Ok(Address::Ip("[::1]:80".parse().unwrap())));
        assert_eq!(Address::parse("e-0.pods:80"), Ok(Address::Name("e-0.pods".into(), 80)));
        assert_eq!(Address::parse("unix:/run/e"), Ok(Address::Unix("/run/e".into())));
        for wrong in ["", "e", "e:", ":1", "e:65536"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
