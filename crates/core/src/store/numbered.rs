//! Owns the numbers that tenants are known by where two bytes must do: given when one comes, and again when it has left.

use std::collections::HashMap;

use crate::limits::STORE_TENANTS_MAX;

/// Whoever nobody named, and those that came when the table was full.
pub(crate) const COMMON: u16 = 0;

/// What is known of each, by its number; at most [`STORE_TENANTS_MAX`] at a time.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    known: Vec<T>,
    numbers: HashMap<u64, u16>,
    free: Vec<u16>,
}

impl<T> Numbered<T> {
    /// With id 0 alone, which never leaves.
    pub(crate) fn new(common: T) -> Self {
        Self { known: vec![common], numbers: HashMap::from([(0, COMMON)]), free: Vec::new() }
    }

    /// The number of an id that is there.
    pub(crate) fn number(&self, id: u64) -> Option<u16> {
        self.numbers.get(&id).copied()
    }

    /// Whether whoever comes next is one of many.
    pub(crate) fn is_full(&self) -> bool {
        self.numbers.len() >= STORE_TENANTS_MAX
    }

    /// The number of an id, which comes with `new` if it is not there.
    pub(crate) fn enter(&mut self, id: u64, new: impl FnOnce() -> T) -> u16 {
        if let Some(number) = self.number(id) {
            return number;
        }
        if self.is_full() {
            return COMMON;
        }
        let number = if let Some(number) = self.free.pop() {
            *self.get_mut(number) = new();
            number
        } else {
            self.known.push(new());
            u16::try_from(self.known.len() - 1).unwrap_or(COMMON)
        };
        self.numbers.insert(id, number);
        number
    }

    /// An id has nothing any more: its number may be given again.
    pub(crate) fn leave(&mut self, id: u64, number: u16) {
        self.numbers.remove(&id);
        self.free.push(number);
    }

    pub(crate) fn get(&self, number: u16) -> &T {
        &self.known[usize::from(number)]
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> &mut T {
        &mut self.known[usize::from(number)]
    }

    /// All numbers that were ever given, those that are free included.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u16, &T)> {
        (0_u16..).zip(&self.known)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.known.iter_mut()
    }
}
