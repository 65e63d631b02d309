//! Owns the fuzz target payload: the bytes go to crates/core/tests/support/payloads.rs.
#![no_main]

#[path = "all.rs"]
mod all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| all::payloads::payload(bytes));
