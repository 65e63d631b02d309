//! Owns the bindings over a link's goodput: the one handle that is an object, so that it goes with whoever holds it.

use std::sync::Arc;

use napi_derive::napi;

/// Bytes per second of one direction of a link, all transfers together.
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

    /// A transfer begins, of which `waitMs` will be waiting; `isFar`: for an archive, too. `end` must be called once.
    #[napi]
    pub fn begin(&self, wait_ms: f64, is_far: bool) {
        self.0.begin(wait_ms, is_far);
    }

    /// Bytes have passed that no lane has brought.
    #[napi]
    pub fn moved(&self, bytes: u32) {
        self.0.moved(bytes.into());
    }

    /// A transfer ends, of which `begin` said the same; `isCut`: it was given up.
    #[napi]
    pub fn end(&self, is_cut: bool, is_far: bool) {
        self.0.end(is_cut, is_far);
    }

    /// Bytes per second, with a rate to believe in before the first measurement; null: nothing is known.
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
