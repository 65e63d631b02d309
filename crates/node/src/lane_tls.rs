//! Owns the bindings of TLS on lanes: PEM texts in, configurations of both ends out.

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::lane::tls::{Client, Identity, Server};

/// A vault's certificate and the clients it accepts; PEM texts.
#[napi(object)]
#[expect(clippy::struct_field_names, reason = "a name says what a text is")]
pub struct LaneServerTls {
    /// The vault's certificate, followed by the intermediate ones.
    pub cert_pem: Buffer,
    pub key_pem: Buffer,
    /// Accepts only clients of these authorities, or with one of these certificates.
    pub client_ca_pem: Option<Buffer>,
}

/// The vaults that a client trusts, and its own certificate; PEM texts.
#[napi(object)]
pub struct LaneClientTls {
    /// Authorities, or the vault's own certificate.
    pub ca_pem: Buffer,
    /// Name that the vault's certificate must have, unless `caPem` contains that certificate.
    pub server_name: String,
    pub cert_pem: Option<Buffer>,
    pub key_pem: Option<Buffer>,
}

impl LaneServerTls {
    pub fn build(&self) -> Result<Server> {
        let identity = Identity { cert_pem: &self.cert_pem, key_pem: &self.key_pem };
        Server::new(identity, self.client_ca_pem.as_deref())
    }
}

impl LaneClientTls {
    pub fn build(&self) -> Result<Client> {
        let identity = match (&self.cert_pem, &self.key_pem) {
            (None, None) => None,
            (Some(cert_pem), Some(key_pem)) => Some(Identity { cert_pem, key_pem }),
            _ => return Err(Error::bad_argument("certPem and keyPem belong together")),
        };
        Client::new(&self.ca_pem, &self.server_name, identity)
    }
}
