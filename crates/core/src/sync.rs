//! Owns the atomics, and the one lock beside them, of what threads share: the system's, or those of loom, which tries every order of them.

#[cfg(loom)]
pub use loom::sync::Mutex;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::Mutex;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
