//! Owns the fingerprints of recently evicted keys, oldest out first.

use crate::limits::{STORE_GHOSTS_MAX, STORE_RECORD_BYTES_TYPICAL};
use crate::table::Table;

/// Memory of one ghost: a fingerprint in a ring and its part of a table at the fullest moment.
pub(super) const GHOST_BYTES: u64 = 24;

/// Number of evicted keys a store of this size remembers: as many as it typically holds records.
pub(super) fn ghosts(max_bytes: u64) -> u64 {
    (max_bytes / STORE_RECORD_BYTES_TYPICAL).min(STORE_GHOSTS_MAX)
}

/// Tags of evicted keys. Keys with equal tags are confused, which only makes the eviction a worse guess.
#[derive(Debug)]
pub(super) struct Ghosts {
    places: Table,
    ring: Vec<u32>,
    next: u32,
    max: u32,
}

impl Ghosts {
    pub(super) fn new(max: u64) -> Self {
        let max = u32::try_from(max).unwrap_or(u32::MAX - 1);
        Self { places: Table::default(), ring: Vec::with_capacity(max as usize), next: 0, max }
    }

    pub(super) fn remember(&mut self, tag: u32) {
        if self.max == 0 {
            return;
        }
        let place = self.next;
        match self.ring.get_mut(place as usize) {
            Some(oldest) => {
                self.places.remove(*oldest, |other| other == place);
                *oldest = tag;
            }
            None => self.ring.push(tag),
        }
        self.places.insert(tag, place);
        self.next = (place + 1) % self.max;
    }

    /// Whether the tag was remembered; forgets it.
    pub(super) fn forget(&mut self, tag: u32) -> bool {
        self.places.remove(tag, |_| true).is_some()
    }
}
