//! Owns the fuzz target tls: the bytes go to crates/core/tests/support/secured.rs.
#![no_main]

#[path = "all.rs"]
mod all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| all::secured::tls(bytes));
