//! Owns a process's part in the lock between hosts: it enters by its host's lock and then the host's turn, and writes only
//! while its host counts as alive.

use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use tierkv_core::crc32c;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{SHM_LEASE_MS, SHM_OPEN_LOCK_MS};

use crate::between::{Between, Turn, line_of};
use crate::host_lock::late;
use crate::layout::host;
use crate::visibility::{Fabric, LastOwner, Rule, Seen};

/// Value of `known` before the first entry.
const NEVER: u64 = u64::MAX;
/// Checks of a turn that only yield, and the pause between later checks.
const SPINS: u32 = 50;
const PAUSE: Duration = Duration::from_micros(20);

/// Time in ms, which also runs while the machine sleeps.
pub(crate) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (s, ns) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    s * 1000 + ns / 1_000_000
}

/// Identifies the running kernel.
pub(crate) fn kernel() -> u64 {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    1 << 32 | u64::from(crc32c::checksum(boot.as_bytes()))
}

/// Time until which other hosts count this one as alive even without this process; shared with its keeper.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until_ms: AtomicU64,
    /// How often the lease ran out before it was renewed.
    gaps: AtomicU64,
}

impl Lease {
    /// Renews the lease and writes the host's heartbeat.
    pub fn renew<F: Fabric>(&self, fabric: &F, number: u64) {
        let now = now_ms();
        let seen = Seen(fabric);
        seen.set(line_of(number, host::BEAT), now);
        seen.full_fence(Rule::LockFence);
        // The gap is counted before the lease holds again.
        if self.until_ms.load(Ordering::Acquire) <= now {
            self.gaps.fetch_add(1, Ordering::Release);
        }
        self.until_ms.fetch_max(now + SHM_LEASE_MS, Ordering::AcqRel);
    }

    /// Whether the lease has held ever since `gaps` gaps.
    fn holds_since(&self, gaps: u64) -> bool {
        now_ms() < self.until_ms.load(Ordering::Acquire) && gaps == self.gaps()
    }

    fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Acquire)
    }
}

/// A process's part in the lock between hosts.
#[derive(Debug)]
pub(crate) struct Seat {
    pub number: u64,
    pub lease: Arc<Lease>,
    /// Number of its host's ends when it joined.
    known: AtomicU64,
    turn: AtomicU64,
    /// Gaps of the lease when it entered.
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

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Waits for the host's turn; the host's lock must be held.
    pub fn enter<F: Fabric>(&self, fabric: &F, in_person: bool) -> Result<LastOwner> {
        self.check()?;
        self.lease.renew(fabric, self.number);
        let between = Between::new(fabric, self.number);
        let turn = Self::wait(&between, in_person)?;
        // If another host finds this one dead from now on, the lease has a gap.
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
            turn = between.asks_again(turn);
            if in_person && start.elapsed() > Duration::from_millis(SHM_OPEN_LOCK_MS) {
                between.gives_back(turn);
                return Err(late());
            }
        }
    }

    /// Refuses a process whose host was found dead.
    pub fn check(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        let text = "this machine was silent for too long, and others freed what it held: start anew whoever uses the region";
        Err(Error::new(Code::ArenaFailed, text))
    }

    /// Precedes each write of a word. Under the lock it refuses writes of a process that was stopped for longer than its
    /// lease, because another host may then have the lock.
    pub fn may_write(&self) -> bool {
        let gaps = self.gaps.load(Ordering::Relaxed);
        if !self.is_inside.load(Ordering::Relaxed) || self.lease.holds_since(gaps) {
            return true;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        false
    }

    /// Gives the turn back. A process that lost it leaves it, so that the next one of this host finds a possibly half-done change.
    pub fn leave<F: Fabric>(&self, fabric: &F) {
        self.is_inside.store(false, Ordering::Relaxed);
        if !self.is_lost() {
            Between::new(fabric, self.number).gives_back(self.turn.load(Ordering::Relaxed));
        }
    }
}
