//! Owns the records of named sessions, and which sessions are kept from eviction.

use std::collections::{HashMap, HashSet};

use super::{RecordKey, State, Store};
use crate::limits::{SESSION_KEY_BYTES, SESSION_KEYS_MAX};
use crate::memory::Budget;

/// Sessions by number, and the keys that kept sessions want.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Most bytes of kept records.
    quota: u64,
    known: HashMap<u32, Session>,
    /// Number of kept sessions that want a key.
    wanted: HashMap<RecordKey, u32>,
    /// Keys of all sessions.
    keys: usize,
}

#[derive(Debug, Default)]
struct Session {
    keys: HashSet<RecordKey>,
    is_kept: bool,
}

/// State of one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Keys of the session.
    pub keys: u64,
    /// Records of these keys in memory.
    pub records: u64,
    /// Records among them that are protected from eviction.
    pub kept: u64,
    /// Memory of the protected records, in bytes.
    pub kept_bytes: u64,
}

impl Store {
    /// Sets the most bytes of kept records, and the same share of each tenant's quota; 0: none are kept.
    pub fn limit_sessions(&self, bytes: u64) {
        self.state().sessions.quota = bytes;
    }

    /// Adds records, stored or arriving, to a session. With `is_kept` all its records are protected from eviction, as far as the
    /// quota goes. Older keys of the groups in `superseded` leave the session and go first. Keys above the limits are ignored.
    pub fn add_to_session(
        &self,
        session: u32,
        keys: &[RecordKey],
        superseded: &[u16],
        is_kept: bool,
    ) -> SessionStats {
        let mut state = self.state();
        let mut of = state.sessions.known.remove(&session).unwrap_or_default();
        let keys: HashSet<RecordKey> = keys.iter().copied().collect();
        let is_old = |key: &RecordKey| superseded.contains(&key.group) && !keys.contains(key);
        let old: Vec<RecordKey> = of.keys.extract_if(is_old).collect();
        state.leave(&self.budget, &old, of.is_kept, true);
        let fresh: Vec<RecordKey> = keys.difference(&of.keys).copied().collect();
        let fresh = &fresh[..state.note(&self.budget, fresh.len())];
        of.keys.extend(fresh);
        if is_kept && of.is_kept {
            state.want(fresh);
        } else if is_kept != of.is_kept {
            let all: Vec<RecordKey> = of.keys.iter().copied().collect();
            if is_kept {
                state.want(&all);
            } else {
                state.unwant(&all, false);
            }
        }
        if is_kept {
            // Includes keys that found no room before.
            for key in &of.keys {
                state.keep(key);
            }
        }
        of.is_kept = is_kept;
        state.sessions.known.insert(session, of);
        state.session_stats(session)
    }

    /// Forgets a session. Its records become ordinary, or go first with `goes_first`, unless another session keeps them.
    /// Returns how many newly go first.
    pub fn end_session(&self, session: u32, goes_first: bool) -> usize {
        let mut state = self.state();
        let Some(of) = state.sessions.known.remove(&session) else { return 0 };
        let keys: Vec<RecordKey> = of.keys.into_iter().collect();
        state.leave(&self.budget, &keys, of.is_kept, goes_first)
    }

    /// Returns the state of a session.
    #[must_use]
    pub fn session_stats(&self, session: u32) -> SessionStats {
        self.state().session_stats(session)
    }
}

impl State {
    /// Protects a record in memory from eviction, where a kept session wants it.
    pub(super) fn keep(&mut self, key: &RecordKey) {
        if self.sessions.wanted.contains_key(key) {
            self.policy.keep(key, self.sessions.quota);
        }
    }

    /// Charges memory for `count` keys; returns how many of them fit.
    fn note(&mut self, budget: &Budget, count: usize) -> usize {
        let count = count.min(SESSION_KEYS_MAX - self.sessions.keys);
        let bytes = count as u64 * SESSION_KEY_BYTES;
        self.make_room(budget, bytes);
        if !budget.take(bytes) {
            return 0;
        }
        self.sessions.keys += count;
        count
    }

    /// Removes keys from a session; returns how many of their records newly go first.
    fn leave(
        &mut self,
        budget: &Budget,
        keys: &[RecordKey],
        was_kept: bool,
        goes_first: bool,
    ) -> usize {
        self.sessions.keys -= keys.len();
        let bytes = keys.len() as u64 * SESSION_KEY_BYTES;
        budget.unhold(bytes);
        budget.give_back(bytes);
        if was_kept {
            return self.unwant(keys, goes_first);
        }
        let lets_go = |key: &&RecordKey| {
            goes_first && !self.sessions.wanted.contains_key(*key) && self.policy.demote(key)
        };
        keys.iter().filter(lets_go).count()
    }

    fn want(&mut self, keys: &[RecordKey]) {
        for key in keys {
            *self.sessions.wanted.entry(*key).or_default() += 1;
        }
    }

    /// Drops a kept session's claim on keys; returns how many of their records newly go first.
    fn unwant(&mut self, keys: &[RecordKey], goes_first: bool) -> usize {
        let mut moved = 0;
        for key in keys {
            let Some(count) = self.sessions.wanted.get_mut(key) else { continue };
            *count -= 1;
            if *count == 0 {
                self.sessions.wanted.remove(key);
                self.policy.unkeep(key);
                moved += usize::from(goes_first && self.policy.demote(key));
            }
        }
        moved
    }

    /// Keys of a session, stored or not.
    pub(super) fn session_keys(&self, session: u32) -> impl Iterator<Item = &RecordKey> {
        self.sessions.known.get(&session).into_iter().flat_map(|of| &of.keys)
    }

    fn session_stats(&self, session: u32) -> SessionStats {
        let mut stats = SessionStats::default();
        let Some(of) = self.sessions.known.get(&session) else { return stats };
        stats.keys = of.keys.len() as u64;
        for key in &of.keys {
            let Some(record) = self.policy.peek(key) else { continue };
            stats.records += 1;
            if self.policy.is_kept(key) {
                stats.kept += 1;
                stats.kept_bytes += record.charge();
            }
        }
        stats
    }
}
