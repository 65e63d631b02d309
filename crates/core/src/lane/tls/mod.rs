//! Owns TLS on lanes: identities and trust from PEM texts; rustls performs the handshake, this room seals the records.

mod handshake;
mod records;
mod secured;
mod trust;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::{ClientConfig, Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConfig, UnbufferedServerConnection};
use rustls::version::TLS13;

use self::handshake::shake;
use self::secured::Secured;
use self::trust::Trusted;
use super::stream::Stream;
use super::wire::Alive;
use crate::error::{Error, Result};

/// Protocol that both ends announce, so that another service with the same certificate is refused.
pub const PROTOCOL: &[u8] = b"tierkv/1";

/// A certificate chain, its own certificate first, and its key, both as PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// `CERTIFICATE` blocks.
    pub cert_pem: &'a [u8],
    /// One `PRIVATE KEY` block (PKCS#8, SEC1 or PKCS#1).
    pub key_pem: &'a [u8],
}

/// A vault's end.
#[derive(Clone)]
pub struct Server(Arc<ServerConfig>);

/// A client's end.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Server {
    /// With `client_ca_pem` only clients are admitted whose certificate is one of these, or is issued by one of these
    /// authorities.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the text that cannot be used.
    pub fn new(identity: Identity<'_>, client_ca_pem: Option<&[u8]>) -> Result<Self> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable("TLS 1.3", &error))?;
        let builder = match client_ca_pem {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let trusted = Trusted::clients(certificates("clientCaPem", pem)?, provider)?;
                builder.with_client_cert_verifier(trusted)
            }
        };
        let (chain, key) = parts(identity)?;
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| unusable("certPem and keyPem", &error))?;
        // A lane lives long and is never resumed.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.enable_secret_extraction = true;
        Ok(Self(Arc::new(config)))
    }

    /// Performs the handshake with the client that connected; over by `until`.
    ///
    /// # Errors
    /// `LANE_FAILED` with the reason, which the peer learns as far as TLS tells it.
    pub fn accept(
        &self,
        stream: Arc<dyn Stream>,
        until: Instant,
        alive: &dyn Alive,
    ) -> Result<Arc<dyn Stream>> {
        let peer = UnbufferedServerConnection::new(Arc::clone(&self.0))
            .map_err(|error| handshake::refused(&error))?;
        let (secrets, keys) = shake(peer, &*stream, until, alive)?;
        Ok(Arc::new(Secured::new(stream, secrets, keys)?))
    }
}

impl Client {
    /// Trusts a vault whose certificate names `server_name` and is issued by an authority in `ca_pem`, or whose certificate
    /// is itself in `ca_pem`, whatever its name.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the text that cannot be used.
    pub fn new(ca_pem: &[u8], server_name: &str, identity: Option<Identity<'_>>) -> Result<Self> {
        Self::open(ca_pem, &[server_name], identity, Some(PROTOCOL))
    }

    /// Trusts a service that others run, and that has several addresses: its certificate names the one that is dialled, or one of
    /// `names`. The first of `names` is dialled unless `named` says otherwise.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the text that cannot be used.
    pub fn of_service(
        ca_pem: &[u8],
        names: &[&str],
        identity: Option<Identity<'_>>,
    ) -> Result<Self> {
        Self::open(ca_pem, names, identity, None)
    }

    /// The same client for another address of the service.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for what is neither a host's name nor an IP address.
    pub fn named(&self, server_name: &str) -> Result<Self> {
        Ok(Self { config: Arc::clone(&self.config), name: name_of(server_name)? })
    }

    fn open(
        ca_pem: &[u8],
        names: &[&str],
        identity: Option<Identity<'_>>,
        protocol: Option<&[u8]>,
    ) -> Result<Self> {
        let names = names.iter().map(|name| name_of(name)).collect::<Result<Vec<_>>>()?;
        let name = names.first().cloned().ok_or_else(|| unusable("serverName", &"none"))?;
        let provider = provider();
        let trusted =
            Trusted::servers(certificates("caPem", ca_pem)?, names, Arc::clone(&provider))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable("TLS 1.3", &error))?
            .dangerous()
            .with_custom_certificate_verifier(trusted);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = parts(identity)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| unusable("certPem and keyPem", &error))?
            }
        };
        config.resumption = Resumption::disabled();
        config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
        config.enable_secret_extraction = true;
        Ok(Self { config: Arc::new(config), name })
    }

    /// Performs the handshake with the connected vault; over by `until`.
    ///
    /// # Errors
    /// `LANE_FAILED` with the reason.
    pub fn connect(
        &self,
        stream: Arc<dyn Stream>,
        until: Instant,
        alive: &dyn Alive,
    ) -> Result<Arc<dyn Stream>> {
        let peer = UnbufferedClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(|error| handshake::refused(&error))?;
        let (secrets, keys) = shake(peer, &*stream, until, alive)?;
        Ok(Arc::new(Secured::new(stream, secrets, keys)?))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Only AES-GCM, because processors compute it in hardware.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn name_of(server_name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(server_name.to_owned())
        .map_err(|error| unusable(&format!("serverName {server_name:?}"), &error))
}

fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| unusable(name, &error))?;
    if certificates.is_empty() {
        return Err(unusable(name, &"it holds no certificate"));
    }
    Ok(certificates)
}

type Parts = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn parts(identity: Identity<'_>) -> Result<Parts> {
    let chain = certificates("certPem", identity.cert_pem)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem)
        .map_err(|error| unusable("keyPem", &error))?;
    Ok((chain, key))
}

fn unusable(name: &str, why: &dyn fmt::Display) -> Error {
    Error::bad_argument(format!("{name} cannot be used: {why}"))
}
