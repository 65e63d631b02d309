//! Owns the creation of keys and X.509 certificates for vaults and clients without any; rcgen encodes them.

use napi_derive::napi;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use tierkv_core::error::{Error, Result};
use time::OffsetDateTime;

use crate::ffi::{count, run};

/// Contents of a certificate.
#[napi(object)]
pub struct CertificateOptions {
    /// `ca`, `server` or `client`.
    pub usage: String,
    /// Name of the holder.
    pub common_name: String,
    /// Role of the holder; empty for none.
    pub unit: String,
    /// Host names and IP addresses that the certificate covers.
    pub hosts: Vec<String>,
    /// Validity, in seconds since 1970.
    pub not_before_s: f64,
    pub not_after_s: f64,
}

/// Signer of a certificate: the name in its own certificate, and its key.
#[napi(object)]
pub struct CertificateIssuer {
    pub common_name: String,
    pub key_pem: String,
}

/// A certificate and its key (P-256), as PEM.
#[napi(object)]
pub struct CertifiedKey {
    pub cert_pem: String,
    pub key_pem: String,
}

/// Creates a key and its certificate, signed by the issuer or self-signed.
#[napi]
pub fn make_certificate(
    options: CertificateOptions,
    issuer: Option<CertificateIssuer>,
) -> napi::Result<CertifiedKey> {
    run(|| {
        let key = KeyPair::generate().map_err(refused)?;
        let params = params_of(&options)?;
        let cert = sign(&params, &key, issuer)?;
        Ok(CertifiedKey { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    })
}

fn sign(
    params: &CertificateParams,
    key: &KeyPair,
    issuer: Option<CertificateIssuer>,
) -> Result<Certificate> {
    let Some(CertificateIssuer { common_name, key_pem }) = issuer else {
        return params.self_signed(key).map_err(refused);
    };
    let ca_key = KeyPair::from_pem(&key_pem).map_err(refused)?;
    let mut ca = CertificateParams::default();
    name(&mut ca, &common_name, "");
    params.signed_by(key, &Issuer::new(ca, ca_key)).map_err(refused)
}

fn params_of(options: &CertificateOptions) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(options.hosts.clone()).map_err(refused)?;
    name(&mut params, &options.common_name, &options.unit);
    params.not_before = moment("notBeforeS", options.not_before_s)?;
    params.not_after = moment("notAfterS", options.not_after_s)?;
    params.use_authority_key_identifier_extension = true;
    match options.usage.as_str() {
        "ca" => {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        }
        "server" => hold(&mut params, ExtendedKeyUsagePurpose::ServerAuth),
        "client" => hold(&mut params, ExtendedKeyUsagePurpose::ClientAuth),
        other => {
            let known = "it must be ca, server or client";
            return Err(Error::bad_argument(format!("usage is {other:?}: {known}")));
        }
    }
    Ok(params)
}

fn hold(params: &mut CertificateParams, usage: ExtendedKeyUsagePurpose) {
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
}

fn name(params: &mut CertificateParams, common_name: &str, unit: &str) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if !unit.is_empty() {
        params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    }
}

fn moment(name: &str, seconds: f64) -> Result<OffsetDateTime> {
    let seconds = i64::try_from(count(name, seconds)?).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|error| Error::bad_argument(format!("{name}: {error}")))
}

fn refused(error: rcgen::Error) -> Error {
    Error::bad_argument(format!("certificate: {error}"))
}
