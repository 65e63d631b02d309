//! Owns the tenants of the records on disk: bytes of each, and the tenants protected from eviction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tenant::account_of;
use crate::tenant::interned::{COMMON, Interned};

/// Tenants by number, because a place in the index has only two bytes for one.
#[derive(Debug, Default)]
pub struct Tenants {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Guaranteed bytes per tenant; 0: tenants are not told apart.
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
    /// Accounts that use at most an equal share; empty where all use the same.
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
    /// Sets the guaranteed bytes per tenant; 0: tenants are not told apart.
    pub fn limit(&self, quota: u64) {
        self.state().quota = quota;
    }

    /// Counts a record of a tenant; returns the number to pass to `leave`.
    pub fn enter(&self, id: u64, bytes: u32) -> u16 {
        let mut state = self.state();
        let number = state.known.enter(id, |id| Tenant { id, ..Tenant::default() });
        let tenant = state.known.get_mut(number);
        tenant.records += 1;
        tenant.bytes += u64::from(bytes);
        number
    }

    /// Counts a record of a tenant less.
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

    /// Id of the tenant with a number.
    pub fn id(&self, number: u16) -> u64 {
        self.state().known.get(number).id
    }

    /// Bytes of a tenant's records.
    pub fn used_by(&self, id: u64) -> u64 {
        let state = self.state();
        state.known.number(id).map_or(0, |number| state.known.get(number).bytes)
    }

    /// Numbers of the tenants protected from eviction: all of accounts with at most an equal share while another has more;
    /// in the other accounts those within quota while one there is over it.
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
