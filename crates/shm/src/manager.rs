//! Owns the manager of the lock between hosts: the order of turns, the end of a dead host's turn, and the succession of managers.

use crate::between::{TURN_BITS, ended, is_gone, line_of, request};
use crate::layout::{DIRTY_AT, HOSTS, HOSTS_MAX, MANAGER_AT, MANAGER_BEAT_AT, host};
use crate::visibility::{Fabric, Rule, Seen};

/// Marks a change as possibly half done, so that the next owner repairs the region.
pub(crate) fn doubt<F: Fabric>(seen: &Seen<'_, F>) {
    seen.set(DIRTY_AT, 1);
    seen.full_fence(Rule::LockFence);
}

/// Stands for manager as `number`, which is unique, has 32 bits and is not 0.
pub fn stand<F: Fabric>(fabric: &F, number: u64) {
    let seen = Seen(fabric);
    seen.set(MANAGER_AT, number);
    // A host that enters by an older grant has announced it, or sees this number. By hand, `elected` brings it to memory when it reads it.
    fabric.settle();
}

/// Resigns, so that another host can begin at once. Does nothing for a replaced manager, whose grants no longer count.
pub fn resign<F: Fabric>(fabric: &F, number: u64) {
    let seen = Seen(fabric);
    if seen.word(MANAGER_AT) == number {
        seen.set(MANAGER_AT, 0);
    }
}

/// Returns the manager's number and its heartbeat.
pub fn life<F: Fabric>(fabric: &F) -> [u64; 2] {
    [MANAGER_AT, MANAGER_BEAT_AT].map(|at| Seen(fabric).word(at))
}

/// State of the manager.
#[derive(Debug)]
pub struct Manager {
    number: u64,
    /// Turns by which hosts have the lock. More than one: a new manager saw a host that is about to notice its replaced grant.
    holders: [Option<u64>; HOSTS],
    next: u64,
    beat: u64,
}

impl Manager {
    /// Begins to manage, if no other candidate stood after `number`.
    pub fn elected<F: Fabric>(fabric: &F, number: u64) -> Option<Self> {
        let seen = Seen(fabric);
        if seen.word(MANAGER_AT) != number {
            return None;
        }
        // Hosts found dead are included, because the manager that found one may have been replaced before writing it down.
        let holder = |host: u64| {
            let (turn, state) = request(&seen, host);
            (state == host::LOCKED).then_some(turn)
        };
        let holders = [0, 1, 2, 3, 4, 5, 6, 7].map(holder);
        Some(Self { number, holders, next: 0, beat: seen.word(MANAGER_BEAT_AT) })
    }

    /// Serves all hosts once; `dead` has a bit for each silent host. Returns `None` once replaced, otherwise whether a host
    /// has or wants the lock.
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
                // The grant is written again, because a late write of an earlier manager may have replaced it.
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

    /// Ends the turn of a silent host, and records the end for the case that the host returns.
    fn bury<F: Fabric>(&mut self, seen: &Seen<'_, F>, host: u64) {
        let (turn, state) = request(seen, host);
        let (ends, ended_turn) = ended(seen, host);
        // A host that returned may die during its first turn.
        let is_buried = is_gone(seen, host) && (state == host::IDLE || ended_turn == turn);
        if is_buried && self.holder(host).take().is_some() {
            // The host may have had a turn since its end was recorded, or the recorded one.
            doubt(seen);
        }
        if is_buried || seen.word(line_of(host, host::KERNEL)) == 0 {
            return;
        }
        // The doubt is written first, because a later manager skips hosts recorded as dead. A doubt is needed also without
        // a turn, because a repair frees what the host's members held.
        doubt(seen);
        if seen.word(MANAGER_AT) != self.number {
            return;
        }
        seen.set(line_of(host, host::ENDED), (ends + 1) << TURN_BITS | turn);
        seen.set(line_of(host, host::GRANT), 0);
        // By hand, the read brings the word to memory before another host is granted a turn.
        let _ = ended(seen, host);
        *self.holder(host) = None;
    }
}
