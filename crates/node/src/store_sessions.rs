//! Owns the bindings over what a store knows of sessions.

use napi_derive::napi;
use tierkv_core::store::{RecordKey, SessionStats as Stats};

use crate::ffi::{number, run};
use crate::store::{STORES, keys};

/// One session as it is now.
#[napi(object)]
pub struct SessionStats {
    /// Blocks of all shards that are known to be its own.
    pub keys: f64,
    /// Of their records, those in memory.
    pub records: f64,
    /// Of these, those that are not evicted.
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

/// Takes records, stored or on their way, for those of a session. With `is_kept` all of it is kept, as far as the quota goes; others
/// of the groups in `superseded` leave it, and go first.
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

/// Forgets a session; with `goes_first` its records go before others. How many do now.
#[napi]
pub fn store_session_end(id: u32, session: u32, goes_first: bool) -> napi::Result<u32> {
    run(|| {
        let store = STORES.get(id)?;
        Ok(u32::try_from(store.end_session(session, goes_first)).unwrap_or(u32::MAX))
    })
}

/// How a session is doing.
#[napi]
pub fn store_session_stats(id: u32, session: u32) -> napi::Result<SessionStats> {
    run(|| Ok(STORES.get(id)?.session_stats(session).into()))
}
