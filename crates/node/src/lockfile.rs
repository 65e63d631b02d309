//! Owns the bindings of locks between processes.

use std::path::Path;

use napi_derive::napi;
use tierkv_core::lockfile::LockFile;

use crate::ffi::run;
use crate::ids::Ids;

static LOCKS: Ids<LockFile> = Ids::new("lock");

/// Takes a file's lock until `unlockFile` or the end of the process; null when another process holds it.
#[napi]
pub fn lock_file(path: String) -> napi::Result<Option<u32>> {
    run(|| LockFile::take(Path::new(&path))?.map(|lock| LOCKS.insert(lock)).transpose())
}

/// Releases the lock and removes its file; idempotent.
#[napi]
pub fn unlock_file(id: u32) -> napi::Result<()> {
    run(|| {
        LOCKS.remove(id);
        Ok(())
    })
}
