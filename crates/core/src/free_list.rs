//! Owns freed memory for reuse at the same layout. The allocator would return it to the system, and faulting it in again
//! page by page costs a save as much as receiving it.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use crate::sync::Mutex;

/// Memory that can be reused.
pub trait Memory {
    /// Layout it was allocated with.
    fn layout(&self) -> Layout;

    /// Real memory behind it, in bytes.
    fn real_bytes(&self) -> u64;
}

/// Free memory by layout. The layout that got memory back least recently is released first.
#[derive(Debug)]
pub struct FreeList<M>(Mutex<State<M>>);

#[derive(Debug)]
struct State<M> {
    bytes: u64,
    /// Fewest free bytes since the last trim, so that this much was not needed.
    unused_bytes: u64,
    tick: u64,
    by_layout: HashMap<Layout, Pile<M>>,
    /// Layouts by the tick at which memory was last put back.
    by_tick: BTreeMap<u64, Layout>,
}

#[derive(Debug)]
struct Pile<M> {
    tick: u64,
    free: Vec<M>,
}

impl<M> Default for FreeList<M> {
    fn default() -> Self {
        Self(Mutex::new(State {
            bytes: 0,
            unused_bytes: 0,
            tick: 0,
            by_layout: HashMap::new(),
            by_tick: BTreeMap::new(),
        }))
    }
}

impl<M: Memory> FreeList<M> {
    /// Real memory kept, in bytes.
    pub fn bytes(&self) -> u64 {
        self.with(|state| state.bytes)
    }

    /// Takes memory of exactly this layout; its contents are stale.
    pub fn take(&self, layout: Layout) -> Option<M> {
        self.with(|state| state.take(layout))
    }

    /// Keeps memory, unless more than `room()` bytes would then be kept.
    pub fn put(&self, memory: M, room: impl FnOnce() -> u64) {
        // Memory that is not kept is freed outside the lock.
        let left = self.with(|state| state.put(memory, room()));
        drop(left);
    }

    /// Frees memory above `room()` bytes.
    pub fn shrink(&self, room: impl FnOnce() -> u64) {
        let left = self.with(|state| state.shrink(room()));
        drop(left);
    }

    /// Frees memory that was not needed since the last call.
    pub fn trim(&self) {
        let left = self.with(|state| {
            let left = state.shrink(state.bytes - state.unused_bytes);
            state.unused_bytes = state.bytes;
            left
        });
        drop(left);
    }

    fn with<T>(&self, work: impl FnOnce(&mut State<M>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<M: Memory> State<M> {
    fn take(&mut self, layout: Layout) -> Option<M> {
        let pile = self.by_layout.get_mut(&layout)?;
        let memory = pile.free.pop()?;
        if pile.free.is_empty() {
            self.by_tick.remove(&pile.tick);
            self.by_layout.remove(&layout);
        }
        self.bytes -= memory.real_bytes();
        self.unused_bytes = self.unused_bytes.min(self.bytes);
        Some(memory)
    }

    fn put(&mut self, memory: M, room: u64) -> Option<M> {
        let bytes = memory.real_bytes();
        if self.bytes + bytes > room {
            return Some(memory);
        }
        self.bytes += bytes;
        self.tick += 1;
        let new = || Pile { tick: 0, free: Vec::new() };
        let pile = self.by_layout.entry(memory.layout()).or_insert_with(new);
        self.by_tick.remove(&pile.tick);
        self.by_tick.insert(self.tick, memory.layout());
        pile.tick = self.tick;
        pile.free.push(memory);
        None
    }

    fn shrink(&mut self, room: u64) -> Vec<M> {
        let mut left = Vec::new();
        while self.bytes > room {
            let Some(layout) = self.by_tick.first_key_value().map(|(_, layout)| *layout) else {
                break;
            };
            left.extend(self.take(layout));
        }
        left
    }
}
