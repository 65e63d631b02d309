//! Owns the manager of the lock between hosts: whose turn it is, what becomes of a dead host's, and who manages after a manager.

use crate::between::{TURN_BITS, ended, is_gone, line_of, request};
use crate::layout::{DIRTY_AT, HOSTS, HOSTS_MAX, MANAGER_AT, MANAGER_BEAT_AT, host};
use crate::visibility::{Fabric, Rule, Seen};

/// A change may be half done: the next owner repairs the region.
pub(crate) fn doubt<F: Fabric>(seen: &Seen<'_, F>) {
    seen.set(DIRTY_AT, 1);
    seen.full_fence(Rule::LockFence);
}

/// Wants to manage, as `number`, which nobody had before; of 32 bits, and not 0.
pub fn stand<F: Fabric>(fabric: &F, number: u64) {
    let seen = Seen(fabric);
    seen.set(MANAGER_AT, number);
    // Whoever enters by an older grant has said so, or sees this. By hand `elected` brings it to memory when it reads it.
    fabric.settle();
}

/// Manages no more: another one begins at once. Not for who was replaced: that one's grants would count for nothing.
pub fn resign<F: Fabric>(fabric: &F, number: u64) {
    let seen = Seen(fabric);
    if seen.word(MANAGER_AT) == number {
        seen.set(MANAGER_AT, 0);
    }
}

/// Who manages, and a word that changes as long as that one lives.
pub fn life<F: Fabric>(fabric: &F) -> [u64; 2] {
    [MANAGER_AT, MANAGER_BEAT_AT].map(|at| Seen(fabric).word(at))
}

/// The manager, as it knows itself.
#[derive(Debug)]
pub struct Manager {
    number: u64,
    /// The turn by which a host has the lock. More than one: a new manager saw a host that is about to find out.
    holders: [Option<u64>; HOSTS],
    next: u64,
    beat: u64,
}

impl Manager {
    /// Begins, if nobody else stood for it after `number`.
    pub fn elected<F: Fabric>(fabric: &F, number: u64) -> Option<Self> {
        let seen = Seen(fabric);
        if seen.word(MANAGER_AT) != number {
            return None;
        }
        // Also one that was found dead: whoever found it may have been replaced before it said so.
        let holder = |host: u64| {
            let (turn, state) = request(&seen, host);
            (state == host::LOCKED).then_some(turn)
        };
        let holders = [0, 1, 2, 3, 4, 5, 6, 7].map(holder);
        Some(Self { number, holders, next: 0, beat: seen.word(MANAGER_BEAT_AT) })
    }

    /// Goes round once; `dead` has a bit for each host that is silent. `None`: another one manages now. Otherwise whether
    /// anybody has or wants the lock.
    pub fn step<F: Fabric>(&mut self, fabric: &F, dead: u64) -> Option<bool> {
        let seen = Seen(fabric);
        if seen.word(MANAGER_AT) != self.number {
            return None;
        }
        self.beat = self.beat.wrapping_add(1);
        seen.set(MANAGER_BEAT_AT, self.beat);
        let is_dead = |host: u64| dead >> host & 1 == 1;
        for host in (0..HOSTS_MAX).filter(|host| is_dead(*host)) {
            self.bury(&seen, host);
        }
        let (mut is_held, mut waits) = (false, None);
        for step in 0..HOSTS_MAX {
            let host = (self.next + step) % HOSTS_MAX;
            let (turn, state) = request(&seen, host);
            let holder = self.holder(host);
            if holder.is_some_and(|held| held != turn || state == host::IDLE) {
                *holder = None;
            }
            let is_held_by_it = holder.is_some();
            is_held |= is_held_by_it;
            if is_held_by_it && state == host::WAITING {
                // Again, because a late word of a manager before this one may have taken its place.
                seen.set(line_of(host, host::GRANT), self.number << TURN_BITS | turn);
            }
            if !is_held_by_it && state == host::WAITING && !is_dead(host) {
                waits = waits.or(Some((host, turn)));
            }
        }
        if let (false, Some((host, turn))) = (is_held, waits) {
            seen.set(line_of(host, host::GRANT), self.number << TURN_BITS | turn);
            *self.holder(host) = Some(turn);
            self.next = (host + 1) % HOSTS_MAX;
        }
        Some(is_held || waits.is_some())
    }

    fn holder(&mut self, host: u64) -> &mut Option<u64> {
        let at = usize::try_from(host).unwrap_or_default();
        &mut self.holders[at % self.holders.len()]
    }

    /// A host is silent: what it had is free, and it is told so, should it come back.
    fn bury<F: Fabric>(&mut self, seen: &Seen<'_, F>, host: u64) {
        let (turn, state) = request(seen, host);
        let (ends, ended_turn) = ended(seen, host);
        // One that comes back may die over its first turn.
        let is_buried = is_gone(seen, host) && (state == host::IDLE || ended_turn == turn);
        if is_buried && self.holder(host).take().is_some() {
            // Perhaps by a turn after its burial, or by one that is known.
            doubt(seen);
        }
        if is_buried || seen.word(line_of(host, host::KERNEL)) == 0 {
            return;
        }
        // First, because a manager after this one asks no more about who is buried. Also where it had no turn: a repair frees
        // what its members held.
        doubt(seen);
        if seen.word(MANAGER_AT) != self.number {
            return;
        }
        seen.set(line_of(host, host::ENDED), (ends + 1) << TURN_BITS | turn);
        seen.set(line_of(host, host::GRANT), 0);
        // By hand, reading it brings it to memory before another one is granted.
        let _ = ended(seen, host);
        *self.holder(host) = None;
    }
}
