//! Owns the counts of what Valkey refused, by the first word of its answer.

use std::sync::atomic::{AtomicU64, Ordering};

use tierkv_core::error::Error;

use super::connection::REFUSES;

/// Names of refusals; the last one stands for all others.
const NAMES: [&str; 9] = [
    "OOM",
    "LOADING",
    "CLUSTERDOWN",
    "READONLY",
    "MASTERDOWN",
    "NOPERM",
    "NOAUTH",
    "WRONGPASS",
    "other",
];

/// Counts of refusals.
#[derive(Default)]
pub struct Refusals([AtomicU64; NAMES.len()]);

impl Refusals {
    /// Counts a refusal by the server's words. Returns whether the cluster may have changed.
    pub fn note(&self, text: &str) -> bool {
        let word = text.split(' ').next().unwrap_or_default();
        let at = NAMES.iter().position(|known| *known == word).unwrap_or(NAMES.len() - 1);
        self.0[at].fetch_add(1, Ordering::Relaxed);
        ["CLUSTERDOWN", "READONLY", "MASTERDOWN"].contains(&word)
    }

    /// Counts a refusal of a login, which ends a connection.
    pub fn note_error(&self, error: &Error) {
        if let Some(text) = error.text.strip_prefix(REFUSES) {
            self.note(text);
        }
    }

    /// Refusals so far, by name.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }
}
