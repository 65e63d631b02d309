//! Owns the fuzz target index: the bytes go to crates/core/tests/support/targets.rs.
#![no_main]

#[path = "all.rs"]
mod all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| all::targets::index(bytes));
