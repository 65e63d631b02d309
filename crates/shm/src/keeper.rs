//! Owns the thread that keeps a process's host alive in the lock between hosts: it sends the heartbeat, detects silent
//! hosts, manages the lock if needed, and gives back the turns of dead processes.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{SHM_BEAT_MS, SHM_SILENT_MS};

use crate::between::{Between, TURN_BITS, line_of};
use crate::layout::{HOSTS, host};
use crate::manager::{Manager, life, resign, stand};
use crate::mapping::Mapping;
use crate::seat::Lease;
use crate::visibility::Seen;

/// Interval of checks for life, short enough that a silent host is found within a second.
const LOOK: Duration = Duration::from_millis(25);
/// Wait after standing for manager; simultaneous candidates have announced themselves by then.
const ELECTION: Duration = Duration::from_millis(10);
/// Pause between a manager's checks of a wanted lock.
const BUSY: Duration = Duration::from_micros(20);
/// Time after its last use for which the lock counts as wanted.
const WARM: Duration = Duration::from_millis(5);
/// First and longest pause of an unwanted lock; the longest is short, because the next host waits for it.
const IDLE: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_millis(4);
const _: () =
    assert!(LOOK.as_millis() * 2 <= SHM_BEAT_MS as u128, "a beat is seen before the next");

/// Pause of a manager: a sixteenth of the time since the lock was last wanted, within limits.
fn pause(unwanted: Duration) -> Duration {
    if unwanted < WARM { BUSY } else { (unwanted / 16).clamp(IDLE, REST) }
}

/// Time for which a value did not change, counted only while this thread ran, because it may itself have been stopped.
#[derive(Clone, Copy, Default)]
struct Silence {
    last: [u64; 2],
    ms: u64,
}

impl Silence {
    fn look(&mut self, now: [u64; 2], since_ms: u64) {
        self.ms = if self.last == now { self.ms + since_ms } else { 0 };
        self.last = now;
    }

    fn is_death(&self) -> bool {
        self.ms >= SHM_SILENT_MS
    }
}

/// Handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread; `memory` must be a mapping of its own.
    pub fn start(memory: Mapping, number: u64, lease: Arc<Lease>) -> Result<Self> {
        let stops = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&stops);
        let builder = Builder::new().name("tierkv-shm-keeper".to_owned());
        let mut round = Round::new(memory, number, lease);
        let run = move || {
            while !ends.load(Ordering::Relaxed) {
                round.go();
            }
            round.end();
        };
        let started = builder.spawn(run);
        let thread = started.map_err(|error| {
            Error::new(Code::NoMemory, format!("a thread for the region's lock: {error}"))
        })?;
        Ok(Self { stops, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Round {
    memory: Mapping,
    number: u64,
    lease: Arc<Lease>,
    hosts: [Silence; HOSTS],
    manager: Silence,
    manages: Option<Manager>,
    candidate: u64,
    looked: Instant,
    renewed: Option<Instant>,
    wanted: Instant,
}

impl Round {
    fn new(memory: Mapping, number: u64, lease: Arc<Lease>) -> Self {
        let now = Instant::now();
        Self {
            memory,
            number,
            lease,
            hosts: [Silence::default(); HOSTS],
            manager: Silence::default(),
            manages: None,
            candidate: 0,
            looked: now,
            renewed: None,
            wanted: now,
        }
    }

    fn go(&mut self) {
        if self.renewed.is_none_or(|at| at.elapsed() >= Duration::from_millis(SHM_BEAT_MS)) {
            self.lease.renew(&self.memory, self.number);
            self.renewed = Some(Instant::now());
            self.tend();
        }
        if self.looked.elapsed() >= LOOK {
            self.look();
        }
        let Some(manager) = &mut self.manages else {
            return sleep(LOOK);
        };
        let dead = (0..).zip(&self.hosts).filter(|(_, silence)| silence.is_death());
        let dead = dead.fold(0, |dead, (host, _): (u64, _)| dead | 1 << host);
        match manager.step(&self.memory, dead) {
            None => self.manages = None,
            Some(true) => self.wanted = Instant::now(),
            Some(false) => {}
        }
        sleep(pause(self.wanted.elapsed()));
    }

    /// Counts silence only for time in which this thread looked often enough.
    fn look(&mut self) {
        let since = self.looked.elapsed().min(Duration::from_millis(SHM_BEAT_MS));
        let since_ms = u64::try_from(since.as_millis()).unwrap_or_default();
        self.looked = Instant::now();
        let seen = Seen(&self.memory);
        for (number, silence) in (0..).zip(&mut self.hosts) {
            silence.look([seen.word(line_of(number, host::BEAT)), 0], since_ms);
        }
        // This host's own heartbeat needs no check.
        self.hosts[usize::try_from(self.number).unwrap_or_default()].ms = 0;
        let managing = life(&self.memory);
        self.manager.look(managing, since_ms);
        if self.manages.is_none() && (managing[0] == 0 || self.manager.is_death()) {
            self.stand();
        }
    }

    /// Stands for manager; of several simultaneous candidates the last one wins.
    fn stand(&mut self) {
        let chance = RandomState::new().hash_one(self.looked);
        self.candidate = (chance >> TURN_BITS).max(1);
        stand(&self.memory, self.candidate);
        sleep(ELECTION);
        self.manages = Manager::elected(&self.memory, self.candidate);
        self.manager.ms = 0;
    }

    /// Gives back the turn of a dead process, because no other process of this host may come for long.
    fn tend(&self) {
        let lock = self.memory.host_lock(self.number);
        if lock.try_lock().is_none() {
            return;
        }
        Between::new(&self.memory, self.number).gives_up();
        lock.unlock();
    }

    fn end(&self) {
        if self.manages.is_some() {
            resign(&self.memory, self.candidate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_rests_more_the_longer_nobody_comes_and_never_for_long() {
        let after = |ms: u64| pause(Duration::from_millis(ms));
        assert_eq!([after(0), after(4)], [BUSY; 2]);
        assert_eq!([after(5), after(16)], [IDLE; 2]);
        assert!(IDLE < after(32) && after(32) < REST);
        assert_eq!([after(64), after(3_600_000)], [REST; 2]);
    }

    #[test]
    fn only_what_was_looked_at_often_is_dead() {
        let mut silence = Silence::default();
        silence.look([1, 0], SHM_SILENT_MS);
        assert!(!silence.is_death(), "it changed");
        silence.look([1, 0], SHM_SILENT_MS - 1);
        assert!(!silence.is_death());
        silence.look([1, 0], 1);
        assert!(silence.is_death());
        silence.look([1, 1], 1);
        assert!(!silence.is_death());
    }
}
