//! Owns the binding of a link's goodput: the one handle that is an object, so that it is freed with its last reference.

use std::sync::Arc;

use napi_derive::napi;

/// Goodput of one direction of a link, in bytes per second over all transfers.
#[napi]
#[derive(Default)]
pub struct Goodput(pub(crate) Arc<tierkv_core::goodput::Goodput>);

#[napi]
impl Goodput {
    #[napi(constructor)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a transfer whose first `waitMs` are waiting; `isFar` says that it may also wait for an archive. `end` must follow once.
    #[napi]
    pub fn begin(&self, wait_ms: f64, is_far: bool) {
        self.0.begin(wait_ms, is_far);
    }

    /// Counts bytes that no lane has counted.
    #[napi]
    pub fn moved(&self, bytes: u32) {
        self.0.moved(bytes.into());
    }

    /// Ends a transfer; `isCut` says that it was given up, `isFar` is as in `begin`.
    #[napi]
    pub fn end(&self, is_cut: bool, is_far: bool) {
        self.0.end(is_cut, is_far);
    }

    /// Bytes per second; `prior` stands in before the first measurement; null if nothing is known.
    #[napi(ts_return_type = "number | null")]
    #[must_use]
    pub fn rate(&self, prior: Option<f64>) -> Option<f64> {
        self.0.rate(prior)
    }

    /// Milliseconds since the last measurement; null before the first.
    #[napi(ts_return_type = "number | null")]
    #[must_use]
    pub fn idle_ms(&self) -> Option<f64> {
        self.0.idle_ms()
    }
}
