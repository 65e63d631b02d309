//! Owns flushes of memory and the log of recent flushes, because a record made before a flush must not be stored after it.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::{RecordKey, Scope, State, Store, Stored};
use crate::limits::STORE_FLUSHES_MAX;

/// Flush number of a record made now; no flush so far concerns it.
pub const MADE_NOW: u64 = u64::MAX;

/// Records and bytes that a flush removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    /// Records, each counted once.
    pub records: u64,
    /// Memory of the records; pinned records keep theirs until they are unpinned.
    pub bytes: u64,
    /// Bytes of the records on disk; a file is removed once no record is left in it.
    pub disk_bytes: u64,
    /// The records stay away even after a crash; always true without a disk.
    pub is_durable: bool,
}

/// The last flushes by number, ascending, in whichever order they came: flushes of several scopes overlap. A flush of several
/// scopes has one entry per scope, under one number.
#[derive(Debug, Default)]
pub(super) struct FlushLog {
    /// Flushes below this number may be forgotten, so records made before it are refused.
    base: u64,
    last: VecDeque<(u64, Scope)>,
}

impl FlushLog {
    /// Adds a flush; forgets the oldest above the limit.
    pub(super) fn note(&mut self, number: u64, scope: Scope) {
        if self.last.len() >= STORE_FLUSHES_MAX
            && let Some((oldest, _)) = self.last.pop_front()
        {
            self.base = self.base.max(oldest);
        }
        // Nearly always the end.
        let at = self.last.partition_point(|(other, _)| *other <= number);
        self.last.insert(at, (number, scope));
    }

    /// Counts all flushes up to `number` as forgotten.
    pub(super) fn forget_up_to(&mut self, number: u64) {
        self.base = self.base.max(number);
    }

    /// Whether a record belongs to a flush newer than `known`, the last one its maker knew of. A record of unknown class
    /// belongs only to flushes of both classes.
    pub(super) fn takes(
        &self,
        known: u64,
        key: &RecordKey,
        record_class: Option<u8>,
        tenant: u64,
    ) -> bool {
        let is_taken = |scope: &Scope| match record_class {
            Some(class) => scope.takes(&key.namespace, class, tenant),
            None => scope.record_class.is_none() && scope.takes(&key.namespace, 0, tenant),
        };
        let newer = self.last.iter().rev().take_while(|(number, _)| *number > known);
        known < self.base || newer.into_iter().any(|(_, scope)| is_taken(scope))
    }
}

impl Store {
    /// Adds a flush of an earlier run, whose records are gone.
    pub fn note_flush(&self, number: u64, scope: Scope) {
        self.state().flushed.note(number, scope);
    }

    /// Refuses records made before flush `number`, because the earlier flushes are not known.
    pub fn forget_flushes(&self, number: u64) {
        self.state().flushed.forget_up_to(number);
    }

    /// Removes the records of `scope` from memory; returns how many were in memory only, and the bytes of all.
    pub(super) fn flush_residents(&self, number: u64, scope: &Scope) -> (u64, u64) {
        let _no_commit = self.commits.write().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.flushes += 1;
        if self.disk.is_some() {
            state.flushing.push(*scope);
        }
        if number > 0 {
            state.flushed.note(number, *scope);
        }
        let is_named = |key: &RecordKey| scope.namespace.is_none_or(|name| name == key.namespace);
        let mut keys = state.policy.keys(&is_named);
        // A stored record was verified: it has a header.
        let takes = |key: &RecordKey, record: &Stored| {
            scope.takes(&key.namespace, record[9], record.tenant())
        };
        keys.retain(|key| state.policy.peek(key).is_some_and(|record| takes(key, record)));
        let (mut records, mut bytes) = (0, 0);
        for key in keys {
            if let Some(record) = state.policy.remove(&key) {
                records += u64::from(!self.is_on_disk(&key));
                bytes += record.charge();
            }
        }
        (records, bytes)
    }
}

impl State {
    /// Ends a flush that the disk has carried out, too.
    pub(super) fn end_flush(&mut self, scope: &Scope) {
        self.flushes += 1;
        if let Some(at) = self.flushing.iter().position(|flushing| flushing == scope) {
            self.flushing.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{CLASS_KV, CLASS_SSM};
    use crate::store::tenant_of;

    const KEY: RecordKey =
        RecordKey { namespace: [1; 32], block_hash: [2; 32], group: 0, shard: 0 };

    #[test]
    fn what_was_made_before_a_flush_of_its_kind_belongs_to_it() {
        let mut log = FlushLog::default();
        let kv = Scope { namespace: Some([1; 32]), record_class: Some(CLASS_KV), salt: None };
        log.note(10, kv);
        assert!(log.takes(9, &KEY, Some(CLASS_KV), 0));
        assert!(!log.takes(10, &KEY, Some(CLASS_KV), 0), "made after it");
        assert!(!log.takes(9, &KEY, Some(CLASS_SSM), 0), "of another class");
        assert!(!log.takes(9, &KEY, None, 0), "its class is not known yet");
        assert!(!log.takes(9, &RecordKey { namespace: [3; 32], ..KEY }, Some(CLASS_KV), 0));
        log.note(20, Scope::default());
        assert!(log.takes(19, &KEY, None, 0) && !log.takes(MADE_NOW, &KEY, None, 0));
    }

    #[test]
    fn flushes_that_overlap_take_what_was_made_before_either() {
        let of = |namespace: u8| Scope { namespace: Some([namespace; 32]), ..Scope::default() };
        let mut log = FlushLog::default();
        // Two flushes of the same two namespaces, carried out in turns.
        for (number, namespace) in [(10, 1), (20, 1), (10, 2), (20, 2)] {
            log.note(number, of(namespace));
        }
        for namespace in [1, 2] {
            let key = RecordKey { namespace: [namespace; 32], ..KEY };
            let taken = [9, 10, 19, 20].map(|known| log.takes(known, &key, Some(CLASS_KV), 0));
            assert_eq!(taken, [true, true, true, false], "{namespace}");
        }
    }

    #[test]
    fn what_a_tenant_made_before_its_flush_belongs_to_it_in_every_account() {
        let mut log = FlushLog::default();
        log.note(10, Scope { salt: Some(5), ..Scope::default() });
        for account in [0, 7] {
            assert!(log.takes(9, &KEY, None, tenant_of(account, 5)));
            assert!(log.takes(9, &KEY, Some(CLASS_SSM), tenant_of(account, 5)));
            assert!(!log.takes(10, &KEY, None, tenant_of(account, 5)), "made after it");
            assert!(!log.takes(9, &KEY, None, tenant_of(account, 6)), "of another tenant");
            assert!(!log.takes(9, &KEY, None, tenant_of(account, 0)), "nobody's in particular");
        }
    }

    #[test]
    fn what_is_older_than_the_memory_of_flushes_is_not_stored() {
        let mut log = FlushLog::default();
        for number in 1..=STORE_FLUSHES_MAX as u64 + 1 {
            log.note(number, Scope { namespace: Some([9; 32]), ..Scope::default() });
        }
        assert!(log.takes(0, &KEY, None, 0) && !log.takes(1, &KEY, None, 0));
        log.forget_up_to(5);
        assert!(log.takes(4, &KEY, None, 0) && !log.takes(5, &KEY, None, 0));
    }
}
