//! Owns the counters of a lane server; the names are those of the vault's own counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::store::ItemStatus;

/// Counters by name.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<&'static str, u64>>);

impl Counts {
    /// Adds `n`.
    pub fn add(&self, name: &'static str, n: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += n;
    }

    /// All of them.
    #[must_use]
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(name, n)| (*name, *n)).collect()
    }

    /// Counts the outcome of one offered record.
    pub fn add_outcome(&self, status: ItemStatus, record_bytes: u64) {
        match status {
            ItemStatus::Accepted | ItemStatus::Durable => {
                self.add("stored", 1);
                self.add("stored_bytes", record_bytes);
            }
            ItemStatus::Present => self.add("present", 1),
            ItemStatus::BadRecord => self.add("refused_bad_record", 1),
            ItemStatus::WrongClass => self.add("refused_wrong_class", 1),
            ItemStatus::WrongKey => self.add("refused_wrong_key", 1),
            ItemStatus::TooLarge => self.add("refused_too_large", 1),
            ItemStatus::OverBudget => self.add("refused_over_budget", 1),
            ItemStatus::Incomplete => self.add("refused_incomplete", 1),
            ItemStatus::Flushed => self.add("refused_flushed", 1),
            ItemStatus::Draining => self.add("refused_draining", 1),
            _ => self.add("refused_unknown", 1),
        }
    }
}
