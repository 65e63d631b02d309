//! Owns the connections of peers by hand: in clear, or under TLS as rustls itself speaks it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use super::IS_SECURE;
use super::certificates::{NAME, Pair, Proof};
use super::stand::SOON;

static USUAL: LazyLock<Pair> = LazyLock::new(Pair::new);

/// The certificates of all who trust each other.
pub fn usual() -> &'static Pair {
    &USUAL
}

/// One end of a connection.
pub enum Link {
    Clear(TcpStream),
    Local(UnixStream),
    Vault(Box<StreamOwned<ServerConnection, TcpStream>>),
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    pub fn in_clear(address: &str) -> Self {
        if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            return Self::Local(stream);
        }
        Self::Clear(patient(TcpStream::connect(address).unwrap()))
    }

    /// As a client.
    pub fn connect(address: &str) -> Self {
        if !IS_SECURE {
            return Self::in_clear(address);
        }
        let name = ServerName::try_from(NAME).unwrap();
        let session = ClientConnection::new(Arc::new(client_config()), name).unwrap();
        let stream = patient(TcpStream::connect(address).unwrap());
        Self::Client(Box::new(StreamOwned::new(session, stream)))
    }

    /// As a vault.
    pub fn accept(stream: TcpStream) -> Self {
        let stream = patient(stream);
        if !IS_SECURE {
            return Self::Clear(stream);
        }
        let (chain, key) = parts(&usual().vault);
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let session = ServerConnection::new(Arc::new(config)).unwrap();
        Self::Vault(Box::new(StreamOwned::new(session, stream)))
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Local(_) => panic!("no TCP"),
            Self::Clear(stream) => stream,
            Self::Vault(stream) => &stream.sock,
            Self::Client(stream) => &stream.sock,
        }
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.tcp().shutdown(how)
    }

    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.tcp().set_read_timeout(time)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn client_config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(usual().authority.cert.as_bytes()).unwrap()).unwrap();
    let (chain, key) = parts(&usual().client);
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap()
}

fn parts(proof: &Proof) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let cert = CertificateDer::from_pem_slice(proof.cert.as_bytes()).unwrap();
    (vec![cert], PrivateKeyDer::from_pem_slice(proof.key.as_bytes()).unwrap())
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.read(buffer),
            Self::Local(stream) => stream.read(buffer),
            Self::Vault(stream) => stream.read(buffer),
            Self::Client(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.write(bytes),
            Self::Local(stream) => stream.write(bytes),
            Self::Vault(stream) => stream.write(bytes),
            Self::Client(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Clear(stream) => stream.flush(),
            Self::Local(stream) => stream.flush(),
            Self::Vault(stream) => stream.flush(),
            Self::Client(stream) => stream.flush(),
        }
    }
}
