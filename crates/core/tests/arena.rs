//! Owns the proof that an arena's memory is there before it is granted, is sealed or private, and leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierkv_core::arena::{Arena, Options, sweep};
use tierkv_core::error::Code;
use tierkv_core::slots::Lease;

const SLOT: u64 = 8192;
const DEADLINE: Duration = Duration::from_secs(10);

fn arena(dir: Option<&Path>, slot_count: u32) -> Arc<Arena> {
    Arc::new(Arena::create(&Options { slot_bytes: SLOT, slot_count, dir, label: 1 }).unwrap())
}

fn ready(dir: Option<&Path>, slot_count: u32) -> Arc<Arena> {
    let arena = arena(dir, slot_count);
    arena.prefault().unwrap();
    let start = Instant::now();
    while arena.status().touched_slots < slot_count {
        assert!(start.elapsed() < DEADLINE, "{:?}", arena.status());
        std::thread::yield_now();
    }
    arena
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tierkv-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn slots_are_granted_only_once_their_memory_is_there() {
    let arena = arena(None, 16);
    assert!(arena.slots().lease(1, 16).is_empty(), "nothing is touched before prefault");
    assert_eq!(arena.status().touched_slots, 0);

    let arena = ready(None, 16);
    arena.prefault().unwrap();
    assert_eq!(arena.slots().lease(1, 100).len(), 16, "all, once, although prefault ran twice");
    let status = arena.status();
    assert_eq!((status.touched_slots, status.free_slots, status.leased_slots), (16, 0, 16));
    assert_eq!(status.failed, None);
}

/// What the shim does: it opens the path and maps or reads the same bytes.
fn sees_the_same_bytes(arena: &Arc<Arena>) {
    let other = OpenOptions::new().read(true).write(true).open(arena.path()).unwrap();
    assert_eq!(other.metadata().unwrap().len(), arena.bytes() as u64);
    other.write_all_at(b"from the engine", 3 * SLOT).unwrap();
    assert_eq!(&arena.peek(3).unwrap()[..15], b"from the engine");
    arena.poke(2, b"from the sidecar").unwrap();
    let mut seen = [0; 16];
    other.read_exact_at(&mut seen, 2 * SLOT).unwrap();
    assert_eq!(&seen, b"from the sidecar");
}

#[test]
fn another_process_sees_the_same_bytes() {
    let folder = Folder::new("same");
    sees_the_same_bytes(&ready(None, 4));
    sees_the_same_bytes(&ready(Some(&folder.0), 4));
}

#[cfg(target_os = "linux")]
#[test]
fn f22_nobody_can_resize_a_memfd() {
    let arena = arena(None, 4);
    let other = OpenOptions::new().write(true).open(arena.path()).unwrap();
    assert!(other.set_len(0).is_err(), "shrinking would be a SIGBUS for every reader");
    assert!(other.set_len(1 << 20).is_err());
}

#[test]
fn a_file_is_private_and_gone_at_close() {
    let folder = Folder::new("private");
    let arena = ready(Some(&folder.0), 4);
    assert_eq!(fs::metadata(arena.path()).unwrap().permissions().mode() & 0o7777, 0o600);
    let lease = arena.slots().lease(1, 1)[0];
    let access = arena.access(lease).unwrap();
    arena.close();
    arena.close();
    assert_eq!(folder.files(), 0);
    // A task that is still running keeps the mapping.
    drop(arena);
    // SAFETY: `access` keeps the slot mapped; it is at least one byte long.
    unsafe { access.as_ptr().write_volatile(7) };
}

#[test]
fn f21_the_sweep_removes_dead_files_only() {
    let folder = Folder::new("sweep");
    let living = arena(Some(&folder.0), 1);
    fs::write(folder.0.join("tierkv-arena-1-0"), b"left by a dead process").unwrap();
    fs::write(folder.0.join("something-else"), b"not ours").unwrap();
    fs::create_dir(folder.0.join("tierkv-arena-dir")).unwrap();
    assert_eq!(sweep(&folder.0).unwrap(), 1);
    assert_eq!(sweep(&folder.0).unwrap(), 0);
    assert_eq!(folder.files(), 3);
    assert!(Path::new(living.path()).exists());
    drop(living);
    assert_eq!(folder.files(), 2);
    assert_eq!(sweep(Path::new("/nonexistent/folder")).unwrap(), 0, "no folder, no files");
}

#[test]
fn a_slot_in_use_is_not_leased_again() {
    let arena = ready(None, 1);
    let lease = arena.slots().lease(1, 1)[0];
    let access = arena.access(lease).unwrap();
    assert_eq!(arena.slots().release_owner(1), 1, "its engine died");
    assert!(arena.slots().lease(2, 1).is_empty(), "the copy is still running");
    assert!(arena.access(lease).is_err(), "the lease is over, though");
    drop(access);
    assert_eq!(arena.slots().lease(2, 1), [Lease { generation: lease.generation + 1, ..lease }]);
}

#[test]
fn closing_stops_the_background_work() {
    let arena = arena(None, 1 << 18);
    arena.prefault().unwrap();
    arena.close();
    let touched = arena.status().touched_slots;
    assert!(touched < 1 << 18, "2 GiB are not touched that fast");
    let start = Instant::now();
    while Arc::strong_count(&arena) > 1 {
        assert!(start.elapsed() < DEADLINE, "the thread lets go of the arena");
        std::thread::yield_now();
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let create = |slot_bytes, slot_count, dir: Option<&str>| {
        let dir = dir.map(Path::new);
        Arena::create(&Options { slot_bytes, slot_count, dir, label: 1 }).unwrap_err()
    };
    for (slot_bytes, slot_count, words) in [
        (0, 1, "slotBytes is 0"),
        (4095, 1, "slotBytes is 4095"),
        (4096, 0, "slotCount is 0"),
        (4096, u32::MAX, "slotCount is 4294967295"),
        (1 << 60, 1 << 20, "more than an address space"),
    ] {
        let error = create(slot_bytes, slot_count, None);
        assert_eq!(error.code, Code::BadArgument);
        assert!(error.text.contains(words), "{error}");
    }
    let error = create(4096, 1, Some("/nonexistent/folder"));
    assert_eq!(error.code, Code::ArenaFailed);
    assert!(error.text.contains("/nonexistent/folder"), "{error}");
    assert_eq!(create(1 << 50, 1 << 10, None).code, Code::ArenaFailed, "the system refuses");
}
