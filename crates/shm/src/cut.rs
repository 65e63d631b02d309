//! Owns what becomes of a mapping whose file is cut short: zeros take its place, because touching what is gone ends the process.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::SHM_MAPPINGS_MAX;

/// A mapping that the signal's handler knows; free where it starts nowhere.
#[derive(Debug)]
pub(crate) struct Watched {
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_cut: AtomicBool,
}

/// Taken, and not yet told where it is.
const TAKEN: usize = usize::MAX;

static ALL: [Watched; SHM_MAPPINGS_MAX] = [const {
    Watched {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_cut: AtomicBool::new(false),
    }
}; SHM_MAPPINGS_MAX];

/// What the process did with the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Watches a mapping until it is let go.
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
    /// What is read there is nothing that anybody stored.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// The mapping goes.
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
    // SAFETY: plain numbers and no function; all zeros is a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut before = action;
    action.sa_sigaction = on_bus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does what a handler may: loads, stores, mmap and sigaction.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    before
}

extern "C" fn on_bus(_signal: i32, info: *const libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system gives it with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS has an address.
    let address = unsafe { info.si_addr() }.addr();
    for watched in &ALL {
        let Some((start, bytes)) = watched.has(address) else { continue };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let place = without_provenance_mut(start);
        // SAFETY: each thread has its own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let known = unsafe { *errno };
        // SAFETY: the mapping is ours as long as it is watched; what is read there is checked before it is used.
        let made = unsafe { libc::mmap(place, bytes, protection, flags, -1, 0) };
        // SAFETY: as above.
        unsafe { *errno = known };
        if made == place {
            watched.is_cut.store(true, Ordering::Release);
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: it was the process's own; the instruction is tried again, and what it does then is not ours.
    unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
}
