//! Owns the form of Valkey's address.

use tierkv_core::error::{Error, Result};

/// Scheme of a server's address, in the clear.
pub const SCHEME: &str = "valkey://";
/// Scheme of a server's address with TLS.
pub const TLS_SCHEME: &str = "valkeys://";

/// `valkey://host:port[,host:port...][/database]`, or `valkeys://`.
#[derive(Debug, PartialEq, Eq)]
pub struct Address {
    pub hosts: Vec<String>,
    pub database: i64,
    pub is_secure: bool,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the address, the reason and the fix.
    pub fn parse(address: &str) -> Result<Self> {
        let refused = |reason: &str| {
            let fix = "write \"valkey://host:6379\", or \"valkeys://host:6379\" for TLS";
            Error::bad_argument(format!("{address}: {reason}; {fix}"))
        };
        let (place, is_secure) = match address.strip_prefix(TLS_SCHEME) {
            Some(place) => (place, true),
            None => (address.strip_prefix(SCHEME).ok_or_else(|| refused("another scheme"))?, false),
        };
        if place.contains('@') {
            let reason = "user and password stand in [cluster] store_user and store_password, or in VALKEY_USERNAME and VALKEY_PASSWORD";
            return Err(refused(reason));
        }
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        let database = if database.is_empty() { "0" } else { database };
        let database = database.parse().map_err(|_| refused("no number of a database"))?;
        let is_address = |host: &str| {
            host.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        };
        if !hosts.split(',').all(is_address) {
            return Err(refused("no list of host:port"));
        }
        let hosts = hosts.split(',').map(str::to_owned).collect();
        Ok(Self { hosts, database, is_secure })
    }
}
