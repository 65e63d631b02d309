//! Owns the bindings of a store's sessions.

use napi_derive::napi;
use tierkv_core::store::{RecordKey, SessionStats as Stats};

use crate::ffi::{number, run};
use crate::store::{STORES, keys};

/// Current numbers of one session.
#[napi(object)]
pub struct SessionStats {
    /// Keys of the session.
    pub keys: f64,
    /// Records of these keys in memory.
    pub records: f64,
    /// Records among them that are protected from eviction.
    pub kept: f64,
    pub kept_bytes: f64,
}

impl From<Stats> for SessionStats {
    fn from(stats: Stats) -> Self {
        Self {
            keys: number(stats.keys),
            records: number(stats.records),
            kept: number(stats.kept),
            kept_bytes: number(stats.kept_bytes),
        }
    }
}

/// Adds records, stored or arriving, to a session. With `is_kept` all its records are protected from eviction, as far as
/// the quota goes. Older keys of the groups in `superseded` leave the session and go first.
#[napi]
pub fn store_session_add(
    id: u32,
    session: u32,
    namespace: &[u8],
    packed: &[u8],
    superseded: Vec<u16>,
    is_kept: bool,
) -> napi::Result<SessionStats> {
    run(|| {
        let store = STORES.get(id)?;
        let keys: Vec<RecordKey> = keys(namespace, packed)?.collect();
        Ok(store.add_to_session(session, &keys, &superseded, is_kept).into())
    })
}

/// Forgets a session; with `goes_first` its records are evicted before others. Returns how many newly go first.
#[napi]
pub fn store_session_end(id: u32, session: u32, goes_first: bool) -> napi::Result<u32> {
    run(|| {
        let store = STORES.get(id)?;
        Ok(u32::try_from(store.end_session(session, goes_first)).unwrap_or(u32::MAX))
    })
}

/// Returns the current numbers of a session.
#[napi]
pub fn store_session_stats(id: u32, session: u32) -> napi::Result<SessionStats> {
    run(|| Ok(STORES.get(id)?.session_stats(session).into()))
}
