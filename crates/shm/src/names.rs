//! Owns the models of namespaces, for flushes by model: the last names, each with its model's digest.

use tierkv_core::record::Hash;

use crate::layout::{LINE_BYTES, NAMED_AT, NAMES_AT, NAMES_MAX};
use crate::table::Table;
use crate::visibility::Fabric;

/// Offset of the model in a name's line, behind the namespace.
const MODEL: u64 = 32;

impl<F: Fabric> Table<'_, F> {
    fn names() -> impl Iterator<Item = u64> {
        (0..NAMES_MAX).map(|place| NAMES_AT + place * LINE_BYTES)
    }

    /// Remembers the model of a namespace; the oldest name gives way.
    pub fn name(&self, namespace: &Hash, model: &Hash) {
        let known = Self::names().find(|at| self.seen.hash(*at) == *namespace);
        let at = known.unwrap_or_else(|| {
            let count = self.seen.word(NAMED_AT);
            self.seen.set(NAMED_AT, count.wrapping_add(1));
            NAMES_AT + count % NAMES_MAX * LINE_BYTES
        });
        // A half-written name has no model.
        self.seen.set_hash(at + MODEL, &Hash::default());
        self.seen.set_hash(at, namespace);
        self.seen.set_hash(at + MODEL, model);
    }

    /// Returns the namespaces of a model.
    pub fn namespaces_of(&self, model: &Hash) -> Vec<Hash> {
        let named = Self::names().filter(|at| self.seen.hash(*at + MODEL) == *model);
        named.map(|at| self.seen.hash(at)).collect()
    }
}
