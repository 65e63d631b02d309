//! Owns the fuzz target answer: the bytes go to crates/http/tests/support/cuts.rs.
#![no_main]

#[path = "../../http/tests/support/cuts.rs"]
mod cuts;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cuts::answer(bytes));
