//! Owns the lock between hosts as the host sees it that wants it: it asks, is granted a turn, and gives it back. No word has two
//! writers, because hosts share no instruction that reads and writes at once.

use crate::layout::{DIRTY_AT, HOST_BYTES, HOSTS_AT, MANAGER_AT, host};
use crate::manager::doubt;
use crate::visibility::{Fabric, Rule, Seen};

const STATE_BITS: u32 = 2;
/// A grant has the manager's number above its turn.
pub(crate) const TURN_BITS: u32 = 32;
const TURNS: u64 = 1 << TURN_BITS;

/// What has become of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is another one's.
    Waits,
    /// The lock is ours.
    Inside,
    /// Whoever granted it is no manager any more: this is the next one.
    Again(u64),
}

/// Where a line of a host lies.
pub(crate) fn line_of(number: u64, line: u64) -> u64 {
    HOSTS_AT + number * HOST_BYTES + line
}

/// A host's request: its turn, and state.
pub(crate) fn request<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> (u64, u64) {
    let word = seen.word(line_of(number, host::REQUEST));
    (word >> STATE_BITS, word & ((1 << STATE_BITS) - 1))
}

/// How often a host was found dead, and the turn that ended with it last.
pub(crate) fn ended<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> (u64, u64) {
    let word = seen.word(line_of(number, host::ENDED));
    (word >> TURN_BITS, word & (TURNS - 1))
}

/// Whether a host was found dead and has not come back since.
pub(crate) fn is_gone<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> bool {
    ended(seen, number).0 != seen.word(line_of(number, host::KNOWN))
}

/// One host's side. Its processes come here one at a time: the lock of the host is held.
pub struct Between<'a, F: Fabric> {
    seen: Seen<'a, F>,
    number: u64,
}

impl<'a, F: Fabric> Between<'a, F> {
    /// Of the host with that number.
    pub fn new(fabric: &'a F, number: u64) -> Self {
        Self { seen: Seen(fabric), number }
    }

    fn say(&self, turn: u64, state: u64) {
        self.seen.set(line_of(self.number, host::REQUEST), turn << STATE_BITS | state);
        self.seen.full_fence(Rule::LockFence);
    }

    /// Asks for the lock; the turn. Where the last one to ask died before it gave its turn back, what it changed is doubtful.
    #[must_use]
    pub fn asks(&self) -> u64 {
        let (turn, state) = request(&self.seen, self.number);
        if state != host::IDLE {
            doubt(&self.seen);
        }
        self.asks_after(turn)
    }

    fn asks_after(&self, turn: u64) -> u64 {
        let turn = (turn + 1) % TURNS;
        self.say(turn, host::WAITING);
        turn
    }

    /// Looks whether a turn was granted. It says that it has the lock before it looks who manages it: a new manager then
    /// either is seen here, or sees that.
    #[must_use]
    pub fn poll(&self, turn: u64) -> Turn {
        let grant = self.seen.word(line_of(self.number, host::GRANT));
        if grant == 0 || grant % TURNS != turn {
            return Turn::Waits;
        }
        self.say(turn, host::LOCKED);
        if self.seen.word(MANAGER_AT) == grant >> TURN_BITS {
            return Turn::Inside;
        }
        Turn::Again(self.asks_after(turn))
    }

    /// Inside, before anything else: how often this host was found dead by now, or `None` if that was since `known`, because then
    /// others freed what a process of it held. Who comes new says that the host is back.
    #[must_use]
    pub fn arrives(&self, known: Option<u64>) -> Option<u64> {
        let ends = ended(&self.seen, self.number).0;
        if known.is_none() {
            self.seen.set(line_of(self.number, host::KNOWN), ends);
        }
        known.is_none_or(|known| known == ends).then_some(ends)
    }

    /// Inside: whether a change was left half done, by whichever host.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.seen.word(DIRTY_AT) != 0
    }

    /// Inside: the region is repaired. Who dies before that has arrived is found by its turn.
    pub fn repaired(&self) {
        self.seen.set(DIRTY_AT, 0);
    }

    /// Gives a turn back, granted or not.
    pub fn gives_back(&self, turn: u64) {
        self.say(turn, host::IDLE);
    }

    /// Gives back what a process of this host had when it died.
    pub fn gives_up(&self) {
        let (turn, state) = request(&self.seen, self.number);
        if state != host::IDLE {
            doubt(&self.seen);
            self.say(turn, host::IDLE);
        }
    }
}
