//! Owns the list of what tests of stores share.

pub mod bench;
pub mod fake;
pub mod server;
