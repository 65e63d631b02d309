//! Owns a region in a file that processes of one host map: made whole before it has its name, locked by a robust mutex.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::SHM_OPEN_LOCK_MS;

use crate::cut::{self, Watched};
use crate::layout::{LINE_BYTES, LOCK_AT, LOCK_BYTES, Layout};
use crate::lines;
use crate::region::{self, Region};
use crate::visibility::{Coherence, Fabric, LastOwner, Rule};

const _: () = assert!(size_of::<libc::pthread_mutex_t>() as u64 <= LOCK_BYTES);

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
}

/// A mapped region of one host.
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
}

// SAFETY: the memory stays mapped as long as the value lives; words are atomics, and payloads belong to who reserved or pinned them.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

fn failed(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Error {
    Error::new(Code::ArenaFailed, format!("{what}: {error}"))
}

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
    Ok((Mapping::new(path, fd, bytes, options)?, bytes))
}

fn check_file(path: &Path, fd: &OwnedFd) -> Result<u64> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| failed(path.display(), errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed(path.display(), "this is no regular file"));
    }
    if stat.st_nlink > 1 {
        return Err(failed(path.display(), "it has another name, too: remove one of them"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(failed(path.display(), "others may open it: chmod 600, or name another"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(failed(path.display(), "it belongs to another user"));
    }
    u64::try_from(stat.st_size)
        .ok()
        .filter(|bytes| *bytes > LOCK_AT + LOCK_BYTES)
        .ok_or_else(|| failed(path.display(), "this is no region of tierKV: name another file"))
}

/// Makes a region under another name, and gives it its own when it is whole. Another one who is faster wins.
fn create(path: &Path, options: &Options) -> Result<()> {
    let layout = Layout::cut(options.max_bytes, options.chunk_bytes)?;
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
    mapping.make_lock()?;
    region::format(&mapping, &layout);
    match rustix::fs::linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(in_words(errno)),
    }
}

/// Whoever opens a region waits in person: an event loop, or somebody at a terminal.
fn open_deadline() -> libc::timespec {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = now + Duration::from_millis(SHM_OPEN_LOCK_MS);
    libc::timespec {
        tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(until.subsec_nanos()),
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
        Ok(Self { fd, start, bytes, coherence, is_joined, watched })
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

    fn lock_ptr(&self) -> *mut libc::pthread_mutex_t {
        self.at(LOCK_AT, LOCK_BYTES).cast()
    }

    fn make_lock(&self) -> Result<()> {
        let done = |what: &str, code: i32| match code {
            0 => Ok(()),
            code => Err(failed(what, std::io::Error::from_raw_os_error(code))),
        };
        let mut attributes = MaybeUninit::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: room for one.
        done("pthread_mutexattr_init", unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: initialised.
        let shared =
            unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) };
        // SAFETY: initialised.
        let robust =
            unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) };
        // SAFETY: nobody else has the region yet; the attributes are initialised.
        let made = unsafe { libc::pthread_mutex_init(self.lock_ptr(), attributes) };
        // SAFETY: initialised, and not used again.
        unsafe { libc::pthread_mutexattr_destroy(attributes) };
        done("pthread_mutexattr_setpshared", shared)?;
        done("pthread_mutexattr_setrobust", robust)?;
        done("pthread_mutex_init", made)
    }

    fn each_line(&self, at: u64, bytes: u64, what: fn(*const u8)) {
        let mut line = at & !(LINE_BYTES - 1);
        while line < at + bytes {
            what(self.at(line, 1));
            line += LINE_BYTES;
        }
    }

    fn file_lock(&self, command: i32, member: u64) -> std::io::Result<libc::flock> {
        // SAFETY: plain numbers; all zeros is a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = i16::try_from(libc::F_WRLCK).unwrap_or_default();
        lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
        (lock.l_start, lock.l_len) = (i64::try_from(member).unwrap_or_default(), 1);
        // SAFETY: the descriptor is open, the lock our own.
        match unsafe { libc::fcntl(self.fd.as_raw_fd(), command, &raw mut lock) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(lock),
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
        let code = if self.is_joined.load(Ordering::Relaxed) {
            // SAFETY: initialised before the region had its name.
            unsafe { libc::pthread_mutex_lock(self.lock_ptr()) }
        } else {
            let until = open_deadline();
            // SAFETY: as above; the time is our own.
            unsafe { libc::pthread_mutex_timedlock(self.lock_ptr(), &raw const until) }
        };
        match code {
            0 => Ok(LastOwner::Left),
            libc::EOWNERDEAD => Ok(LastOwner::Died),
            libc::ETIMEDOUT => Err(failed(
                "the region's lock",
                "a process keeps it and does not go on: end the one that is stopped",
            )),
            code => Err(failed("the region's lock", std::io::Error::from_raw_os_error(code))),
        }
    }

    fn repaired(&self) {
        // SAFETY: initialised, and held by us.
        unsafe { libc::pthread_mutex_consistent(self.lock_ptr()) };
    }

    fn unlock(&self) {
        // SAFETY: initialised, and held by us.
        unsafe { libc::pthread_mutex_unlock(self.lock_ptr()) };
    }

    fn claim(&self, member: u64) -> Result<bool> {
        match self.file_lock(libc::F_OFD_SETLK, member) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(error) => Err(failed("a member's place", error)),
        }
    }

    fn is_vacant(&self, member: u64) -> bool {
        let unlocked = |lock: libc::flock| i32::from(lock.l_type) == libc::F_UNLCK;
        self.file_lock(libc::F_OFD_GETLK, member).is_ok_and(unlocked)
    }
}
