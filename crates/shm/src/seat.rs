//! Owns a process's part in the lock between hosts: it enters by its host's lock and then the host's turn, and writes only while
//! its host counts as alive.

use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use tierkv_core::crc32c;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{SHM_LEASE_MS, SHM_OPEN_LOCK_MS};

use crate::between::{Between, Turn, line_of};
use crate::layout::{HOSTS_MAX, MEMBERS_MAX, host};
use crate::robust::late;
use crate::visibility::{Fabric, LastOwner, Rule, Seen};

/// Not known yet.
const NEVER: u64 = u64::MAX;
/// Looks at a turn before it lets others run, and how long it sleeps between later ones.
const SPINS: u32 = 50;
const PAUSE: Duration = Duration::from_micros(20);

/// Members of one host.
pub(crate) const MEMBERS_OF_HOST: u64 = MEMBERS_MAX / HOSTS_MAX;

/// Time that runs on while the machine sleeps, in ms.
pub(crate) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (s, ns) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    s * 1000 + ns / 1_000_000
}

/// Tells kernels apart.
pub(crate) fn kernel() -> u64 {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    1 << 32 | u64::from(crc32c::checksum(boot.as_bytes()))
}

/// Until when others count this host as alive, whatever becomes of this process; shared with its keeper.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until_ms: AtomicU64,
    /// How often it ended before it was renewed.
    gaps: AtomicU64,
}

impl Lease {
    /// Says that this host lives.
    pub fn renew<F: Fabric>(&self, fabric: &F, number: u64) {
        let now = now_ms();
        let seen = Seen(fabric);
        seen.set(line_of(number, host::BEAT), now);
        seen.full_fence(Rule::LockFence);
        // Before it holds again.
        if self.until_ms.load(Ordering::Acquire) <= now {
            self.gaps.fetch_add(1, Ordering::Release);
        }
        self.until_ms.fetch_max(now + SHM_LEASE_MS, Ordering::AcqRel);
    }

    /// Whether it held all the time since there were so many gaps.
    fn holds_since(&self, gaps: u64) -> bool {
        now_ms() < self.until_ms.load(Ordering::Acquire) && gaps == self.gaps()
    }

    fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Acquire)
    }
}

/// A process of a host.
#[derive(Debug)]
pub(crate) struct Seat {
    pub number: u64,
    pub lease: Arc<Lease>,
    /// The ends of its host that it knows of: it joined after them.
    known: AtomicU64,
    turn: AtomicU64,
    /// The lease's gaps when it came in.
    gaps: AtomicU64,
    is_inside: AtomicBool,
    is_lost: AtomicBool,
}

impl Seat {
    pub fn new(number: u64) -> Self {
        Self {
            number,
            lease: Arc::default(),
            known: NEVER.into(),
            turn: 0.into(),
            gaps: 0.into(),
            is_inside: false.into(),
            is_lost: false.into(),
        }
    }

    /// Whether a member is of this host.
    pub fn has(&self, member: u64) -> bool {
        member / MEMBERS_OF_HOST == self.number
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Waits for the host's turn; the host's lock is held.
    pub fn enter<F: Fabric>(&self, fabric: &F, in_person: bool) -> Result<LastOwner> {
        self.check()?;
        self.lease.renew(fabric, self.number);
        let between = Between::new(fabric, self.number);
        let turn = Self::wait(&between, in_person)?;
        // Whoever finds this host dead from now on leaves a gap.
        self.gaps.store(self.lease.gaps(), Ordering::Relaxed);
        let known = Some(self.known.load(Ordering::Relaxed)).filter(|known| *known != NEVER);
        let Some(ends) = between.arrives(known) else {
            self.is_lost.store(true, Ordering::Relaxed);
            between.gives_back(turn);
            return self.check().map(|()| LastOwner::Died);
        };
        self.known.store(ends, Ordering::Relaxed);
        self.turn.store(turn, Ordering::Relaxed);
        self.is_inside.store(true, Ordering::Relaxed);
        Ok(if between.is_doubtful() { LastOwner::Died } else { LastOwner::Left })
    }

    fn wait<F: Fabric>(between: &Between<'_, F>, in_person: bool) -> Result<u64> {
        let (start, mut turn, mut looks) = (Instant::now(), between.asks(), 0_u32);
        loop {
            match between.poll(turn) {
                Turn::Inside => return Ok(turn),
                Turn::Again(next) => turn = next,
                Turn::Waits => {}
            }
            looks = looks.saturating_add(1);
            if looks < SPINS {
                yield_now();
                continue;
            }
            sleep(PAUSE);
            if in_person && start.elapsed() > Duration::from_millis(SHM_OPEN_LOCK_MS) {
                between.gives_back(turn);
                return Err(late());
            }
        }
    }

    fn check(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        let text = "this machine was silent for too long, and others freed what it held: start anew whoever uses the region";
        Err(Error::new(Code::ArenaFailed, text))
    }

    /// Stands before each write of a word: under the lock none comes from a process that was stopped for longer than its lease,
    /// because another host may be inside by then.
    pub fn may_write(&self) -> bool {
        let gaps = self.gaps.load(Ordering::Relaxed);
        if !self.is_inside.load(Ordering::Relaxed) || self.lease.holds_since(gaps) {
            return true;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        false
    }

    /// Gives the turn back. Who lost it leaves it as it is: whoever comes next of this host finds a change that may be half done.
    pub fn leave<F: Fabric>(&self, fabric: &F) {
        self.is_inside.store(false, Ordering::Relaxed);
        if !self.is_lost() {
            Between::new(fabric, self.number).gives_back(self.turn.load(Ordering::Relaxed));
        }
    }
}
