//! Owns which engines hold a block: one table for all, with a set of engines for each block.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::batch::Tier;

/// Spreads keys that are hashes already.
#[derive(Debug, Default, Clone, Copy)]
pub struct Mix(u64);

/// Makes `Mix`.
pub type Spread = BuildHasherDefault<Mix>;

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((self.0 << 8) | u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// Where a block is: tier and group, in one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    pub fn new(tier: Tier, group: u16) -> Self {
        Self(u32::from(group) << 1 | u32::from(tier == Tier::Vault))
    }

    /// Place of a block under this tag in the table.
    #[inline]
    pub fn key(self, hash: u64) -> u64 {
        hash ^ (u64::from(self.0) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// Number of an engine's member, or of one of its ranks.
pub type HolderId = u16;

const WORD_BITS: usize = 64;

/// A set of holders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    pub fn with_words(words: usize) -> Self {
        Self(vec![0; words])
    }

    pub fn insert(&mut self, holder: HolderId) {
        let at = usize::from(holder) / WORD_BITS;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (usize::from(holder) % WORD_BITS);
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Keeps what is in `other`, too, and calls `lost` with each member that is not.
    pub fn retain(&mut self, other: &Self, mut lost: impl FnMut(HolderId)) {
        for (at, word) in self.0.iter_mut().enumerate() {
            let kept = *word & other.0.get(at).copied().unwrap_or(0);
            let mut gone = *word & !kept;
            while gone != 0 {
                lost(member(at, gone.trailing_zeros()));
                gone &= gone - 1;
            }
            *word = kept;
        }
    }

    pub fn each(&self, mut call: impl FnMut(HolderId)) {
        for (at, word) in self.0.iter().enumerate() {
            let mut left = *word;
            while left != 0 {
                call(member(at, left.trailing_zeros()));
                left &= left - 1;
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "members are numbers of 16 bits")]
fn member(word: usize, bit: u32) -> HolderId {
    (word * WORD_BITS) as HolderId + bit as HolderId
}

/// A number of a set: a single holder, or the place of a bitset.
#[derive(Debug, Clone, Copy)]
struct Place(u32);

const SHARED: u32 = 1 << 31;

/// Sets of holders by key. Most blocks have one holder, which needs no bitset.
#[derive(Debug, Default)]
pub struct Table {
    places: HashMap<u64, Place, Spread>,
    /// Bitsets of `words` words each, and those that are free.
    sets: Vec<u64>,
    words: usize,
    free: Vec<u32>,
}

impl Table {
    /// Adds a holder; returns false where it was there.
    #[inline]
    pub fn insert(&mut self, key: u64, holder: HolderId) -> bool {
        let place = match self.places.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Place(holder.into()));
                return true;
            }
            Entry::Occupied(held) => *held.get(),
        };
        if place.0 == u32::from(holder) {
            return false;
        }
        if place.0 & SHARED != 0 {
            let (at, bit) = self.bit(place, holder);
            let was = self.sets[at] & bit != 0;
            self.sets[at] |= bit;
            return !was;
        }
        let shared = self.make();
        self.places.insert(key, shared);
        #[expect(clippy::cast_possible_truncation, reason = "a holder's number")]
        let first = place.0 as HolderId;
        for each in [first, holder] {
            let (at, bit) = self.bit(shared, each);
            self.sets[at] |= bit;
        }
        true
    }

    /// Removes a holder; returns false where it was not there.
    #[inline]
    pub fn remove(&mut self, key: u64, holder: HolderId) -> bool {
        let Some(&place) = self.places.get(&key) else { return false };
        if place.0 & SHARED == 0 {
            let is_it = place.0 == u32::from(holder);
            if is_it {
                self.places.remove(&key);
            }
            return is_it;
        }
        let (at, bit) = self.bit(place, holder);
        let was = self.sets[at] & bit != 0;
        self.sets[at] &= !bit;
        let from = self.start(place);
        if was && self.sets[from..from + self.words].iter().all(|word| *word == 0) {
            self.places.remove(&key);
            self.free.push(place.0);
        }
        was
    }

    /// Whether a holder has the block.
    #[inline]
    pub fn has(&self, key: u64, holder: HolderId) -> bool {
        let Some(&place) = self.places.get(&key) else { return false };
        if place.0 & SHARED == 0 {
            return place.0 == u32::from(holder);
        }
        if usize::from(holder) / WORD_BITS >= self.words {
            return false;
        }
        let at = self.start(place) + usize::from(holder) / WORD_BITS;
        self.sets[at] & (1 << (usize::from(holder) % WORD_BITS)) != 0
    }

    /// Adds all holders of a block to a set.
    #[inline]
    pub fn add_to(&self, key: u64, bits: &mut Bits) {
        let Some(&place) = self.places.get(&key) else { return };
        if place.0 & SHARED == 0 {
            #[expect(clippy::cast_possible_truncation, reason = "a holder's number")]
            bits.insert(place.0 as HolderId);
            return;
        }
        let from = self.start(place);
        if bits.0.len() < self.words {
            bits.0.resize(self.words, 0);
        }
        for (word, held) in bits.0.iter_mut().zip(&self.sets[from..from + self.words]) {
            *word |= held;
        }
    }

    fn start(&self, place: Place) -> usize {
        (place.0 & !SHARED) as usize * self.words
    }

    /// Returns the word and the bit of a holder, with room for it.
    fn bit(&mut self, place: Place, holder: HolderId) -> (usize, u64) {
        let word = usize::from(holder) / WORD_BITS;
        if word >= self.words {
            self.widen(word + 1);
        }
        (self.start(place) + word, 1 << (usize::from(holder) % WORD_BITS))
    }

    fn make(&mut self) -> Place {
        if let Some(free) = self.free.pop() {
            let place = Place(free);
            let from = self.start(place);
            self.sets[from..from + self.words].fill(0);
            return place;
        }
        self.words = self.words.max(1);
        let number = u32::try_from(self.sets.len() / self.words).unwrap_or(SHARED - 1);
        self.sets.resize(self.sets.len() + self.words, 0);
        Place(number | SHARED)
    }

    /// Gives each bitset room for more holders.
    fn widen(&mut self, words: usize) {
        let before = std::mem::take(&mut self.sets);
        let count = before.len() / self.words.max(1);
        self.sets = vec![0; count * words];
        for (to, from) in self.sets.chunks_exact_mut(words).zip(before.chunks_exact(self.words)) {
            to[..self.words].copy_from_slice(from);
        }
        self.words = words;
    }
}
