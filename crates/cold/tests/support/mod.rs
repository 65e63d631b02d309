//! Owns the list of what tests of stores share.

#![expect(dead_code, reason = "no test uses all of it")]

pub mod bench;
pub mod bucket;
pub mod fake;
pub mod gateway;
pub mod load;
pub mod places;
pub mod proxy;
pub mod server;
