//! Owns the lock of a host: a robust mutex in the region, whose next owner learns that the last one died.

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::SHM_OPEN_LOCK_MS;

use crate::layout::LOCK_BYTES;
use crate::visibility::LastOwner;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() as u64 <= LOCK_BYTES);

fn failed(what: &str, code: i32) -> Error {
    let error = std::io::Error::from_raw_os_error(code);
    Error::new(Code::ArenaFailed, format!("{what}: {error}"))
}

/// A mutex in the region, whose memory must stay mapped while this is used.
#[derive(Clone, Copy)]
pub(crate) struct Robust(*mut libc::pthread_mutex_t);

impl Robust {
    /// Returns the mutex at a place of `LOCK_BYTES`.
    pub fn at(place: *mut u8) -> Self {
        Self(place.cast())
    }

    /// Creates the mutex, before any other process has it.
    pub fn make(self) -> Result<()> {
        let done = |what: &str, code: i32| match code {
            0 => Ok(()),
            code => Err(failed(what, code)),
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
        // SAFETY: not shared yet; the attributes are initialised.
        let made = unsafe { libc::pthread_mutex_init(self.0, attributes) };
        // SAFETY: initialised, and not used again.
        unsafe { libc::pthread_mutexattr_destroy(attributes) };
        done("pthread_mutexattr_setpshared", shared)?;
        done("pthread_mutexattr_setrobust", robust)?;
        done("pthread_mutex_init", made)
    }

    /// Waits for the lock. With `in_person`, when an event loop or a person waits, it fails after a time limit.
    pub fn lock(self, in_person: bool) -> Result<LastOwner> {
        let code = if in_person {
            let until = open_deadline();
            // SAFETY: made before the region got its name; the time is our own.
            unsafe { libc::pthread_mutex_timedlock(self.0, &raw const until) }
        } else {
            // SAFETY: as above.
            unsafe { libc::pthread_mutex_lock(self.0) }
        };
        match code {
            0 => Ok(LastOwner::Left),
            libc::EOWNERDEAD => Ok(LastOwner::Died),
            libc::ETIMEDOUT => Err(late()),
            code => Err(failed("the region's lock", code)),
        }
    }

    /// Takes the lock if it is free; `None` if not.
    pub fn try_lock(self) -> Option<LastOwner> {
        // SAFETY: made before the region got its name.
        match unsafe { libc::pthread_mutex_trylock(self.0) } {
            0 => Some(LastOwner::Left),
            libc::EOWNERDEAD => Some(LastOwner::Died),
            _ => None,
        }
    }

    /// Marks the state left by the dead owner as consistent.
    pub fn repaired(self) {
        // SAFETY: made, and held by us.
        unsafe { libc::pthread_mutex_consistent(self.0) };
    }

    /// Releases the lock.
    pub fn unlock(self) {
        // SAFETY: made, and held by us.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

/// Error of a lock that was not free within the time limit.
pub(crate) fn late() -> Error {
    let text =
        "the region's lock: a process keeps it and does not go on: end the one that is stopped";
    Error::new(Code::ArenaFailed, text)
}

fn open_deadline() -> libc::timespec {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = now + Duration::from_millis(SHM_OPEN_LOCK_MS);
    libc::timespec {
        tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(until.subsec_nanos()),
    }
}
