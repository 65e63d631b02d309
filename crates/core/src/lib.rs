//! Owns the list of the core's modules: pure Rust, no Node; bytes, slots, records, and lanes between machines.

pub mod arena;
pub mod codec;
pub mod codec_id;
pub mod crc32c;
pub mod disk;
pub mod door;
pub mod error;
pub mod failpoint;
pub mod folder;
pub mod geometry;
pub mod goodput;
pub mod header;
pub mod inbox;
pub mod key;
pub mod lane;
pub mod limits;
pub mod lockfile;
pub mod memory;
pub mod outbox;
pub mod pool;
pub mod record;
pub mod seal;
pub mod slots;
pub mod store;
mod sync;
mod table;
pub mod tenant;
