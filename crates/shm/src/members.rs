//! Owns the members of a region, and the cleanup after dead ones: pins, half-filled entries, bits of the bitmap.

use crate::layout::{LINE_BYTES, MEMBERS_AT, MEMBERS_MAX, RECORDS_AT, USED_AT, entry};
use crate::table::Table;
use crate::visibility::Fabric;

impl<F: Fabric> Table<'_, F> {
    fn member_at(member: u64) -> u64 {
        MEMBERS_AT + member * LINE_BYTES
    }

    /// Joins at a place that this process has claimed, and frees what its last owner held.
    pub fn join(&self, member: u64) {
        self.bury(1 << member);
        self.seen.set(Self::member_at(member), 1);
    }

    /// Frees what dead members hold; skips `me`, because a process's own lock looks vacant to it.
    pub fn sweep(&self, me: u64) {
        let dead = (0..MEMBERS_MAX)
            .filter(|member| *member != me && self.seen.word(Self::member_at(*member)) != 0)
            .filter(|member| self.fabric.is_vacant(*member))
            .fold(0, |dead, member| dead | 1 << member);
        if dead != 0 {
            self.bury(dead);
            for member in (0..MEMBERS_MAX).filter(|member| dead >> member & 1 == 1) {
                self.seen.set(Self::member_at(member), 0);
            }
        }
    }

    /// Gives up a member's place with everything it holds.
    pub fn leave(&self, me: u64) {
        self.bury(1 << me);
        self.seen.set(Self::member_at(me), 0);
    }

    /// Number of members.
    pub fn joined(&self) -> u64 {
        let has_joined = |member: &u64| self.seen.word(Self::member_at(*member)) != 0;
        (0..MEMBERS_MAX).filter(has_joined).count() as u64
    }

    fn bury(&self, dead: u64) {
        let is_dead = |owner: u64| owner >= MEMBERS_MAX || dead >> owner & 1 == 1;
        for index in 0..self.layout.entries {
            match self.state(index) {
                entry::FILLING if is_dead(self.beside(index, entry::OWNER)) => {
                    self.drop_entry(index);
                }
                state @ (entry::READY | entry::DOOMED) => {
                    let pins = self.beside(index, entry::PINS);
                    if pins & dead != 0 {
                        self.set_field(index, entry::PINS, pins & !dead);
                    }
                    if state == entry::DOOMED && pins & !dead == 0 {
                        self.drop_entry(index);
                    }
                }
                _ => {}
            }
        }
    }

    /// Repairs the region after an owner of the lock died or an entry was found damaged. Half-filled and impossible entries
    /// are dropped, and bitmap and owners are rebuilt from the others, which are right after every single write.
    pub fn repair(&self, me: u64) {
        self.sweep(me);
        // Damage may have left pins of members that never joined.
        let vacant =
            (0..MEMBERS_MAX).filter(|member| *member != me && self.fabric.is_vacant(*member));
        self.bury(vacant.fold(0, |vacant, member| vacant | 1 << member));
        for word in 0..self.bitmap_words() {
            self.clear_bitmap_word(word);
        }
        let (mut records, mut used) = (0, 0);
        for index in 0..self.layout.entries {
            if !self.is_used(index) {
                continue;
            }
            // Of two records with a chunk in common, both may be wrong; a reader finds out about the first.
            let is_known = self.state(index) <= entry::DOOMED && self.is_reachable(index);
            let extent = self.extent(index).filter(|extent| is_known && self.is_free(*extent));
            match extent {
                Some(extent) => {
                    self.mark(extent, true);
                    self.set_owner(extent.chunk, index);
                    records += 1;
                    used += extent.count;
                }
                None => self.drop_damaged(index),
            }
        }
        self.seen.set(RECORDS_AT, records);
        self.seen.set(USED_AT, used);
    }
}
