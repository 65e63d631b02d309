//! Owns the interned ids of tenants, where two bytes must do: given when one comes, and again when it has left.

use std::collections::HashMap;

use super::{account_of, own_tenant};
use crate::limits::{STORE_TENANTS_ALL_MAX, STORE_TENANTS_MAX};

/// Whoever nobody named, and those that came when the table was full.
pub(crate) const COMMON: u16 = 0;

/// What is known of each, by its number. An account has at most [`STORE_TENANTS_MAX`] at a time, so that none takes the places
/// of others.
#[derive(Debug)]
pub(crate) struct Interned<T> {
    known: Vec<T>,
    numbers: HashMap<u64, u16>,
    /// How many of each account are there.
    accounts: HashMap<u16, usize>,
    free: Vec<u16>,
}

impl<T> Interned<T> {
    /// With id 0 alone, which never leaves.
    pub(crate) fn new(common: T) -> Self {
        Self {
            known: vec![common],
            numbers: HashMap::from([(0, COMMON)]),
            accounts: HashMap::from([(0, 1)]),
            free: Vec::new(),
        }
    }

    /// The number of an id that is there.
    pub(crate) fn number(&self, id: u64) -> Option<u16> {
        self.numbers.get(&id).copied()
    }

    /// The id that this one is known by: itself, or where its account has too many, the account's own, or nobody's.
    pub(crate) fn home(&self, id: u64) -> u64 {
        if self.numbers.contains_key(&id) {
            return id;
        }
        let account = account_of(id);
        let own = own_tenant(account);
        let others = self.accounts.get(&account).copied().unwrap_or(0);
        let has_room = others < STORE_TENANTS_MAX && self.numbers.len() < STORE_TENANTS_ALL_MAX;
        if has_room && id != own {
            return id;
        }
        // A place for each account is left when salts have taken all of theirs.
        let is_there = self.numbers.contains_key(&own);
        if is_there || self.known.len() < usize::from(u16::MAX) { own } else { 0 }
    }

    /// The number of an id, which comes with `new` of the id that it is known by if it is not there.
    pub(crate) fn enter(&mut self, id: u64, new: impl FnOnce(u64) -> T) -> u16 {
        let id = self.home(id);
        if let Some(number) = self.number(id) {
            return number;
        }
        let number = if let Some(number) = self.free.pop() {
            *self.get_mut(number) = new(id);
            number
        } else {
            self.known.push(new(id));
            u16::try_from(self.known.len() - 1).unwrap_or(COMMON)
        };
        self.numbers.insert(id, number);
        *self.accounts.entry(account_of(id)).or_default() += 1;
        number
    }

    /// An id has nothing any more: its number may be given again.
    pub(crate) fn leave(&mut self, id: u64, number: u16) {
        self.numbers.remove(&id);
        self.free.push(number);
        let account = account_of(id);
        if let Some(left) = self.accounts.get_mut(&account) {
            *left -= 1;
            if *left == 0 {
                self.accounts.remove(&account);
            }
        }
    }

    /// Whether all that are there are of one account.
    pub(crate) fn is_one_account(&self) -> bool {
        self.accounts.len() == 1
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
