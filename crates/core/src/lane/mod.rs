//! Owns the list of the modules for lanes: connections of their own that carry records between a vault and a client.
//!
//! The frames are described in docs/protocol.md, section 7.

mod buffers;
pub mod client;
pub mod frame;
pub mod server;
pub mod standing;
pub mod stream;
pub mod tls;
pub mod wire;
