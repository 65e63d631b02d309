//! Owns the list of the stores that others run and that hold our records: Valkey and S3, behind one desk.

pub mod desk;
pub mod goal;
mod parallel;
pub mod s3;
pub mod store;
pub mod valkey;

use std::sync::Arc;

use tierkv_core::archive::{Vars, roots_file};
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::tls;

use self::s3::S3;
use self::store::Store;
use self::valkey::{Login, Options, SCHEME, TLS_SCHEME, Valkey};

/// How a deployment uses a store; all of it concerns Valkey.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Time to live of a record in s, which a bucket's own rules replace.
    pub ttl_s: Option<u64>,
    /// Before all keys.
    pub prefix: String,
    /// Number of the class of all records.
    pub class: u8,
    /// Whether replicas are read.
    pub reads_replicas: bool,
    /// User of the access list; none: `VALKEY_USERNAME`.
    pub user: Option<String>,
    /// None: `VALKEY_PASSWORD`.
    pub password: Option<String>,
    /// Certificates of the authorities of `valkeys://`, as PEM; none: the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Certificate and key of this client, as PEM, where the server asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Opens the store of an address by its scheme: the table of stores. `vars` gives environment variables. Connects to nothing yet.
///
/// # Errors
/// `BAD_ARGUMENT` and `STORE_FAILED` naming the address, the reason and the fix.
pub fn open(address: &str, settings: Settings, vars: Vars) -> Result<Arc<dyn Store>> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    if address.starts_with(SCHEME) || address.starts_with(TLS_SCHEME) {
        let tls = address.starts_with(TLS_SCHEME).then(|| secured(address, &settings));
        let Settings { ttl_s, prefix, class, reads_replicas, user, password, .. } = settings;
        let login = Login {
            user: user.or_else(|| set("VALKEY_USERNAME")),
            password: password.or_else(|| set("VALKEY_PASSWORD")),
            database: 0,
            tls: tls.transpose()?,
        };
        let options = Options { login, ttl_s, prefix, class, reads_replicas };
        return Ok(Arc::new(Valkey::open(address, options)?));
    }
    if address.starts_with(s3::SCHEME) {
        return Ok(Arc::new(S3::open(address, vars)?));
    }
    Err(Error::bad_argument(format!(
        "{address}: no store has this scheme; write \"valkeys://host:6379\" or \"s3://bucket/prefix\""
    )))
}

/// TLS to the servers of an address.
fn secured(address: &str, settings: &Settings) -> Result<tls::Client> {
    let hosts = valkey::hosts_of(address)?;
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let own = settings.ca_pem.clone();
    let ca = own.or_else(|| roots_file().and_then(|file| std::fs::read(file).ok()));
    let ca = ca.ok_or_else(|| {
        let text =
            "[cluster] store_tls_ca: the system has no file of trusted authorities; name one";
        Error::new(Code::StoreFailed, text)
    })?;
    let identity = settings.identity.as_ref();
    let identity = identity.map(|(cert_pem, key_pem)| tls::Identity { cert_pem, key_pem });
    tls::Client::of_service(&ca, &hosts, identity)
        .map_err(|error| Error::bad_argument(format!("{address}: TLS: {}", error.text)))
}
