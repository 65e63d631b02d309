//! Owns the bindings of the core's arena and its slots. Slot bytes never become JavaScript buffers.

use std::path::Path;
use std::sync::Arc;

use napi::bindgen_prelude::Uint32Array;
use napi_derive::napi;
use tierkv_core::arena::{self, Arena, Options};
use tierkv_core::slots::Lease;

use crate::ffi::{count, run, size};
use crate::ids::Ids;

pub static ARENAS: Ids<Arc<Arena>> = Ids::new("arena");

/// Options of an arena.
#[napi(object, use_nullable = true)]
pub struct ArenaOptions {
    /// A multiple of 4096.
    pub slot_bytes: f64,
    pub slot_count: u32,
    /// Directory of a file; null for a sealed memfd.
    pub dir: Option<String>,
    /// Number in the name that `/proc` shows.
    pub label: u32,
}

/// A new arena.
#[napi(object)]
pub struct ArenaInfo {
    pub id: u32,
    /// Path at which this machine's tools find it.
    pub path: String,
    pub bytes: f64,
}

/// State of an arena.
#[napi(object, use_nullable = true)]
pub struct ArenaStatus {
    pub slot_bytes: f64,
    pub slot_count: u32,
    pub touched_slots: u32,
    pub free_slots: u32,
    pub leased_slots: u32,
    /// Reason why the other slots will never have memory.
    pub failed: Option<String>,
}

/// Creates, sizes and maps the shared memory; no slot has memory yet.
#[napi]
pub fn create_arena(options: ArenaOptions) -> napi::Result<ArenaInfo> {
    run(|| {
        let arena = Arc::new(Arena::create(&Options {
            slot_bytes: count("slotBytes", options.slot_bytes)?,
            slot_count: options.slot_count,
            dir: options.dir.as_deref().map(Path::new),
            label: options.label,
        })?);
        let (path, bytes) = (arena.path().to_owned(), size(arena.bytes()));
        Ok(ArenaInfo { id: ARENAS.insert(arena)?, path, bytes })
    })
}

/// Starts to allocate and touch the slots in the background; once only.
#[napi]
pub fn prefault_arena(id: u32) -> napi::Result<()> {
    run(|| ARENAS.get(id)?.prefault())
}

/// Returns the current state.
#[napi]
pub fn arena_status(id: u32) -> napi::Result<ArenaStatus> {
    run(|| {
        let status = ARENAS.get(id)?.status();
        Ok(ArenaStatus {
            slot_bytes: size(status.slot_bytes),
            slot_count: status.slot_count,
            touched_slots: status.touched_slots,
            free_slots: status.free_slots,
            leased_slots: status.leased_slots,
            failed: status.failed,
        })
    })
}

/// Leases up to `count` free slots: pairs of slot and generation.
#[napi]
pub fn lease_slots(id: u32, owner: u32, count: u32) -> napi::Result<Uint32Array> {
    run(|| {
        let leases = ARENAS.get(id)?.slots().lease(owner, count);
        let pairs: Vec<u32> =
            leases.into_iter().flat_map(|lease| [lease.slot, lease.generation]).collect();
        Ok(pairs.into())
    })
}

/// Drops a share of a slot; returns whether the lease has ended.
#[napi]
pub fn release_slot(id: u32, slot: u32, generation: u32) -> napi::Result<bool> {
    run(|| ARENAS.get(id)?.slots().release(Lease { slot, generation }))
}

/// Whether a leased slot begins with these bytes.
#[napi]
pub fn slot_holds(id: u32, slot: u32, generation: u32, bytes: &[u8]) -> napi::Result<bool> {
    run(|| {
        let arena = ARENAS.get(id)?;
        let _leased = arena.access(Lease { slot, generation })?;
        Ok(arena.peek(slot)?.starts_with(bytes))
    })
}

/// Passes a lease to another owner.
#[napi]
pub fn chown_slot(id: u32, slot: u32, generation: u32, owner: u32) -> napi::Result<()> {
    run(|| ARENAS.get(id)?.slots().chown(Lease { slot, generation }, owner))
}

/// Ends all leases of `owner`; returns how many there were.
#[napi]
pub fn release_owner(id: u32, owner: u32) -> napi::Result<u32> {
    run(|| Ok(ARENAS.get(id)?.slots().release_owner(owner)))
}

/// Closes an arena; idempotent. The memory is unmapped when the last task that uses it ends.
#[napi]
pub fn close_arena(id: u32) -> napi::Result<()> {
    run(|| {
        if let Some(arena) = ARENAS.remove(id) {
            arena.close();
        }
        Ok(())
    })
}

/// Removes arena files that no process holds; returns how many.
#[napi]
pub fn sweep_arena_dir(dir: String) -> napi::Result<u32> {
    run(|| arena::sweep(Path::new(&dir)))
}
