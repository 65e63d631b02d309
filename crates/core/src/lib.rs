//! Owns the list of the core's modules: pure Rust, no Node, no sockets; bytes, slots and records.

pub mod arena;
pub mod codec;
pub mod crc32c;
pub mod error;
pub mod geometry;
pub mod inbox;
pub mod limits;
pub mod lockfile;
pub mod outbox;
pub mod pool;
pub mod record;
pub mod slots;
pub mod store;
