//! Owns certificates for tests: made anew each time, by authorities that live as long as a test.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tierkv_core::lane::tls::{Client, Identity, Server};

/// What vaults are called here.
pub const NAME: &str = "vault.test";

/// A certificate and the key to it, both PEM.
#[derive(Clone)]
pub struct Proof {
    pub cert: String,
    pub key: String,
}

impl Proof {
    pub fn identity(&self) -> Identity<'_> {
        Identity { cert_pem: self.cert.as_bytes(), key_pem: self.key.as_bytes() }
    }
}

/// A certificate authority.
pub struct Authority {
    pub cert: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap().pem();
        Self { cert, issuer: Issuer::new(params, key) }
    }

    /// A certificate for `name`, for servers and clients.
    pub fn issue(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Proof {
        let mut params = params(name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        adjust(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Proof { cert, key: key.serialize_pem() }
    }
}

pub fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A vault and a client, each certified by an authority that the other trusts.
pub struct Pair {
    pub authority: Authority,
    pub vault: Proof,
    pub client: Proof,
}

impl Pair {
    pub fn new() -> Self {
        let authority = Authority::new("authority");
        let vault = authority.issue(NAME, |_| {});
        let client = authority.issue("client.test", |_| {});
        Self { authority, vault, client }
    }

    pub fn server(&self) -> Server {
        Server::new(self.vault.identity(), Some(self.authority.cert.as_bytes())).unwrap()
    }

    pub fn client(&self) -> Client {
        let ca = self.authority.cert.as_bytes();
        Client::new(ca, NAME, Some(self.client.identity())).unwrap()
    }
}
