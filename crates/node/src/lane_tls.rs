//! Owns the bindings over TLS on lanes: PEM texts in, what both ends are made of out.

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::lane::tls::{Client, Identity, Server};

/// What a vault's lanes prove and demand; texts in PEM.
#[napi(object)]
#[expect(clippy::struct_field_names, reason = "a name says what a text is")]
pub struct LaneServerTls {
    /// The vault's certificate, then those between it and its authority.
    pub cert_pem: Buffer,
    pub key_pem: Buffer,
    /// Only clients of these authorities, or with one of these certificates, come in.
    pub client_ca_pem: Option<Buffer>,
}

/// What a client trusts and proves; texts in PEM.
#[napi(object)]
pub struct LaneClientTls {
    /// Authorities, or the very certificate of the vault.
    pub ca_pem: Buffer,
    /// What the vault's certificate must be for, unless it is one of `caPem` itself.
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
