//! Owns the trust of a lane's end: certificates issued by an authority, or a pinned certificate.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore,
    SignatureScheme,
};

use super::unusable;
use crate::error::Result;

/// The standard verifier, which refuses a self-signed certificate that may sign others, and the pinned certificates
/// exchanged out of band, which need no signature. Validity periods apply to both.
#[derive(Debug)]
pub struct Trusted<V: ?Sized> {
    pinned: Vec<CertificateDer<'static>>,
    /// Names of which a server's certificate may have any, beside the dialled one.
    names: Vec<ServerName<'static>>,
    usual: Arc<V>,
}

impl Trusted<WebPkiServerVerifier> {
    pub fn servers(
        certificates: Vec<CertificateDer<'static>>,
        names: Vec<ServerName<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>> {
        let roots = roots("caPem", &certificates)?;
        let usual = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| unusable("caPem", &error))?;
        Ok(Arc::new(Self { pinned: certificates, names, usual }))
    }
}

impl Trusted<dyn ClientCertVerifier> {
    pub fn clients(
        certificates: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>> {
        let roots = roots("clientCaPem", &certificates)?;
        let usual = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| unusable("clientCaPem", &error))?;
        Ok(Arc::new(Self { pinned: certificates, names: Vec::new(), usual }))
    }
}

impl<V: ?Sized> Trusted<V> {
    fn decide<T>(
        &self,
        certificate: &CertificateDer<'_>,
        usual: std::result::Result<T, TlsError>,
        accepted: T,
    ) -> std::result::Result<T, TlsError> {
        match usual {
            Err(error) if !is_about_time(&error) && self.is_pinned(certificate) => Ok(accepted),
            decided => decided,
        }
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> bool {
        self.pinned.iter().any(|pinned| pinned.as_ref() == certificate.as_ref())
    }
}

/// Whether a certificate is refused for its validity period, which the verifier checks first.
fn is_about_time(error: &TlsError) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        TlsError::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        )
    )
}

fn is_about_name(error: &TlsError) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, TlsError::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

fn roots(name: &str, certificates: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|error| unusable(name, &error))?;
    }
    Ok(Arc::new(roots))
}

type Checked = std::result::Result<HandshakeSignatureValid, TlsError>;

impl ServerCertVerifier for Trusted<WebPkiServerVerifier> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let check =
            |name| self.usual.verify_server_cert(certificate, intermediates, name, ocsp, now);
        let others = self.names.iter().filter(|other| *other != name);
        let usual = others.fold(check(name), |checked, other| match checked {
            Err(error) if is_about_name(&error) => check(other).map_err(|_| error),
            checked => checked,
        });
        self.decide(certificate, usual, ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Checked {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Checked {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Trusted<dyn ClientCertVerifier> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, TlsError> {
        let usual = self.usual.verify_client_cert(certificate, intermediates, now);
        self.decide(certificate, usual, ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Checked {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Checked {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
