//! Owns the flushes of a region: their scopes, the recent ones, and the check that refuses records made before them.

use tierkv_core::key::RecordKey;
use tierkv_core::record::{CLASS_KV, Hash};
use tierkv_core::store::MADE_NOW;

use crate::layout::{FLUSH_AT, FLUSHES_AT, FLUSHES_MAX, LINE_BYTES, entry, flush};
use crate::table::Table;
use crate::visibility::Fabric;

/// Class and tenant of a record, and the flushes its maker knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// Tenant, 48 bits; 0: none in particular.
    pub tenant: u64,
    /// Number of the last flush the record's maker knew of.
    pub known: u64,
}

impl Default for Label {
    /// Attention KV of no tenant in particular, made now.
    fn default() -> Self {
        Self { record_class: CLASS_KV, tenant: 0, known: MADE_NOW }
    }
}

impl Label {
    pub(crate) fn word(self) -> u64 {
        u64::from(self.record_class) << entry::CLASS_SHIFT
            | self.tenant & ((1 << entry::CLASS_SHIFT) - 1)
    }
}

/// Scope of a flush; `None` stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// The namespace.
    pub namespace: Option<Hash>,
    /// The class.
    pub record_class: Option<u8>,
    /// Tenant.
    pub tenant: Option<u64>,
}

impl Scope {
    fn takes(&self, namespace: &Hash, record_class: u8, tenant: u64) -> bool {
        self.namespace.is_none_or(|named| named == *namespace)
            && self.record_class.is_none_or(|class| class == record_class)
            && self.tenant.is_none_or(|whose| whose == tenant)
    }
}

/// Recent flushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Number of the last one; 0: none.
    pub number: u64,
    /// The flushes asked for; `None` if some are no longer remembered.
    pub flushes: Option<Vec<(u64, Scope)>>,
}

impl<F: Fabric> Table<'_, F> {
    fn flush_at(number: u64) -> u64 {
        FLUSHES_AT + number % FLUSHES_MAX * LINE_BYTES
    }

    /// Removes the records of a scope and remembers the flush; returns its number, and the records and bytes removed.
    pub fn flush(&self, scope: &Scope) -> (u64, u64, u64) {
        let number = self.seen.word(FLUSH_AT).wrapping_add(1);
        let at = Self::flush_at(number);
        // A half-written entry has number 0 and does not count.
        self.seen.set(at + flush::NUMBER, 0);
        self.seen.set(at + flush::WHAT, what(scope));
        self.seen.set(at + flush::TENANT, scope.tenant.unwrap_or_default());
        self.seen.set_hash(at + flush::NAMESPACE, &scope.namespace.unwrap_or_default());
        self.seen.set(at + flush::NUMBER, number);
        let (mut records, mut bytes) = (0, 0);
        for index in 0..self.layout.entries {
            if self.state(index) != entry::READY || !self.is_in(scope, index) {
                continue;
            }
            records += 1;
            bytes += self.extent(index).map_or(0, |extent| extent.bytes);
            self.doom(index);
        }
        // The flush counts only from here on; a process that dies earlier has promised nothing.
        self.seen.set(FLUSH_AT, number);
        (number, records, bytes)
    }

    fn is_in(&self, scope: &Scope, index: u64) -> bool {
        let namespace = self.seen.hash(self.layout.entry_at(index) + entry::HASHES);
        let label = self.field(index, entry::LABEL);
        let class = u8::try_from(label >> entry::CLASS_SHIFT).unwrap_or_default();
        scope.takes(&namespace, class, label & ((1 << entry::CLASS_SHIFT) - 1))
    }

    /// Returns the flushes after `known`.
    pub fn news(&self, known: u64) -> News {
        let number = self.seen.word(FLUSH_AT);
        if number.saturating_sub(known) > FLUSHES_MAX {
            return News { number, flushes: None };
        }
        // Ends at the first forgotten flush.
        let flushes = (known.saturating_add(1)..=number)
            .map(|number| Some((number, self.remembered(number)?)))
            .collect();
        News { number, flushes }
    }

    fn remembered(&self, number: u64) -> Option<Scope> {
        let at = Self::flush_at(number);
        if self.seen.word(at + flush::NUMBER) != number {
            return None;
        }
        let what = self.seen.word(at + flush::WHAT);
        let namespace = self.seen.hash(at + flush::NAMESPACE);
        let class = what.to_le_bytes()[0];
        let tenant = self.seen.word(at + flush::TENANT);
        Some(Scope {
            namespace: (what & flush::HAS_NAMESPACE != 0).then_some(namespace),
            record_class: (class != 0).then_some(class),
            tenant: (what & flush::HAS_TENANT != 0).then_some(tenant),
        })
    }

    /// Whether a record belongs, or may belong, to a flush its maker did not know of.
    pub fn is_late(&self, key: &RecordKey, label: Label) -> bool {
        let takes = |scope: &Scope| scope.takes(&key.namespace, label.record_class, label.tenant);
        match self.news(label.known).flushes {
            Some(flushes) => flushes.iter().any(|(_, scope)| takes(scope)),
            None => true,
        }
    }
}

fn what(scope: &Scope) -> u64 {
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    u64::from(scope.record_class.unwrap_or_default())
        | bit(scope.namespace.is_some(), flush::HAS_NAMESPACE)
        | bit(scope.tenant.is_some(), flush::HAS_TENANT)
}
