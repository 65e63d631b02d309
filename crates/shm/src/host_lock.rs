//! Owns a process's part in the lock of its host: its number, which is a lock on its file, its turn among its own threads,
//! and the kernel's sleep.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{SHM_LOCK_LOOK_MS, SHM_OPEN_LOCK_MS};

use crate::file::{failed, is_locked, lock_byte, takeover_byte, try_lock_bytes, unlock_bytes};
use crate::latch::{Ground, Taken, give_back, take, try_take};
use crate::layout::{HOSTS_MAX, MEMBERS_MAX};
use crate::region::full;

/// Members of one host.
pub(crate) const MEMBERS_OF_HOST: u64 = MEMBERS_MAX / HOSTS_MAX;

/// A process's part in the lock, shared by its mappings of one open file.
#[derive(Debug)]
pub(crate) struct Party {
    fd: OwnedFd,
    /// Number of its host in the lock between hosts.
    host: Option<u64>,
    /// This process's place among the members, kept until the file is closed.
    place: Mutex<Option<u32>>,
    /// Whether one of its threads has or wants the lock.
    is_busy: Mutex<bool>,
    free: Condvar,
}

/// Error of a lock that was not free within the time limit.
pub(crate) fn late() -> Error {
    let text =
        "the region's lock: a process keeps it and does not go on: end the one that is stopped";
    Error::new(Code::ArenaFailed, text)
}

impl Party {
    pub fn new(fd: OwnedFd, host: Option<u64>) -> Self {
        let (place, is_busy) = (Mutex::default(), Mutex::default());
        Self { fd, host, place, is_busy, free: Condvar::new() }
    }

    /// Whether a member belongs to this host.
    pub fn has(&self, member: u64) -> bool {
        member < MEMBERS_MAX && self.host.is_none_or(|host| member / MEMBERS_OF_HOST == host)
    }

    /// Takes a free place, once; `None` where all are taken.
    pub fn claim(&self) -> Result<Option<u32>> {
        const WHAT: &str = "a member's place";
        let mut place = lock(&self.place);
        if place.is_some() {
            return Ok(*place);
        }
        let byte = takeover_byte(self.host);
        lock_byte(WHAT, &self.fd, byte)?;
        let mut free = (0..MEMBERS_MAX).filter(|member| self.has(*member));
        let claimed = loop {
            let Some(member) = free.next() else { break Ok(None) };
            match try_lock_bytes(&self.fd, member, 1) {
                Ok(true) => break Ok(u32::try_from(member).ok()),
                Ok(false) => {}
                Err(error) => break Err(failed(WHAT, error)),
            }
        };
        unlock_bytes(&self.fd, byte, 1);
        *place = claimed?;
        Ok(*place)
    }

    /// Whether no living process of this host has the place; this process's own looks so to it.
    pub fn is_vacant(&self, member: u64) -> bool {
        is_locked(&self.fd, member).is_ok_and(|is_locked| !is_locked)
    }

    /// Gives all places up, so that others of this host free what this process held.
    pub fn give_up(&self) {
        unlock_bytes(&self.fd, 0, MEMBERS_MAX);
    }

    fn number(&self) -> Result<u32> {
        self.claim()?.ok_or_else(full)
    }

    fn enter(&self, until: Option<Instant>) -> bool {
        let mut is_busy = lock(&self.is_busy);
        while *is_busy {
            let Some(until) = until else {
                is_busy = self.free.wait(is_busy).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.free.wait_timeout(is_busy, left);
            is_busy = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_busy = true;
        true
    }

    fn leave(&self) {
        *lock(&self.is_busy) = false;
        self.free.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host's lock in the region, as this process sees it.
#[derive(Clone, Copy)]
pub(crate) struct HostLock<'a> {
    pub party: &'a Party,
    pub word: &'a AtomicU32,
}

impl HostLock<'_> {
    /// Waits for the lock. With `in_person`, when an event loop or a person waits, it fails after a time limit.
    pub fn lock(self, in_person: bool) -> Result<Taken> {
        let number = self.party.number()?;
        let until = in_person.then(|| Instant::now() + Duration::from_millis(SHM_OPEN_LOCK_MS));
        if !self.party.enter(until) {
            return Err(late());
        }
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        take(&self, number, is_late).ok_or_else(|| {
            self.party.leave();
            late()
        })
    }

    /// Takes the lock if it is free or its owner is dead.
    pub fn try_lock(self) -> Option<Taken> {
        let number = self.party.number().ok()?;
        {
            let mut is_busy = self.party.is_busy.try_lock().ok()?;
            if std::mem::replace(&mut *is_busy, true) {
                return None;
            }
        }
        try_take(&self, number).or_else(|| {
            self.party.leave();
            None
        })
    }

    /// Releases the lock; false where its word was damaged, so that another process may have had it, too.
    pub fn unlock(self) -> bool {
        let is_whole = self.party.number().is_ok_and(|number| give_back(&self, number));
        self.party.leave();
        is_whole
    }
}

impl Ground for HostLock<'_> {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A number that no process of this host can have is as good as a dead one's.
    fn is_dead(&self, number: u32) -> bool {
        let member = u64::from(number);
        !self.party.has(member) || self.party.is_vacant(member)
    }

    fn begin_takeover(&self) -> bool {
        try_lock_bytes(&self.party.fd, takeover_byte(self.party.host), 1).unwrap_or(false)
    }

    fn end_takeover(&self) {
        unlock_bytes(&self.party.fd, takeover_byte(self.party.host), 1);
    }

    fn sleep(&self, word: u32) {
        let look = Duration::from_millis(SHM_LOCK_LOOK_MS);
        let for_a_look = futex::Timespec { tv_sec: 0, tv_nsec: look.subsec_nanos().into() };
        match futex::wait(self.word, futex::Flags::empty(), word, Some(&for_a_look)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            // Memory of some devices has no sleepers.
            Err(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }

    fn wake(&self) {
        let _ = futex::wake(self.word, futex::Flags::empty(), 1);
    }
}
