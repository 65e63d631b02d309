//! Owns a host's side of the lock between hosts: the host requests a turn, is granted one, and gives it back. Each word has
//! one writer, because hosts share no atomic read-modify-write instruction.

use crate::layout::{DIRTY_AT, HOST_BYTES, HOSTS_AT, MANAGER_AT, host};
use crate::manager::doubt;
use crate::visibility::{Fabric, Rule, Seen};

const STATE_BITS: u32 = 2;
/// Bits of a turn; a grant has the manager's number above them.
pub(crate) const TURN_BITS: u32 = 32;
const TURNS: u64 = 1 << TURN_BITS;

/// State of a requested turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Another host has the lock.
    Waits,
    /// This host has the lock.
    Inside,
    /// The granting manager was replaced; this is the next turn requested.
    Again(u64),
}

/// Offset of a line of a host.
pub(crate) fn line_of(number: u64, line: u64) -> u64 {
    HOSTS_AT + number * HOST_BYTES + line
}

/// Reads a host's request: its turn and state.
pub(crate) fn request<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> (u64, u64) {
    let word = seen.word(line_of(number, host::REQUEST));
    (word >> STATE_BITS, word & ((1 << STATE_BITS) - 1))
}

/// Reads how often a host was found dead, and the turn it had the last time.
pub(crate) fn ended<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> (u64, u64) {
    let word = seen.word(line_of(number, host::ENDED));
    (word >> TURN_BITS, word & (TURNS - 1))
}

/// Whether a host was found dead and has not returned since.
pub(crate) fn is_gone<F: Fabric>(seen: &Seen<'_, F>, number: u64) -> bool {
    ended(seen, number).0 != seen.word(line_of(number, host::KNOWN))
}

/// One host's side of the lock. The host's own lock is held, so that its processes come one at a time.
pub struct Between<'a, F: Fabric> {
    seen: Seen<'a, F>,
    number: u64,
}

impl<'a, F: Fabric> Between<'a, F> {
    /// Returns the side of host `number`.
    pub fn new(fabric: &'a F, number: u64) -> Self {
        Self { seen: Seen(fabric), number }
    }

    fn say(&self, turn: u64, state: u64) {
        self.seen.set(line_of(self.number, host::REQUEST), turn << STATE_BITS | state);
        self.seen.full_fence(Rule::LockFence);
    }

    /// Requests the lock and returns the turn. If the last process to request it died with its turn, its change is in doubt.
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

    /// Requests the lock again if the request is not what this host wrote, which only damage of the region does.
    #[must_use]
    pub fn asks_again(&self, turn: u64) -> u64 {
        if request(&self.seen, self.number) == (turn, host::WAITING) {
            return turn;
        }
        self.asks_after(turn)
    }

    /// Checks whether a turn was granted. The host first announces that it has the lock and then reads the manager. Either
    /// it sees a new manager, or the new manager sees the announcement.
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

    /// Called first inside: returns how often this host has been found dead. `None` if that happened since `known`, because
    /// other hosts then freed what this process held. A new process announces that the host is back.
    #[must_use]
    pub fn arrives(&self, known: Option<u64>) -> Option<u64> {
        let ends = ended(&self.seen, self.number).0;
        if known.is_none() {
            self.seen.set(line_of(self.number, host::KNOWN), ends);
        }
        known.is_none_or(|known| known == ends).then_some(ends)
    }

    /// Called inside: whether any host left a change half done.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.seen.word(DIRTY_AT) != 0
    }

    /// Called inside: marks the region as repaired. A host that dies before this is written is detected by its turn.
    pub fn repaired(&self) {
        self.seen.set(DIRTY_AT, 0);
    }

    /// Gives a turn back, granted or not.
    pub fn gives_back(&self, turn: u64) {
        self.say(turn, host::IDLE);
    }

    /// Gives back the turn of a dead process of this host.
    pub fn gives_up(&self) {
        let (turn, state) = request(&self.seen, self.number);
        if state != host::IDLE {
            doubt(&self.seen);
            self.say(turn, host::IDLE);
        }
    }
}
