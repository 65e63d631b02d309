//! Owns the list of what lanes are made of: connections of their own on which records travel between a vault and a client.
//!
//! The frames stand in docs/protocol.md, section 7.

pub mod client;
pub mod frame;
pub mod server;
pub mod stream;
pub mod tls;
pub mod wire;
