//! Owns memory that records gave back, for the next ones of the same length: the allocator would return it to the system and
//! have it faulted in again, page by page, which costs a save as much as receiving it.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use super::allocation::Allocation;
use crate::limits::STORE_SPARE_BYTES_MIN;
use crate::sync::Mutex;

/// Spare memory by layout. What was not given back for longest goes first.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// The least there was since the last trim: nobody needed that much.
    unused_bytes: u64,
    turn: u64,
    by_layout: HashMap<Layout, Pile>,
    /// Which layout was last put back when.
    by_turn: BTreeMap<u64, Layout>,
}

#[derive(Debug, Default)]
struct Pile {
    turn: u64,
    spares: Vec<Allocation>,
}

impl Spares {
    /// Real memory kept.
    pub(super) fn bytes(&self) -> u64 {
        self.with(|state| state.bytes)
    }

    /// Memory of exactly this layout, with whatever stood there.
    pub(super) fn take(&self, layout: Layout) -> Option<Allocation> {
        if !is_kept(layout) {
            return None;
        }
        self.with(|state| state.take(layout))
    }

    /// Keeps memory, unless more than `room()` would be kept then.
    pub(super) fn put(&self, memory: Allocation, room: impl FnOnce() -> u64) {
        if is_kept(memory.layout()) {
            // What is not kept is given back when nobody waits.
            let left = self.with(|state| state.put(memory, room()));
            drop(left);
        }
    }

    /// Gives back what is beyond `room()`.
    pub(super) fn shrink(&self, room: impl FnOnce() -> u64) {
        let left = self.with(|state| state.shrink(room()));
        drop(left);
    }

    /// Gives back what nobody needed since the last time.
    pub(super) fn trim(&self) {
        let left = self.with(|state| {
            let left = state.shrink(state.bytes - state.unused_bytes);
            state.unused_bytes = state.bytes;
            left
        });
        drop(left);
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Small memory is the allocator's to keep: it takes and gives it without the system.
fn is_kept(layout: Layout) -> bool {
    layout.size() >= STORE_SPARE_BYTES_MIN
}

impl State {
    fn take(&mut self, layout: Layout) -> Option<Allocation> {
        let pile = self.by_layout.get_mut(&layout)?;
        let spare = pile.spares.pop()?;
        if pile.spares.is_empty() {
            self.by_turn.remove(&pile.turn);
            self.by_layout.remove(&layout);
        }
        self.bytes -= spare.real_bytes();
        self.unused_bytes = self.unused_bytes.min(self.bytes);
        Some(spare)
    }

    fn put(&mut self, memory: Allocation, room: u64) -> Option<Allocation> {
        let bytes = memory.real_bytes();
        if self.bytes + bytes > room {
            return Some(memory);
        }
        self.bytes += bytes;
        self.turn += 1;
        let pile = self.by_layout.entry(memory.layout()).or_default();
        self.by_turn.remove(&pile.turn);
        self.by_turn.insert(self.turn, memory.layout());
        pile.turn = self.turn;
        pile.spares.push(memory);
        None
    }

    fn shrink(&mut self, room: u64) -> Vec<Allocation> {
        let mut left = Vec::new();
        while self.bytes > room {
            let Some(layout) = self.by_turn.first_key_value().map(|(_, layout)| *layout) else {
                break;
            };
            left.extend(self.take(layout));
        }
        left
    }
}
