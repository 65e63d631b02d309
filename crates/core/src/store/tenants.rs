//! Owns whom a record belongs to: what each tenant has in memory, its share of it, and who gives way to whom.

use std::collections::HashMap;

use super::numbered::{COMMON, Numbered};
use crate::limits::TENANT_EVICTIONS_MAX;
use crate::table::NONE;

/// Ends and bytes of one queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) bytes: u64,
}

/// One tenant, for as long as it has anything.
#[derive(Debug)]
pub(super) struct Tenant {
    id: u64,
    quota: u64,
    pub(super) records: usize,
    /// Memory of its records in the middle of arriving.
    aside: u64,
    pub(super) ends: [Ends; 3],
}

impl Tenant {
    fn new(id: u64, quota: u64) -> Self {
        let ends = [Ends { newest: NONE, oldest: NONE, bytes: 0 }; 3];
        Self { id, quota, records: 0, aside: 0, ends }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// What its records in memory cost.
    pub(super) fn bytes(&self) -> u64 {
        self.ends.iter().map(|ends| ends.bytes).sum()
    }

    /// By how much it is over its quota; below zero: what it has left.
    fn surplus(&self) -> i128 {
        i128::from(self.bytes() + self.aside) - i128::from(self.quota)
    }
}

/// Quotas: what a tenant keeps whatever others do. Without any, all records are of one tenant.
#[derive(Debug, Clone, Default)]
pub(super) struct Quotas {
    /// Of each tenant that has none of its own; 0: tenants are not told apart.
    pub(super) each: u64,
    pub(super) own: HashMap<u64, u64>,
}

impl Quotas {
    fn of(&self, id: u64) -> u64 {
        self.own.get(&id).copied().unwrap_or(self.each)
    }
}

/// Tenants by number.
#[derive(Debug)]
pub(super) struct Tenants {
    quotas: Quotas,
    known: Numbered<Tenant>,
    victim: Option<Victim>,
}

/// Who gives way, until it has no more left than the next one had.
#[derive(Debug, Clone, Copy)]
struct Victim {
    number: u16,
    until: i128,
    evictions: u32,
}

impl Tenants {
    pub(super) fn new() -> Self {
        let quotas = Quotas::default();
        let known = Numbered::new(Tenant::new(0, quotas.each));
        Self { quotas, known, victim: None }
    }

    /// From now on; records that are there already stay with whom they came for.
    pub(super) fn limit(&mut self, quotas: Quotas) {
        for tenant in self.known.all_mut() {
            tenant.quota = quotas.of(tenant.id);
        }
        self.quotas = quotas;
        self.victim = None;
    }

    pub(super) fn get(&self, number: u16) -> &Tenant {
        self.known.get(number)
    }

    pub(super) fn get_mut(&mut self, number: u16) -> &mut Tenant {
        self.known.get_mut(number)
    }

    /// What one has in memory, records in the middle of arriving included.
    pub(super) fn used(&self, id: u64) -> u64 {
        self.known.number(id).map_or(0, |number| {
            let tenant = self.get(number);
            tenant.bytes() + tenant.aside
        })
    }

    /// Whether `bytes` more may be on their way: what arrives cannot be evicted, so that no tenant has more of it than its quota.
    pub(super) fn may_set_aside(&self, id: u64, bytes: u64) -> bool {
        if self.quotas.each == 0 {
            return true;
        }
        // Whom the table has no room for counts among nobody's, and has no more than they have together.
        let is_full = self.known.is_full();
        let number = self.known.number(id).or(is_full.then_some(COMMON));
        let (aside, quota) = number.map_or((0, self.quotas.of(id)), |number| {
            let tenant = self.get(number);
            (tenant.aside, tenant.quota)
        });
        aside + bytes <= quota
    }

    /// So many bytes of one are on their way; the answer is its number, which stays its own until they are put back.
    pub(super) fn set_aside(&mut self, id: u64, bytes: u64) -> u16 {
        let number = self.number(id);
        self.get_mut(number).aside += bytes;
        number
    }

    /// They are not any more.
    pub(super) fn put_back(&mut self, number: u16, bytes: u64) {
        self.get_mut(number).aside -= bytes;
        self.leave(number);
    }

    fn number(&mut self, id: u64) -> u16 {
        if self.quotas.each == 0 {
            return COMMON;
        }
        let quota = self.quotas.of(id);
        self.known.enter(id, || Tenant::new(id, quota))
    }

    /// Forgets one that has nothing any more.
    pub(super) fn leave(&mut self, number: u16) {
        let tenant = self.get(number);
        if number != COMMON && tenant.records == 0 && tenant.aside == 0 {
            let id = tenant.id;
            self.known.leave(id, number);
            self.victim = self.victim.filter(|victim| victim.number != number);
        }
    }

    /// Whose record goes next: of those with any, and not `stuck`, the one that is furthest over its quota.
    pub(super) fn victim(&mut self, stuck: &[u16]) -> Option<u16> {
        if let Some(Victim { number, until, evictions }) = self.victim {
            let tenant = self.get(number);
            let is_still = evictions < TENANT_EVICTIONS_MAX && tenant.surplus() > until;
            if is_still && tenant.records > 0 && !stuck.contains(&number) {
                self.victim = Some(Victim { number, until, evictions: evictions + 1 });
                return Some(number);
            }
        }
        let (mut first, mut second) = (None, i128::MIN);
        for (number, tenant) in self.known.all() {
            if tenant.records == 0 || stuck.contains(&number) {
                continue;
            }
            let surplus = tenant.surplus();
            match first {
                Some((_, most)) if surplus <= most => second = second.max(surplus),
                Some((_, most)) => (first, second) = (Some((number, surplus)), most),
                None => first = Some((number, surplus)),
            }
        }
        let (number, _) = first?;
        // Nobody is evicted below its quota without another look at all the others.
        let until = if self.known.all().count() == 1 { i128::MIN } else { second.max(0) };
        self.victim = Some(Victim { number, until, evictions: 0 });
        Some(number)
    }
}
