//! Owns memory that was given back, for the next user of the same length: the allocator would return it to the system and have
//! it faulted in again, page by page, which costs a save as much as receiving it.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use crate::sync::Mutex;

/// Memory that can be used again.
pub trait Memory {
    /// What it fits.
    fn layout(&self) -> Layout;

    /// Real memory behind it.
    fn real_bytes(&self) -> u64;
}

/// Free memory by layout. What was not given back for longest goes first.
#[derive(Debug)]
pub struct FreeList<M>(Mutex<State<M>>);

#[derive(Debug)]
struct State<M> {
    bytes: u64,
    /// The least there was since the last trim: nobody needed that much.
    unused_bytes: u64,
    tick: u64,
    by_layout: HashMap<Layout, Pile<M>>,
    /// Which layout was last put back when.
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
    /// Real memory kept.
    pub fn bytes(&self) -> u64 {
        self.with(|state| state.bytes)
    }

    /// Memory of exactly this layout, with whatever stood there.
    pub fn take(&self, layout: Layout) -> Option<M> {
        self.with(|state| state.take(layout))
    }

    /// Keeps memory, unless more than `room()` would be kept then.
    pub fn put(&self, memory: M, room: impl FnOnce() -> u64) {
        // What is not kept is given back when nobody waits.
        let left = self.with(|state| state.put(memory, room()));
        drop(left);
    }

    /// Gives back what is beyond `room()`.
    pub fn shrink(&self, room: impl FnOnce() -> u64) {
        let left = self.with(|state| state.shrink(room()));
        drop(left);
    }

    /// Gives back what nobody needed since the last time.
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
