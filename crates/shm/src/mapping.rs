//! Owns a region in a file that processes map: made whole before it has its name, locked among those of a host and between hosts.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::SHM_BEAT_MS;

use crate::between::{Between, is_gone, line_of};
use crate::cut::{self, Watched};
use crate::file::{check_file, failed, lock_bytes};
use crate::keeper::Keeper;
use crate::layout::{LINE_BYTES, LOCK_AT, LOCK_BYTES, Layout, MEMBERS_MAX, host};
use crate::lines;
use crate::region::{self, Region};
use crate::robust::Robust;
use crate::seat::{MEMBERS_OF_HOST, Seat, kernel};
use crate::visibility::{Coherence, Fabric, LastOwner, Rule, Seen};

/// How a region is made, and how this process maps it.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most bytes of a region that is made; 0: none is.
    pub max_bytes: u64,
    /// Its chunks.
    pub chunk_bytes: u64,
    /// Who keeps the caches together.
    pub coherence: Coherence,
    /// Where to map it, if the place is free; 0: anywhere. Processes need not agree.
    pub address: usize,
    /// Which of several hosts that have the region this is; `None`: no other host has it.
    pub host: Option<u64>,
}

/// A mapped region.
#[derive(Debug)]
pub struct Mapping {
    fd: OwnedFd,
    start: *mut c_void,
    bytes: usize,
    coherence: Coherence,
    /// It has joined: who waits for the lock from now on is no thread that anybody else waits for.
    is_joined: AtomicBool,
    /// Whether its file was cut short.
    watched: &'static Watched,
    /// Its part in the lock between hosts.
    seat: Option<Seat>,
    keeper: Option<Keeper>,
}

// SAFETY: the memory stays mapped as long as the value lives; words are atomics, and payloads belong to who reserved or pinned them.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

/// Opens the region at `path` and joins it; makes it first where there is none.
///
/// # Errors
/// `ARENA_FAILED` naming the path and what does not go, `BAD_ARGUMENT` for sizes.
pub fn open(path: &Path, options: &Options) -> Result<Region<Mapping>> {
    let (mapping, bytes) = map(path, options)?;
    let region = Region::join(mapping, bytes)
        .map_err(|error| Error::new(error.code, format!("{}: {}", path.display(), error.text)))?;
    region.fabric().is_joined.store(true, Ordering::Relaxed);
    Ok(region)
}

/// The same without joining: the memory, and its length.
///
/// # Errors
/// As `open`.
pub fn map(path: &Path, options: &Options) -> Result<(Mapping, u64)> {
    if options.coherence == Coherence::Clflush && !lines::EXIST {
        return Err(Error::bad_argument(
            "coherence \"clflush\" exists on x86-64 only: take \"hardware\"",
        ));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) if options.max_bytes == 0 => {
            return Err(failed(
                path.display(),
                "there is no region: a sidecar that names it makes it",
            ));
        }
        Err(Errno::NOENT) => {
            create(path, options)?;
            rustix::fs::open(path, flags, Mode::empty())
        }
        opened => opened,
    }
    .map_err(|errno| failed(path.display(), errno))?;
    let bytes = check_file(path, &fd)?;
    let its = fd.try_clone().map_err(|error| failed(path.display(), error))?;
    let mut mapping = Mapping::new(path, fd, bytes, options)?;
    check_hosts(&mapping, bytes, options.host)
        .map_err(|error| Error::new(error.code, format!("{}: {}", path.display(), error.text)))?;
    if let Some(number) = options.host {
        let keeps = Mapping::new(path, its, bytes, &Options { address: 0, ..*options })?;
        mapping.sit(number, keeps)?;
    }
    Ok((mapping, bytes))
}

/// All who have a region have the same kind of lock.
fn check_hosts(mapping: &Mapping, bytes: u64, host: Option<u64>) -> Result<()> {
    let layout = region::layout_of(mapping, bytes)?;
    let text = match host {
        Some(_) if layout.hosts == 0 => {
            "the region was made for one machine: remove the file, or write no [cluster] host"
        }
        None if layout.hosts > 0 => {
            "several machines have this region: write [cluster] host, another number on each"
        }
        Some(number) if number >= layout.hosts => "there is no host of that number",
        _ => return Ok(()),
    };
    Err(Error::new(Code::ArenaFailed, text))
}

/// Makes a region under another name, and gives it its own when it is whole. Another one who is faster wins.
fn create(path: &Path, options: &Options) -> Result<()> {
    let layout = Layout::cut(options.max_bytes, options.chunk_bytes)?;
    let layout = if options.host.is_some() { layout.between_hosts() } else { layout };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let in_words = |errno| failed(path.display(), errno);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(in_words)?;
    // All of its memory now, because a page that is missing later ends whoever touches it.
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, layout.region_bytes)
        .map_err(in_words)?;
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mapping = Mapping::new(path, fd, layout.region_bytes, options)?;
    mapping.make_locks(&layout)?;
    region::format(&mapping, &layout);
    match rustix::fs::linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(in_words(errno)),
    }
}

impl Mapping {
    fn new(path: &Path, fd: OwnedFd, bytes: u64, options: &Options) -> Result<Self> {
        let in_words = |errno| failed(path.display(), errno);
        let bytes = usize::try_from(bytes).map_err(|_| in_words(Errno::NOMEM))?;
        let address = without_provenance_mut(options.address);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; the address is a hint that replaces nothing.
        let start =
            unsafe { rustix::mm::mmap(address, bytes, protection, MapFlags::SHARED, &fd, 0) }
                .map_err(in_words)?;
        let watched = cut::watch(start.addr(), bytes).inspect_err(|_| {
            // SAFETY: mapped just now, and nobody has a reference into it.
            let _ = unsafe { rustix::mm::munmap(start, bytes) };
        })?;
        let (coherence, is_joined) = (options.coherence, AtomicBool::new(false));
        Ok(Self { fd, start, bytes, coherence, is_joined, watched, seat: None, keeper: None })
    }

    /// Where this process has it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    fn at(&self, at: u64, bytes: u64) -> *mut u8 {
        let end = at.checked_add(bytes);
        let inside = end.is_some_and(|end| end <= self.bytes as u64);
        // The index is shared memory: what stands there is not believed.
        let at = usize::try_from(at).ok().filter(|_| inside).expect("within the region");
        self.start.cast::<u8>().wrapping_add(at)
    }

    /// A part of it, for who has it alone.
    pub(crate) fn memory(&self, at: u64, bytes: u64) -> *mut [u8] {
        let length = usize::try_from(bytes).unwrap_or_default();
        std::ptr::slice_from_raw_parts_mut(self.at(at, bytes), length)
    }

    /// Gives this process the pages of a part, which the file has already; false: this system cannot.
    pub(crate) fn populate(&self, at: u64, bytes: u64) -> bool {
        let length = usize::try_from(bytes).unwrap_or_default();
        // SAFETY: within the mapping; no byte of it changes.
        unsafe { madvise(self.at(at, bytes).cast(), length, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// Tells regions apart that had one name after another: its file's number.
    #[must_use]
    pub fn file_number(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_ino)
    }

    fn word_at(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "words are aligned");
        // SAFETY: within the mapping, aligned, and mapped as long as `self`.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// The lock of a host, in a region that several have.
    pub(crate) fn host_lock(&self, number: u64) -> Robust {
        Robust::at(self.at(line_of(number, host::LOCK), LOCK_BYTES))
    }

    /// The lock between the processes of this host.
    fn own_lock(&self) -> Robust {
        match &self.seat {
            Some(seat) => self.host_lock(seat.number),
            None => Robust::at(self.at(LOCK_AT, LOCK_BYTES)),
        }
    }

    fn make_locks(&self, layout: &Layout) -> Result<()> {
        Robust::at(self.at(LOCK_AT, LOCK_BYTES)).make()?;
        (0..layout.hosts).try_for_each(|number| self.make_lock_of(number))
    }

    fn make_lock_of(&self, number: u64) -> Result<()> {
        self.host_lock(number).make()?;
        // Its host reads it from memory.
        Seen(self).payload_made(line_of(number, host::LOCK), LOCK_BYTES);
        Seen(self).fence(Rule::PayloadFence);
        Ok(())
    }

    /// Takes part in the lock between hosts, as one of the processes of a host.
    fn sit(&mut self, number: u64, keeps: Mapping) -> Result<()> {
        let one_by_one = MEMBERS_MAX + number;
        let in_words = |error| failed("a host's place", error);
        lock_bytes(&self.fd, libc::F_OFD_SETLKW, libc::F_WRLCK, one_by_one, 1).map_err(in_words)?;
        self.arrive(number)?;
        lock_bytes(&self.fd, libc::F_OFD_SETLK, libc::F_UNLCK, one_by_one, 1).map_err(in_words)?;
        let seat = Seat::new(number);
        self.keeper = Some(Keeper::start(keeps, number, Arc::clone(&seat.lease))?);
        self.seat = Some(seat);
        Ok(())
    }

    /// A machine that was started anew makes its lock anew: nobody is left who would give the old one up.
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
            self.make_lock_of(number)?;
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
        // SAFETY: ours, and nobody has a reference into it any more.
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
        // SAFETY: within the mapping; who reserved it is the only one to write there.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        let from = self.at(at, bytes.len() as u64);
        // SAFETY: within the mapping; nobody writes what is published and pinned.
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
        let (lock, in_person) = (self.own_lock(), !self.is_joined.load(Ordering::Relaxed));
        let last = lock.lock(in_person)?;
        let Some(seat) = &self.seat else { return Ok(last) };
        if last == LastOwner::Died {
            // What it was at shows by its turn.
            lock.repaired();
        }
        seat.enter(self, in_person).inspect_err(|_| {
            lock.unlock();
            if seat.is_lost() {
                // Whoever lives of this host frees what this process held.
                let _ = lock_bytes(&self.fd, libc::F_OFD_SETLK, libc::F_UNLCK, 0, MEMBERS_MAX);
            }
        })
    }

    fn repaired(&self) {
        match &self.seat {
            Some(seat) => Between::new(self, seat.number).repaired(),
            None => self.own_lock().repaired(),
        }
    }

    fn unlock(&self) {
        if let Some(seat) = &self.seat {
            seat.leave(self);
        }
        self.own_lock().unlock();
    }

    fn claim(&self, member: u64) -> Result<bool> {
        if self.seat.as_ref().is_some_and(|seat| !seat.has(member)) {
            return Ok(false);
        }
        match lock_bytes(&self.fd, libc::F_OFD_SETLK, libc::F_WRLCK, member, 1) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(error) => Err(failed("a member's place", error)),
        }
    }

    fn is_vacant(&self, member: u64) -> bool {
        if self.seat.as_ref().is_some_and(|seat| !seat.has(member)) {
            return is_gone(&Seen(self), member / MEMBERS_OF_HOST);
        }
        let unlocked = |lock: libc::flock| i32::from(lock.l_type) == libc::F_UNLCK;
        lock_bytes(&self.fd, libc::F_OFD_GETLK, libc::F_WRLCK, member, 1).is_ok_and(unlocked)
    }
}
