//! Owns the rules by which one side's writes become another's reads, each with its reason, and what a region asks of memory.

use std::sync::atomic::{Ordering, fence};

use tierkv_core::error::Result;
use tierkv_core::record::Hash;

/// Who keeps the processors' caches together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coherence {
    /// The hardware, as between the processors of one machine.
    Hardware,
    /// Nobody: each side writes its lines back, and drops them before it reads.
    Clflush,
}

impl Coherence {
    /// As a configuration names it; `None`: there is no such one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Hardware, Self::Clflush].into_iter().find(|one| one.name() == name)
    }

    /// Its name there.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Clflush => "clflush",
        }
    }
}

/// Each place where something must reach memory, or come from it. A test takes them away one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A payload's lines are written back, because its reader has no other way to them.
    PayloadWriteBack,
    /// They have arrived before the entry says so, because who dies in between must not leave a promise without bytes.
    PayloadFence,
    /// A reader drops its lines of a payload, because they may be those of a record that lay there before.
    PayloadInvalidate,
    /// Every word of bitmap, index and members is written back when it changes, because the next owner of the lock reads it.
    WordWriteBack,
    /// Words are read from memory under the lock, because another side may have changed them since.
    WordInvalidate,
    /// Everything has arrived before the lock is given up, because the next owner begins at once.
    UnlockFence,
    /// What a host or the manager says of the lock between hosts arrives before it reads what others say, because both may speak at
    /// once, and one of them must hear the other.
    LockFence,
}

/// What became of the lock's last owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastOwner {
    /// Gave it up.
    Left,
    /// Died with it: the region is to be repaired before anything else.
    Died,
}

/// Memory that several sides share, as one of them sees it, with its lock. Offsets are within the region: the caller has checked them.
pub trait Fabric: Send + Sync {
    /// Whether the caches must be kept together by hand.
    fn coherence(&self) -> Coherence;
    /// The aligned word at `at`.
    fn load(&self, at: u64) -> u64;
    /// Sets it, in one piece.
    fn store(&self, at: u64, word: u64);
    /// Copies into the region.
    fn copy_in(&self, at: u64, bytes: &[u8]);
    /// Copies out of it.
    fn copy_out(&self, at: u64, bytes: &mut [u8]);
    /// Begins to write the lines of these bytes back.
    fn write_back(&self, rule: Rule, at: u64, bytes: u64);
    /// Waits until what is being written back has arrived.
    fn fence(&self, rule: Rule);
    /// Waits until others see what was written, on memory whose caches are kept together: a processor reads on before.
    fn settle(&self) {
        fence(Ordering::SeqCst);
    }
    /// Drops the lines of these bytes, so that the next read comes from memory.
    fn invalidate(&self, rule: Rule, at: u64, bytes: u64);
    /// Waits for the lock.
    ///
    /// # Errors
    /// When there is none any more.
    fn lock(&self) -> Result<LastOwner>;
    /// Takes the lock where that takes no waiting and no time, and its last owner gave it up; whether it did.
    fn try_lock(&self) -> bool {
        false
    }
    /// The region is repaired: the lock is as good as new.
    fn repaired(&self);
    /// Gives the lock up.
    fn unlock(&self);
    /// Takes a member's place for as long as this side lives; false: somebody has it.
    ///
    /// # Errors
    /// When the system refuses.
    fn claim(&self, member: u64) -> Result<bool>;
    /// Whether nobody who lives has that member's place.
    fn is_vacant(&self, member: u64) -> bool;
}

/// The rules, over one side's memory. Everything but claims and payloads happens under the lock. What tracks its caller is left out
/// by tests at each place that calls it.
pub(crate) struct Seen<'a, F: Fabric>(pub &'a F);

impl<F: Fabric> Seen<'_, F> {
    fn by_hand(&self) -> bool {
        self.0.coherence() == Coherence::Clflush
    }

    /// Reads a word that others write.
    pub fn word(&self, at: u64) -> u64 {
        self.first_of(at, 8)
    }

    /// Reads the first word of some bytes; `beside` reads the others under this lock, because each drop of lines waits for memory.
    pub fn first_of(&self, at: u64, bytes: u64) -> u64 {
        if self.by_hand() {
            self.0.invalidate(Rule::WordInvalidate, at, bytes);
        }
        self.0.load(at)
    }

    /// Reads another word of lines that were just dropped.
    pub fn beside(&self, at: u64) -> u64 {
        self.0.load(at)
    }

    /// Writes a word that others read. The rest of its line goes back with it: its caller has read the line under this lock,
    /// or writes all of it, or owns it.
    pub fn set(&self, at: u64, word: u64) {
        self.0.store(at, word);
        if self.by_hand() {
            self.0.write_back(Rule::WordWriteBack, at, 8);
        }
    }

    /// A hash, by words.
    pub fn hash(&self, at: u64) -> Hash {
        let mut hash = Hash::default();
        for (word, bytes) in (0..).zip(hash.as_chunks_mut::<8>().0) {
            *bytes = self.word(at + word * 8).to_le_bytes();
        }
        hash
    }

    /// Writes a hash, by words.
    pub fn set_hash(&self, at: u64, hash: &Hash) {
        for (word, bytes) in (0..).zip(hash.as_chunks::<8>().0) {
            self.set(at + word * 8, u64::from_le_bytes(*bytes));
        }
    }

    /// What was written reaches memory before what follows.
    #[track_caller]
    pub fn fence(&self, rule: Rule) {
        if self.by_hand() {
            self.0.fence(rule);
        }
    }

    /// The same where something else is read next, which another side may be writing.
    #[track_caller]
    pub fn full_fence(&self, rule: Rule) {
        if self.by_hand() {
            self.0.fence(rule);
        } else {
            self.0.settle();
        }
    }

    /// Writes bytes of a payload that nobody can look up yet.
    #[track_caller]
    pub fn payload_in(&self, at: u64, bytes: &[u8]) {
        self.0.copy_in(at, bytes);
        if self.by_hand() {
            self.0.write_back(Rule::PayloadWriteBack, at, bytes.len() as u64);
        }
    }

    /// Bytes of a payload were written in place.
    #[track_caller]
    pub fn payload_made(&self, at: u64, bytes: u64) {
        if self.by_hand() {
            self.0.write_back(Rule::PayloadWriteBack, at, bytes);
        }
    }

    /// Bytes of a payload that is pinned are about to be read where they stand.
    #[track_caller]
    pub fn payload_seen(&self, at: u64, bytes: u64) {
        if self.by_hand() {
            self.0.invalidate(Rule::PayloadInvalidate, at, bytes);
        }
    }

    /// Reads bytes of a payload that is pinned.
    #[track_caller]
    pub fn payload_out(&self, at: u64, bytes: &mut [u8]) {
        self.payload_seen(at, bytes.len() as u64);
        self.0.copy_out(at, bytes);
    }
}
