//! Owns the memory that open requests keep besides records: a small reserve per session, and a pool shared by all sessions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::session::Session;
use crate::error::{Error, Result};
use crate::limits::{LANE_ANSWERS_BYTES_MAX, LANE_KEPT_EACH_BYTES, LANE_REQUESTS_MAX};

/// Bytes left in the pool that requests of all sessions share beyond their sessions' reserves.
pub struct Pool(AtomicUsize);

/// Memory kept for one request, freed when dropped.
pub struct Kept {
    bytes: usize,
    /// Pool it was taken from; `None` for the session's own reserve.
    pool: Option<Arc<Pool>>,
}

impl Pool {
    pub fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Option<Kept> {
        let less = |free: usize| free.checked_sub(bytes);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        Some(Kept { bytes, pool: Some(Arc::clone(self)) })
    }
}

impl Kept {
    /// Bytes charged to the session's own reserve.
    pub fn own_bytes(&self) -> usize {
        if self.pool.is_none() { self.bytes } else { 0 }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.0.fetch_add(self.bytes, Ordering::AcqRel);
        }
    }
}

impl Session {
    /// Reserves memory for a request, or returns why not. A session's own reserve is not shared, so that sessions that keep
    /// all they can do not lock out small requests.
    pub(super) fn admit(
        &self,
        request: u32,
        bytes: usize,
    ) -> std::result::Result<Kept, &'static str> {
        if self.shared.is_draining.load(Ordering::Acquire) {
            return Err("the vault stops");
        }
        let own = {
            let mut state = self.state();
            let is_open = state.fetch(request).is_some() || state.stores.contains_key(&request);
            if is_open || state.fetches.len() + state.stores.len() >= LANE_REQUESTS_MAX {
                return Err("too many requests are open");
            }
            state.own_bytes()
        };
        if own + bytes <= LANE_KEPT_EACH_BYTES {
            return Ok(Kept { bytes, pool: None });
        }
        let full =
            "open requests keep all the memory there is for them: ask for fewer keys at a time";
        self.shared.pool.take(bytes).ok_or(full)
    }

    /// Stops reading from a client that does not read its answers.
    pub(super) fn await_readers(&self) -> Result<()> {
        let is_full = |state: &mut super::requests::State| {
            state.closed.is_none() && state.answers_bytes > LANE_ANSWERS_BYTES_MAX
        };
        let stall = self.shared.options.timing.stall;
        let waited = self.taken.wait_timeout_while(self.state(), stall, is_full);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.check()?;
        if timeout.timed_out() {
            return Err(Error::lane_failed("the client asks and does not read the answers"));
        }
        Ok(())
    }
}
