//! Owns the handling of a mapped file that was truncated: zero pages replace the mapping, because an access beyond the end raises SIGBUS.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::SHM_MAPPINGS_MAX;

/// A mapping known to the signal handler; free while `start` is 0.
#[derive(Debug)]
pub(crate) struct Watched {
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_cut: AtomicBool,
}

/// Value of `start` in an entry that is taken but not filled in.
const TAKEN: usize = usize::MAX;

static ALL: [Watched; SHM_MAPPINGS_MAX] = [const {
    Watched {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_cut: AtomicBool::new(false),
    }
}; SHM_MAPPINGS_MAX];

/// The process's earlier action for the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Watches a mapping until `let_go`.
pub(crate) fn watch(start: usize, bytes: usize) -> Result<&'static Watched> {
    BEFORE.get_or_init(install);
    let free = |watched: &&Watched| {
        watched.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let watched = ALL.iter().find(free).ok_or_else(|| {
        let text = format!("a process maps {SHM_MAPPINGS_MAX} shared regions at most");
        Error::new(Code::NoMemory, text)
    })?;
    watched.is_cut.store(false, Ordering::Relaxed);
    watched.bytes.store(bytes, Ordering::Relaxed);
    watched.start.store(start, Ordering::Release);
    Ok(watched)
}

impl Watched {
    /// Whether the file was truncated; bytes read from the mapping are then meaningless.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Ends the watch before the mapping is removed.
    pub fn let_go(&self) {
        self.start.store(0, Ordering::Release);
    }

    fn has(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let is_inside = address.checked_sub(start).is_some_and(|at| at < bytes);
        (start != 0 && is_inside).then_some((start, bytes))
    }
}

fn install() -> libc::sigaction {
    // SAFETY: plain numbers and no function; all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut before = action;
    action.sa_sigaction = on_bus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what a signal handler may: loads, stores, mmap and sigaction.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    before
}

extern "C" fn on_bus(_signal: i32, info: *const libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes it, because of SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: the information of a SIGBUS contains an address.
    let address = unsafe { info.si_addr() }.addr();
    for watched in &ALL {
        let Some((start, bytes)) = watched.has(address) else { continue };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let place = without_provenance_mut(start);
        // SAFETY: each thread has its own errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let known = unsafe { *errno };
        // SAFETY: the mapping is ours while it is watched; bytes read from it are verified before use.
        let made = unsafe { libc::mmap(place, bytes, protection, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *errno = known };
        if made == place {
            watched.is_cut.store(true, Ordering::Release);
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: restores the process's own action; the instruction is repeated, and its signal is no longer ours to handle.
    unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
}
