//! Owns whose records lie on disk: what each tenant has there, and who keeps it when room is made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tenant::account_of;
use crate::tenant::interned::{COMMON, Interned};

/// By number: a place in the index has two bytes for it.
#[derive(Debug, Default)]
pub struct Tenants {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Of each; 0: tenants are not told apart.
    quota: u64,
    known: Interned<Tenant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    id: u64,
    records: u64,
    bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { quota: 0, known: Interned::new(Tenant::default()) }
    }
}

impl State {
    /// Accounts with no more than their equal part; none where all have the same.
    fn lesser_accounts(&self) -> BTreeSet<u16> {
        let mut used: BTreeMap<u16, u64> = BTreeMap::new();
        for (_, tenant) in self.known.all().filter(|(_, tenant)| tenant.records > 0) {
            *used.entry(account_of(tenant.id)).or_default() += tenant.bytes;
        }
        let (count, total) = (used.len() as u64, used.values().sum::<u64>());
        if used.values().all(|bytes| bytes * count <= total) {
            return BTreeSet::new();
        }
        used.retain(|_, bytes| *bytes * count <= total);
        used.into_keys().collect()
    }
}

impl Tenants {
    /// From now on each keeps that many bytes of records, whatever others store; 0: tenants are not told apart.
    pub fn limit(&self, quota: u64) {
        self.state().quota = quota;
    }

    /// A record of a tenant is there; the answer is the number it must leave with.
    pub fn enter(&self, id: u64, bytes: u32) -> u16 {
        let mut state = self.state();
        let number = state.known.enter(id, |id| Tenant { id, ..Tenant::default() });
        let tenant = state.known.get_mut(number);
        tenant.records += 1;
        tenant.bytes += u64::from(bytes);
        number
    }

    /// It is there no more.
    pub fn leave(&self, number: u16, bytes: u32) {
        let mut state = self.state();
        let tenant = state.known.get_mut(number);
        tenant.records -= 1;
        tenant.bytes -= u64::from(bytes);
        let Tenant { id, records, .. } = *tenant;
        if records == 0 && number != COMMON {
            state.known.leave(id, number);
        }
    }

    /// Who has a number.
    pub fn id(&self, number: u16) -> u64 {
        self.state().known.get(number).id
    }

    /// Bytes of a tenant's records.
    pub fn used_by(&self, id: u64) -> u64 {
        let state = self.state();
        state.known.number(id).map_or(0, |number| state.known.get(number).bytes)
    }

    /// Numbers of those who lose nothing to others: all of accounts that have no more than their equal part while another has
    /// more; in the others, all within their quota while anybody is over it there; nobody otherwise.
    pub fn keepers(&self) -> BTreeSet<u16> {
        let state = self.state();
        if state.quota == 0 {
            return BTreeSet::new();
        }
        let lesser = state.lesser_accounts();
        let is_lesser = |tenant: &Tenant| lesser.contains(&account_of(tenant.id));
        let is_over = |tenant: &Tenant| !is_lesser(tenant) && tenant.bytes > state.quota;
        let somebody_is = state.known.all().any(|(_, tenant)| is_over(tenant));
        let is_kept =
            |tenant: &Tenant| is_lesser(tenant) || somebody_is && tenant.bytes <= state.quota;
        let kept = state.known.all().filter(|(_, tenant)| is_kept(tenant));
        kept.map(|(number, _)| number).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
