//! Owns the background allocation of an arena, slot after slot, so that no later access can fail or wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Arena;
use crate::error::{Code, Error, Result};
use crate::limits::SLOT_ALIGN_BYTES;

/// Starts the allocating thread.
pub fn start(arena: Arc<Arena>) -> Result<()> {
    std::thread::Builder::new()
        .name("tierkv-prefault".into())
        .spawn(move || {
            run(&arena, |offset, bytes| arena.backing.allocate(offset, bytes));
        })
        .map(|_detached| ())
        .map_err(|error| {
            Error::new(Code::ArenaFailed, format!("starting the arena's prefault thread: {error}"))
        })
}

/// Allocates and touches each slot, then adds it to the table; ends early when the arena closes or memory runs out.
fn run(arena: &Arena, allocate: impl Fn(u64, u64) -> rustix::io::Result<()>) {
    for slot in 0..arena.slot_count {
        if arena.closed.load(Ordering::Relaxed) {
            return;
        }
        let offset = slot as usize * arena.slot_bytes;
        if let Err(errno) = allocate(offset as u64, arena.slot_bytes as u64) {
            let text = format!(
                "memory for slot {} of {} ({} bytes each): {errno}; lower [sidecar] arena_bytes or free shared memory",
                slot + 1,
                arena.slot_count,
                arena.slot_bytes
            );
            arena.failed.get_or_init(|| text);
            return;
        }
        touch(arena, offset);
        arena.slots().add();
    }
}

/// Maps the slot's pages into this process, so that the first copy takes no page faults.
fn touch(arena: &Arena, offset: usize) {
    for page in (0..arena.slot_bytes).step_by(SLOT_ALIGN_BYTES) {
        // SAFETY: the page lies in the mapping, is allocated, and is not in the slot table before `add`.
        unsafe { arena.mapping.at(offset + page).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Options;

    #[test]
    fn short_memory_is_a_reason_never_a_crash() {
        let options = Options { slot_bytes: 8192, slot_count: 10, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).unwrap());
        run(
            &arena,
            |offset, bytes| {
                if offset < 3 * bytes { Ok(()) } else { Err(rustix::io::Errno::NOSPC) }
            },
        );
        let status = arena.status();
        assert_eq!(status.touched_slots, 3, "what is there can be used");
        let reason = status.failed.unwrap();
        assert!(reason.starts_with("memory for slot 4 of 10 (8192 bytes each): "), "{reason}");
        assert!(reason.contains("arena_bytes"), "{reason}");
        assert_eq!(arena.slots().lease(1, 10).len(), 3);
    }
}
