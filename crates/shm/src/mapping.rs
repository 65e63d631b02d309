//! Owns a process's mapping of a region: words, payloads, and its locks within a host and between hosts.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use tierkv_core::error::Result;
use tierkv_core::limits::SHM_BEAT_MS;

use crate::between::{Between, is_gone, line_of};
use crate::cut::{self, Watched};
use crate::file::{failed, host_byte, lock_byte, unlock_bytes};
use crate::host_lock::{HostLock, MEMBERS_OF_HOST, Party};
use crate::keeper::Keeper;
use crate::latch::Taken;
use crate::layout::{DIRTY_AT, LINE_BYTES, LOCK_AT, host};
use crate::lines;
use crate::manager::doubt;
use crate::opening::Options;
use crate::seat::{Seat, kernel};
use crate::visibility::{Coherence, Fabric, LastOwner, Rule, Seen};

/// A mapped region.
#[derive(Debug)]
pub struct Mapping {
    fd: OwnedFd,
    start: *mut c_void,
    bytes: usize,
    coherence: Coherence,
    /// Set once the process has joined; from then on only the desk's own threads wait for the lock.
    is_joined: AtomicBool,
    /// Watch that notices a truncated file.
    watched: &'static Watched,
    /// This process's part in the lock of its host.
    party: Arc<Party>,
    /// This process's part in the lock between hosts.
    seat: Option<Seat>,
    keeper: Option<Keeper>,
}

// SAFETY: the memory stays mapped while the value lives; words are atomics, and payloads belong to a reservation or a pin.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(path: &Path, fd: OwnedFd, bytes: u64, options: &Options) -> Result<Self> {
        let its = fd.try_clone().map_err(|error| failed(path.display(), error))?;
        let party = Arc::new(Party::new(its, options.host));
        Self::of(path, fd, bytes, options, party)
    }

    /// Maps the file again, for another thread of the same process.
    pub(crate) fn again(&self, path: &Path, options: &Options) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(|error| failed(path.display(), error))?;
        let anywhere = Options { address: 0, ..*options };
        Self::of(path, fd, self.bytes as u64, &anywhere, Arc::clone(&self.party))
    }

    fn of(
        path: &Path,
        fd: OwnedFd,
        bytes: u64,
        options: &Options,
        party: Arc<Party>,
    ) -> Result<Self> {
        let in_words = |errno| failed(path.display(), errno);
        let bytes = usize::try_from(bytes).map_err(|_| in_words(Errno::NOMEM))?;
        let address = without_provenance_mut(options.address);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; the address is a hint and replaces nothing.
        let start =
            unsafe { rustix::mm::mmap(address, bytes, protection, MapFlags::SHARED, &fd, 0) }
                .map_err(in_words)?;
        let watched = cut::watch(start.addr(), bytes).inspect_err(|_| {
            // SAFETY: just mapped, and no reference into it exists.
            let _ = unsafe { rustix::mm::munmap(start, bytes) };
        })?;
        let (coherence, is_joined) = (options.coherence, AtomicBool::new(false));
        let (seat, keeper) = (None, None);
        Ok(Self { fd, start, bytes, coherence, is_joined, watched, party, seat, keeper })
    }

    /// Marks the process as joined, so that its lock has no deadline any more.
    pub(crate) fn joined(&self) {
        self.is_joined.store(true, Ordering::Relaxed);
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Address of the region in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    fn at(&self, at: u64, bytes: u64) -> *mut u8 {
        let end = at.checked_add(bytes);
        let inside = end.is_some_and(|end| end <= self.bytes as u64);
        // The index is shared memory, so that its offsets are not trusted.
        let at = usize::try_from(at).ok().filter(|_| inside).expect("within the region");
        self.start.cast::<u8>().wrapping_add(at)
    }

    /// A part of the memory, for its single owner.
    pub(crate) fn memory(&self, at: u64, bytes: u64) -> *mut [u8] {
        let length = usize::try_from(bytes).unwrap_or_default();
        std::ptr::slice_from_raw_parts_mut(self.at(at, bytes), length)
    }

    /// Maps the pages of a part, which the file already has; false where the system cannot.
    pub(crate) fn populate(&self, at: u64, bytes: u64) -> bool {
        let length = usize::try_from(bytes).unwrap_or_default();
        // SAFETY: within the mapping; no byte changes.
        unsafe { madvise(self.at(at, bytes).cast(), length, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// Number of the region's file, which distinguishes successive regions of the same name.
    #[must_use]
    pub fn file_number(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_ino)
    }

    fn word_at(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "words are aligned");
        // SAFETY: within the mapping, aligned, and mapped while `self` lives.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// The lock of a host, in a region shared by several.
    pub(crate) fn host_lock(&self, number: u64) -> HostLock<'_> {
        self.lock_at(line_of(number, host::LOCK))
    }

    /// The lock between the processes of this host.
    fn own_lock(&self) -> HostLock<'_> {
        match &self.seat {
            Some(seat) => self.host_lock(seat.number),
            None => self.lock_at(LOCK_AT),
        }
    }

    fn lock_at(&self, at: u64) -> HostLock<'_> {
        // SAFETY: within the mapping, aligned as a line, and mapped while `self` lives.
        let word = unsafe { AtomicU32::from_ptr(self.at(at, 4).cast()) };
        HostLock { party: &self.party, word }
    }

    /// Joins the lock between hosts as a process of host `number`.
    pub(crate) fn sit(&mut self, number: u64, keeps: Mapping) -> Result<()> {
        lock_byte("a host's place", &self.fd, host_byte(number))?;
        let arrived = self.arrive(number);
        unlock_bytes(&self.fd, host_byte(number), 1);
        arrived?;
        let seat = Seat::new(number);
        self.keeper = Some(Keeper::start(keeps, number, Arc::clone(&seat.lease))?);
        self.seat = Some(seat);
        Ok(())
    }

    /// Frees the lock of a host that was restarted, whose owner is now any process of the same number.
    fn arrive(&self, number: u64) -> Result<()> {
        let (seen, own) = (Seen(self), kernel());
        let [its, beat] = [host::KERNEL, host::BEAT].map(|line| line_of(number, line));
        let before = seen.word(its);
        if before == own {
            return Ok(());
        }
        if before != 0 {
            let beaten = seen.word(beat);
            sleep(Duration::from_millis(SHM_BEAT_MS * 4));
            if seen.word(beat) != beaten {
                let text = "another machine has this number, and runs: give each its own";
                return Err(failed(format!("host {number}"), text));
            }
            seen.set(line_of(number, host::LOCK), 0);
        }
        seen.set(its, own);
        seen.fence(Rule::UnlockFence);
        Ok(())
    }

    fn each_line(&self, at: u64, bytes: u64, what: fn(*const u8)) {
        let mut line = at & !(LINE_BYTES - 1);
        while line < at + bytes {
            what(self.at(line, 1));
            line += LINE_BYTES;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watched.let_go();
        // SAFETY: our own mapping, and no reference into it exists.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes) };
        self.start = null_mut();
    }
}

impl Fabric for Mapping {
    fn coherence(&self) -> Coherence {
        self.coherence
    }

    fn load(&self, at: u64) -> u64 {
        self.word_at(at).load(Ordering::Acquire)
    }

    fn store(&self, at: u64, word: u64) {
        let may_write = self.seat.as_ref().is_none_or(Seat::may_write);
        assert!(may_write, "this process was stopped under the region's lock");
        self.word_at(at).store(word, Ordering::Release);
    }

    fn copy_in(&self, at: u64, bytes: &[u8]) {
        let to = self.at(at, bytes.len() as u64);
        // SAFETY: within the mapping; only the reservation's owner writes there.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        let from = self.at(at, bytes.len() as u64);
        // SAFETY: within the mapping; a published, pinned record is never written.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    fn write_back(&self, _rule: Rule, at: u64, bytes: u64) {
        self.each_line(at, bytes, lines::write_back);
    }

    fn fence(&self, _rule: Rule) {
        lines::fence();
    }

    fn invalidate(&self, _rule: Rule, at: u64, bytes: u64) {
        self.each_line(at, bytes, lines::invalidate);
        lines::fence();
    }

    fn lock(&self) -> Result<LastOwner> {
        if self.watched.is_cut() {
            let what = "it was cut short: remove it, and start anew whoever uses it";
            return Err(failed("the region's file", what));
        }
        if let Some(seat) = &self.seat {
            seat.check()?;
        }
        let (lock, in_person) = (self.own_lock(), !self.is_joined.load(Ordering::Relaxed));
        let taken = lock.lock(in_person)?;
        let Some(seat) = &self.seat else {
            if taken == Taken::FromDead {
                // A death of this process before the repair leaves it to the next owner.
                doubt(&Seen(self));
            }
            let is_doubtful = Seen(self).word(DIRTY_AT) != 0;
            return Ok(if is_doubtful { LastOwner::Died } else { LastOwner::Left });
        };
        // Of a dead process of this host, its turn shows what it was doing.
        seat.enter(self, in_person).inspect_err(|_| {
            lock.unlock();
            if seat.is_lost() {
                self.party.give_up();
            }
        })
    }

    /// Only within a host and with coherent caches, because a turn between hosts, or flushing lines, takes long.
    fn try_lock(&self) -> bool {
        let is_quick = self.seat.is_none() && self.coherence == Coherence::Hardware;
        if !is_quick || self.watched.is_cut() {
            return false;
        }
        let lock = self.own_lock();
        let Some(taken) = lock.try_lock() else { return false };
        if taken == Taken::Free && Seen(self).word(DIRTY_AT) == 0 {
            return true;
        }
        // A repair reads the whole index, so that it is left to the next owner that may wait.
        doubt(&Seen(self));
        lock.unlock();
        false
    }

    fn repaired(&self) {
        match &self.seat {
            Some(seat) => Between::new(self, seat.number).repaired(),
            None => Seen(self).set(DIRTY_AT, 0),
        }
    }

    fn unlock(&self) {
        if let Some(seat) = &self.seat {
            seat.leave(self);
        }
        if !self.own_lock().unlock() {
            doubt(&Seen(self));
        }
    }

    fn claim(&self) -> Result<Option<u64>> {
        Ok(self.party.claim()?.map(u64::from))
    }

    fn is_vacant(&self, member: u64) -> bool {
        if self.seat.is_some() && !self.party.has(member) {
            return is_gone(&Seen(self), member / MEMBERS_OF_HOST);
        }
        self.party.is_vacant(member)
    }
}
