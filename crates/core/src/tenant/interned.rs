//! Owns the interned ids of tenants as numbers of two bytes; a number is reused once its tenant has left.

use std::collections::HashMap;

use super::{account_of, own_tenant};
use crate::limits::{STORE_TENANTS_ALL_MAX, STORE_TENANTS_MAX};

/// Number of tenant 0 and of the tenants that found the table full.
pub(crate) const COMMON: u16 = 0;

/// Values of the known tenants by number. An account has at most [`STORE_TENANTS_MAX`] at a time, so that it cannot fill
/// the table.
#[derive(Debug)]
pub(crate) struct Interned<T> {
    known: Vec<T>,
    numbers: HashMap<u64, u16>,
    /// Tenants per account.
    accounts: HashMap<u16, usize>,
    free: Vec<u16>,
}

impl<T> Interned<T> {
    /// Returns a table with id 0 alone, which never leaves.
    pub(crate) fn new(common: T) -> Self {
        Self {
            known: vec![common],
            numbers: HashMap::from([(0, COMMON)]),
            accounts: HashMap::from([(0, 1)]),
            free: Vec::new(),
        }
    }

    /// Number of an id in the table.
    pub(crate) fn number(&self, id: u64) -> Option<u16> {
        self.numbers.get(&id).copied()
    }

    /// Id under which `id` is counted: itself; above the account's limit the account's own; with a full table 0.
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
        // Own ids may exceed the limit on all tenants, so that salts cannot keep an account out.
        let is_there = self.numbers.contains_key(&own);
        if is_there || self.known.len() < usize::from(u16::MAX) { own } else { 0 }
    }

    /// Returns the number under which `id` is counted; adds it with the value `new` if needed.
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

    /// Removes an id without records, so that its number can be reused.
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

    /// Whether all tenants belong to one account.
    pub(crate) fn is_one_account(&self) -> bool {
        self.accounts.len() == 1
    }

    pub(crate) fn get(&self, number: u16) -> &T {
        &self.known[usize::from(number)]
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> &mut T {
        &mut self.known[usize::from(number)]
    }

    /// All numbers ever used with their values, free ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u16, &T)> {
        (0_u16..).zip(&self.known)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.known.iter_mut()
    }
}
