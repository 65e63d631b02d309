//! Owns the tenants of the records in memory: bytes, quota, and the victim: the tenant furthest over quota in the account
//! that uses most.

use std::collections::HashMap;

use crate::limits::TENANT_EVICTIONS_MAX;
use crate::table::NONE;
use crate::tenant::account_of;
use crate::tenant::interned::{COMMON, Interned};

/// Ends and bytes of one queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) bytes: u64,
}

/// A tenant; exists while it has records or arriving bytes.
#[derive(Debug)]
pub(super) struct Tenant {
    id: u64,
    quota: u64,
    pub(super) records: usize,
    /// Bytes of its arriving records.
    aside: u64,
    pub(super) ends: [Ends; 4],
}

impl Tenant {
    fn new(id: u64, quota: u64) -> Self {
        let ends = [Ends { newest: NONE, oldest: NONE, bytes: 0 }; 4];
        Self { id, quota, records: 0, aside: 0, ends }
    }

    /// Memory of its records, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.ends.iter().map(|ends| ends.bytes).sum()
    }

    /// Guaranteed bytes; 0: tenants are not told apart.
    pub(super) fn quota(&self) -> u64 {
        self.quota
    }

    fn used(&self) -> u64 {
        self.bytes() + self.aside
    }

    /// Bytes over the quota; negative below it.
    fn surplus(&self) -> i128 {
        i128::from(self.used()) - i128::from(self.quota)
    }
}

/// Guaranteed bytes per tenant. Without quotas all records belong to one tenant.
#[derive(Debug, Clone, Default)]
pub(super) struct Quotas {
    /// Quota of a tenant without one of its own; 0: tenants are not told apart.
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
    known: Interned<Tenant>,
    /// Arriving bytes by account; only accounts that have some.
    aside: HashMap<u16, u64>,
    victim: Option<Victim>,
}

/// Tenant that gives way until its surplus falls to `until`.
#[derive(Debug, Clone, Copy)]
struct Victim {
    number: u16,
    until: i128,
    evictions: u32,
}

impl Tenants {
    pub(super) fn new() -> Self {
        let quotas = Quotas::default();
        let known = Interned::new(Tenant::new(0, quotas.each));
        Self { quotas, known, aside: HashMap::new(), victim: None }
    }

    /// Sets the quotas; records that are there stay with the tenant they were stored for.
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

    /// Memory of a tenant in bytes, arriving records included.
    pub(super) fn used(&self, id: u64) -> u64 {
        self.known.number(id).map_or(0, |number| self.get(number).used())
    }

    /// Whether a tenant may have `bytes` more arriving; these cannot be evicted, so that each tenant has at most its quota of them.
    pub(super) fn may_set_aside(&self, id: u64, bytes: u64) -> bool {
        if self.quotas.each == 0 {
            return true;
        }
        // Tenants without a slot of their own share one slot and its quota.
        let number = self.known.number(self.known.home(id));
        let (aside, quota) = number.map_or((0, self.quotas.of(id)), |number| {
            let tenant = self.get(number);
            (tenant.aside, tenant.quota)
        });
        // A client chooses its salts freely, so that the limit also holds per account; account 0 stands for many clients.
        let account = account_of(id);
        let of_account = self.aside.get(&account).copied().unwrap_or(0);
        aside + bytes <= quota && (account == 0 || of_account + bytes <= quota)
    }

    /// Charges a tenant for arriving bytes; returns its number, valid until they are put back.
    pub(super) fn set_aside(&mut self, id: u64, bytes: u64) -> u16 {
        let number = self.number(id);
        self.get_mut(number).aside += bytes;
        *self.aside.entry(account_of(self.get(number).id)).or_default() += bytes;
        number
    }

    /// Ends the charge of `set_aside`.
    pub(super) fn put_back(&mut self, number: u16, bytes: u64) {
        let tenant = self.get_mut(number);
        tenant.aside -= bytes;
        let account = account_of(tenant.id);
        if let Some(left) = self.aside.get_mut(&account) {
            *left -= bytes;
            if *left == 0 {
                self.aside.remove(&account);
            }
        }
        self.leave(number);
    }

    fn number(&mut self, id: u64) -> u16 {
        if self.quotas.each == 0 {
            return COMMON;
        }
        let quotas = &self.quotas;
        self.known.enter(id, |id| Tenant::new(id, quotas.of(id)))
    }

    /// Forgets a tenant that has neither records nor arriving bytes.
    pub(super) fn leave(&mut self, number: u16) {
        let tenant = self.get(number);
        if number != COMMON && tenant.records == 0 && tenant.aside == 0 {
            let id = tenant.id;
            self.known.leave(id, number);
            self.victim = self.victim.filter(|victim| victim.number != number);
        }
    }

    /// Number of the tenant that gives way next: the one furthest over quota in the account that uses most, among tenants
    /// with records and not `stuck`.
    pub(super) fn victim(&mut self, stuck: &[u16]) -> Option<u16> {
        if let Some(Victim { number, until, evictions }) = self.victim {
            let tenant = self.get(number);
            let is_still = evictions < TENANT_EVICTIONS_MAX && tenant.surplus() > until;
            if is_still && tenant.records > 0 && !stuck.contains(&number) {
                self.victim = Some(Victim { number, until, evictions: evictions + 1 });
                return Some(number);
            }
        }
        let lead = if self.known.is_one_account() { None } else { Some(self.lead(stuck)?) };
        let (mut first, mut second) = (None, i128::MIN);
        for (number, tenant) in self.known.all() {
            let is_elsewhere = lead.is_some_and(|lead| lead.account != account_of(tenant.id));
            if is_elsewhere || tenant.records == 0 || stuck.contains(&number) {
                continue;
            }
            let surplus = tenant.surplus();
            match first {
                Some((_, most)) if surplus <= most => second = second.max(surplus),
                Some((_, most)) => (first, second) = (Some((number, surplus)), most),
                None => first = Some((number, surplus)),
            }
        }
        let (number, surplus) = first?;
        // No tenant is evicted below its quota without comparing all tenants again.
        let until = if self.known.all().count() == 1 { i128::MIN } else { second.max(0) };
        // The eviction also stops once the account uses no more than the next one.
        let until = lead.map_or(until, |lead| until.max(surplus - i128::from(lead.bytes)));
        self.victim = Some(Victim { number, until, evictions: 0 });
        Some(number)
    }

    /// The account that uses most among those with a record of a tenant not `stuck`, and its lead over the next one in bytes.
    fn lead(&self, stuck: &[u16]) -> Option<Lead> {
        let mut accounts: HashMap<u16, (u64, bool)> = HashMap::new();
        for (number, tenant) in self.known.all() {
            let (used, has_any) = accounts.entry(account_of(tenant.id)).or_default();
            *used += tenant.used();
            *has_any |= tenant.records > 0 && !stuck.contains(&number);
        }
        let with_any = accounts.into_iter().filter(|(_, (_, has_any))| *has_any);
        let (mut first, mut second) = (None, 0);
        for (account, (used, _)) in with_any {
            let (other, most) = first.unwrap_or((account, 0));
            let is_first = first.is_none() || (used, account) > (most, other);
            second = second.max(if is_first { most } else { used });
            if is_first {
                first = Some((account, used));
            }
        }
        first.map(|(account, most)| Lead { account, bytes: most - second })
    }
}

#[derive(Debug, Clone, Copy)]
struct Lead {
    account: u16,
    bytes: u64,
}
