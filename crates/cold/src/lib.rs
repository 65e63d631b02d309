//! Owns the list of the stores that others run and that hold our records: Valkey and S3, behind one desk.

pub mod desk;
pub mod goal;
mod parallel;
pub mod s3;
pub mod store;
pub mod valkey;

use std::sync::Arc;

use tierkv_core::archive::Vars;
use tierkv_core::error::{Error, Result};

use self::s3::S3;
use self::store::Store;
use self::valkey::{Login, Valkey};

/// Opens the store of an address by its scheme: the table of stores. `vars` gives environment variables. `ttl_s` is the time to live
/// of a record, which a bucket's own rules replace. Connects to nothing yet.
///
/// # Errors
/// `BAD_ARGUMENT` and `DISK_FAILED` naming the address, the reason and the fix.
pub fn open(address: &str, ttl_s: Option<u64>, vars: Vars) -> Result<Arc<dyn Store>> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    if address.starts_with(valkey::SCHEME) {
        let login =
            Login { user: set("VALKEY_USERNAME"), password: set("VALKEY_PASSWORD"), database: 0 };
        return Ok(Arc::new(Valkey::open(address, login, ttl_s)?));
    }
    if address.starts_with(s3::SCHEME) {
        return Ok(Arc::new(S3::open(address, vars)?));
    }
    Err(Error::bad_argument(format!(
        "{address}: no store has this scheme; write \"valkey://host:6379\" or \"s3://bucket/prefix\""
    )))
}
