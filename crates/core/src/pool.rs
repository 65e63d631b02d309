//! Owns the memory that records pass through: a bounded total, and freed buffers kept for the next one.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Code, Error, Result};

/// A bounded source of buffers. Records of one geometry have one length, so freed buffers fit exactly.
#[derive(Debug)]
pub struct Pool {
    what: &'static str,
    bytes_max: usize,
    idle_bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live_bytes: usize,
    live_buffers: usize,
    idle_bytes: usize,
    idle: HashMap<usize, Vec<Box<[u8]>>>,
}

impl Pool {
    /// At most `bytes_max` in use at a time; at most `idle_bytes_max` kept for reuse.
    #[must_use]
    pub fn new(what: &'static str, bytes_max: usize, idle_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { what, bytes_max, idle_bytes_max, state: Mutex::default() })
    }

    /// A buffer of exactly `bytes` bytes, with whatever stood in it before.
    ///
    /// # Errors
    /// `NO_MEMORY` when the total would exceed the limit.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<PooledBuffer> {
        let reused = {
            let mut state = self.state();
            if bytes > self.bytes_max.saturating_sub(state.live_bytes) {
                return Err(self.exhausted(bytes, state.live_bytes));
            }
            state.live_bytes += bytes;
            state.live_buffers += 1;
            let reused = state.idle.get_mut(&bytes).and_then(Vec::pop);
            state.idle_bytes -= reused.as_ref().map_or(0, |buffer| buffer.len());
            reused
        };
        if let Some(buffer) = reused.or_else(|| allocate(bytes)) {
            return Ok(PooledBuffer { buffer, pool: Arc::clone(self) });
        }
        let mut state = self.state();
        state.live_bytes -= bytes;
        state.live_buffers -= 1;
        Err(self.exhausted(bytes, state.live_bytes))
    }

    fn exhausted(&self, bytes: usize, live_bytes: usize) -> Error {
        let Self { what, bytes_max, .. } = self;
        let text = format!("{bytes} bytes for the {what}: {live_bytes} of {bytes_max} are in use");
        Error::new(Code::NoMemory, text)
    }

    /// (buffers, bytes) in use.
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        let state = self.state();
        (state.live_buffers, state.live_bytes)
    }

    fn put_back(&self, buffer: Box<[u8]>) {
        let bytes = buffer.len();
        let mut state = self.state();
        state.live_bytes -= bytes;
        state.live_buffers -= 1;
        if bytes > self.idle_bytes_max {
            return;
        }
        if state.idle_bytes + bytes > self.idle_bytes_max {
            // Lengths of engines that are gone must not keep the new ones out.
            state.idle.clear();
            state.idle_bytes = 0;
        }
        state.idle_bytes += bytes;
        state.idle.entry(bytes).or_default().push(buffer);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// New memory, or none where the allocator refuses.
fn allocate(bytes: usize) -> Option<Box<[u8]>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).ok()?;
    buffer.resize(bytes, 0);
    Some(buffer.into_boxed_slice())
}

/// A buffer that goes back to its pool when dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    buffer: Box<[u8]>,
    pool: Arc<Pool>,
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.buffer));
    }
}
