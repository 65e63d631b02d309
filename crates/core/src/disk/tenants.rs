//! Owns whose records lie on disk: what each tenant has there, and who keeps it when room is made.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::STORE_TENANTS_MAX;

/// Records that are nobody's, and those of tenants that came when the table was full.
const COMMON: u16 = 0;

/// By number: a place in the index has two bytes for it.
#[derive(Debug, Default)]
pub struct Tenants {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Of each; 0: tenants are not told apart.
    quota: u64,
    known: Vec<Tenant>,
    numbers: HashMap<u64, u16>,
    free: Vec<u16>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    id: u64,
    records: u64,
    bytes: u64,
}

impl Default for State {
    fn default() -> Self {
        let numbers = HashMap::from([(0, COMMON)]);
        Self { quota: 0, known: vec![Tenant::default()], numbers, free: Vec::new() }
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
        let number = state.number(id);
        let tenant = &mut state.known[usize::from(number)];
        tenant.records += 1;
        tenant.bytes += u64::from(bytes);
        number
    }

    /// It is there no more.
    pub fn leave(&self, number: u16, bytes: u32) {
        let mut state = self.state();
        let tenant = &mut state.known[usize::from(number)];
        tenant.records -= 1;
        tenant.bytes -= u64::from(bytes);
        let Tenant { id, records, .. } = *tenant;
        if records == 0 && number != COMMON {
            state.numbers.remove(&id);
            state.free.push(number);
        }
    }

    /// Who has a number.
    pub fn id(&self, number: u16) -> u64 {
        self.state().known[usize::from(number)].id
    }

    /// Bytes of a tenant's records.
    pub fn used_by(&self, id: u64) -> u64 {
        let state = self.state();
        state.numbers.get(&id).map_or(0, |number| state.known[usize::from(*number)].bytes)
    }

    /// Numbers of those who lose nothing to others: all within their quota while anybody is over it; nobody otherwise.
    pub fn keepers(&self) -> BTreeSet<u16> {
        let state = self.state();
        let is_over = |tenant: &Tenant| tenant.bytes > state.quota;
        if state.quota == 0 || !state.known.iter().any(is_over) {
            return BTreeSet::new();
        }
        let numbered = (0_u16..).zip(&state.known);
        numbered.filter(|(_, tenant)| !is_over(tenant)).map(|(number, _)| number).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self, id: u64) -> u16 {
        if let Some(number) = self.numbers.get(&id) {
            return *number;
        }
        if self.numbers.len() >= STORE_TENANTS_MAX {
            return COMMON;
        }
        let tenant = Tenant { id, ..Tenant::default() };
        let number = if let Some(number) = self.free.pop() {
            self.known[usize::from(number)] = tenant;
            number
        } else {
            self.known.push(tenant);
            u16::try_from(self.known.len() - 1).unwrap_or(COMMON)
        };
        self.numbers.insert(id, number);
        number
    }
}
