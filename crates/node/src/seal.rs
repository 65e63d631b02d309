//! Owns the bindings of the sealing of records: one set of keys per process.

use std::sync::{Arc, Mutex, PoisonError};

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use tierkv_core::error::Error;
use tierkv_core::seal::RecordKeys;

use crate::ffi::{count, hash, number, run};
use crate::inbox::INBOX;
use crate::outbox::OUTBOX;

static KEYS: Mutex<Option<Arc<RecordKeys>>> = Mutex::new(None);

/// State of the record keys.
#[napi(object)]
pub struct RecordKeysStatus {
    /// Whether records are sealed.
    pub is_set: bool,
    /// Records that none of the keys opened.
    pub unopened: f64,
}

/// Seals all records of this process from now on and accepts only sealed ones. `text`: one key per line, 64 hexadecimal
/// digits; the first seals, all open. Throws if other keys are set already; the same text again changes nothing.
#[napi]
pub fn record_keys_set(text: &[u8]) -> napi::Result<()> {
    run(|| {
        let keys = Arc::new(RecordKeys::parse(text)?);
        let mut current = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            if current.is_same(&keys) {
                return Ok(());
            }
            return Err(Error::bad_argument("records are sealed with other keys already"));
        }
        if !OUTBOX.seal_with(&keys) || !INBOX.open_with(&keys) {
            return Err(Error::bad_argument("records are sealed with other keys already"));
        }
        *current = Some(keys);
        Ok(())
    })
}

/// Returns the namespace's name for vaults: derived from the keys, or the namespace itself without keys.
#[napi]
pub fn record_keys_namespace(namespace: &[u8]) -> napi::Result<Buffer> {
    run(|| {
        let namespace = hash("namespace", namespace)?;
        let name = current().map_or(namespace, |keys| keys.namespace(&namespace));
        Ok(name.to_vec().into())
    })
}

/// Returns the tenant's name for vaults: derived from the keys, or the tenant itself without keys; 0 stays 0.
#[napi]
pub fn record_keys_tenant(tenant: f64) -> napi::Result<f64> {
    run(|| {
        let tenant = count("tenant", tenant)?;
        Ok(number(current().map_or(tenant, |keys| keys.tenant(tenant))))
    })
}

/// Returns the current state.
#[napi]
pub fn record_keys_status() -> napi::Result<RecordKeysStatus> {
    run(|| {
        let keys = current();
        let unopened = keys.as_ref().map_or(0, |keys| keys.unopened());
        Ok(RecordKeysStatus { is_set: keys.is_some(), unopened: number(unopened) })
    })
}

pub fn current() -> Option<Arc<RecordKeys>> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
