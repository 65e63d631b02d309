//! Owns the rules by which one side's writes become visible to another, each with its reason, and the interface to a region's memory.

use std::sync::atomic::{Ordering, fence};

use tierkv_core::error::Result;
use tierkv_core::record::Hash;

/// Means by which processor caches are kept coherent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coherence {
    /// The hardware, as between the processors of one machine.
    Hardware,
    /// Software: each side writes its lines back, and invalidates them before it reads.
    Clflush,
}

impl Coherence {
    /// Parses the name in a configuration; `None` for an unknown one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Hardware, Self::Clflush].into_iter().find(|one| one.name() == name)
    }

    /// Name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Clflush => "clflush",
        }
    }
}

/// Every place where bytes must reach memory, or come from it. A test leaves them out one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A payload's lines are written back, because its reader has no other way to them.
    PayloadWriteBack,
    /// The payload has arrived before the entry says so, because a death in between must not leave an entry without bytes.
    PayloadFence,
    /// A reader invalidates a payload's lines, because they may hold an earlier record at the same place.
    PayloadInvalidate,
    /// Every word of bitmap, index and members is written back when it changes, because the next owner of the lock reads it.
    WordWriteBack,
    /// Words are read from memory under the lock, because another side may have changed them since.
    WordInvalidate,
    /// All writes have arrived before the lock is released, because the next owner begins at once.
    UnlockFence,
    /// A host's or the manager's words on the lock between hosts arrive before it reads the others' words. Both may speak
    /// at once, and one of them must hear the other.
    LockFence,
}

/// End of the lock's last owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastOwner {
    /// Released the lock.
    Left,
    /// Died with the lock; the region must be repaired before anything else.
    Died,
}

/// Memory shared by several sides, as one of them sees it, with its lock. The caller has checked that offsets are within the region.
pub trait Fabric: Send + Sync {
    /// Means of coherence.
    fn coherence(&self) -> Coherence;
    /// Loads the aligned word at `at`.
    fn load(&self, at: u64) -> u64;
    /// Stores a word in one piece.
    fn store(&self, at: u64, word: u64);
    /// Copies into the region.
    fn copy_in(&self, at: u64, bytes: &[u8]);
    /// Copies out of the region.
    fn copy_out(&self, at: u64, bytes: &mut [u8]);
    /// Begins to write the lines of these bytes back.
    fn write_back(&self, rule: Rule, at: u64, bytes: u64);
    /// Waits until the lines being written back have arrived.
    fn fence(&self, rule: Rule);
    /// Waits until others see the writes, on coherent memory, because a processor may read ahead of its own writes.
    fn settle(&self) {
        fence(Ordering::SeqCst);
    }
    /// Invalidates the lines of these bytes, so that the next read comes from memory.
    fn invalidate(&self, rule: Rule, at: u64, bytes: u64);
    /// Waits for the lock.
    ///
    /// # Errors
    /// When the lock can no longer be taken.
    fn lock(&self) -> Result<LastOwner>;
    /// Takes the lock if that needs no waiting and little time, and its last owner released it.
    fn try_lock(&self) -> bool {
        false
    }
    /// Marks the region as repaired.
    fn repaired(&self);
    /// Releases the lock.
    fn unlock(&self);
    /// Takes a free member's place, which this side keeps while it lives; the same one in later calls. `None`: all are taken.
    ///
    /// # Errors
    /// When the system refuses.
    fn claim(&self) -> Result<Option<u64>>;
    /// Whether no living process has a member's place.
    fn is_vacant(&self, member: u64) -> bool;
}

/// Applies the rules to one side's memory. Everything but claims and payloads happens under the lock. Tests leave out each
/// call site of the methods marked `track_caller`.
pub(crate) struct Seen<'a, F: Fabric>(pub &'a F);

impl<F: Fabric> Seen<'_, F> {
    fn by_hand(&self) -> bool {
        self.0.coherence() == Coherence::Clflush
    }

    /// Reads a word that other sides write.
    pub fn word(&self, at: u64) -> u64 {
        self.first_of(at, 8)
    }

    /// Reads the first word of a range; `beside` reads the others under the same lock, because each invalidation waits for memory.
    pub fn first_of(&self, at: u64, bytes: u64) -> u64 {
        if self.by_hand() {
            self.0.invalidate(Rule::WordInvalidate, at, bytes);
        }
        self.0.load(at)
    }

    /// Reads another word of lines that were just invalidated.
    pub fn beside(&self, at: u64) -> u64 {
        self.0.load(at)
    }

    /// Writes a word that other sides read. Its whole line is written back, so that the caller must have read the line
    /// under this lock, or write all of it, or own it.
    pub fn set(&self, at: u64, word: u64) {
        self.0.store(at, word);
        if self.by_hand() {
            self.0.write_back(Rule::WordWriteBack, at, 8);
        }
    }

    /// Reads a hash word by word.
    pub fn hash(&self, at: u64) -> Hash {
        let mut hash = Hash::default();
        for (word, bytes) in (0..).zip(hash.as_chunks_mut::<8>().0) {
            *bytes = self.word(at + word * 8).to_le_bytes();
        }
        hash
    }

    /// Writes a hash word by word.
    pub fn set_hash(&self, at: u64, hash: &Hash) {
        for (word, bytes) in (0..).zip(hash.as_chunks::<8>().0) {
            self.set(at + word * 8, u64::from_le_bytes(*bytes));
        }
    }

    /// Lets earlier writes reach memory before later ones.
    #[track_caller]
    pub fn fence(&self, rule: Rule) {
        if self.by_hand() {
            self.0.fence(rule);
        }
    }

    /// Like `fence`, before a read of a word that another side may be writing.
    #[track_caller]
    pub fn full_fence(&self, rule: Rule) {
        if self.by_hand() {
            self.0.fence(rule);
        } else {
            self.0.settle();
        }
    }

    /// Writes bytes of a payload that cannot be looked up yet.
    #[track_caller]
    pub fn payload_in(&self, at: u64, bytes: &[u8]) {
        self.0.copy_in(at, bytes);
        if self.by_hand() {
            self.0.write_back(Rule::PayloadWriteBack, at, bytes.len() as u64);
        }
    }

    /// Ends the writing of payload bytes in place.
    #[track_caller]
    pub fn payload_made(&self, at: u64, bytes: u64) {
        if self.by_hand() {
            self.0.write_back(Rule::PayloadWriteBack, at, bytes);
        }
    }

    /// Prepares for reading bytes of a pinned payload in place.
    #[track_caller]
    pub fn payload_seen(&self, at: u64, bytes: u64) {
        if self.by_hand() {
            self.0.invalidate(Rule::PayloadInvalidate, at, bytes);
        }
    }

    /// Reads bytes of a pinned payload.
    #[track_caller]
    pub fn payload_out(&self, at: u64, bytes: &mut [u8]) {
        self.payload_seen(at, bytes.len() as u64);
        self.0.copy_out(at, bytes);
    }
}
