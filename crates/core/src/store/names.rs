//! Owns the namespaces of the records in memory, numbered while they have records.

use std::collections::HashMap;

use crate::record::Hash;

/// Namespaces, interned.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<Hash, u32>,
    /// Each namespace with its number of records.
    known: Vec<(Hash, u32)>,
    free: Vec<u32>,
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn number(&self, name: &Hash) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    pub(super) fn name(&self, number: u32) -> &Hash {
        &self.known[number as usize].0
    }

    /// Counts one more record of a namespace; returns its number.
    pub(super) fn join(&mut self, name: &Hash) -> u32 {
        let number = *self.numbers.entry(*name).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.known.push((*name, 0));
                u32::try_from(self.known.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let (place, records) = &mut self.known[number as usize];
        *place = *name;
        *records += 1;
        number
    }

    /// Counts one record less; frees the number at zero.
    pub(super) fn leave(&mut self, number: u32) {
        let (name, records) = &mut self.known[number as usize];
        *records -= 1;
        if *records == 0 {
            self.numbers.remove(name);
            self.free.push(number);
        }
    }
}
