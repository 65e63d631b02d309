//! Owns the list of the bindings' modules, one per module of the core: transfer objects in, ids and bytes out, no policy.

// napi exports nothing in a test build; test/core tests the bindings through the built addon.
#![cfg(not(test))]
#![expect(clippy::needless_pass_by_value, reason = "napi hands arguments over by value")]

mod arena;
mod block_index;
mod certs;
mod cold;
mod digest;
mod ffi;
mod folder;
mod geometry;
mod goodput;
mod http;
mod ids;
mod inbox;
mod info;
mod lane_client;
mod lane_tls;
mod listener;
mod lockfile;
mod outbox;
mod peer;
mod record;
mod recut;
mod seal;
#[cfg(target_os = "linux")]
mod shm;
mod store;
mod store_archive;
mod store_disk;
mod store_sessions;
#[cfg(feature = "test-exports")]
mod testing;
mod tokens;
