//! Owns the proof of the lanes: records there and back over real sockets, and peers that are late, silent or wrong.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/random.rs"]
mod random;

mod bounds;
mod frames;
mod peers;
mod stand;
mod trip;
mod wires;
