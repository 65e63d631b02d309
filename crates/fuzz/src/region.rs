//! Owns the fuzz target region: the bytes go to crates/shm/tests/support/scribbled.rs, whose corpus a test of that crate replays.
#![no_main]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

#[path = "../../shm/tests/support/options.rs"]
mod options;
#[path = "../../shm/tests/support/random.rs"]
mod random;
#[path = "../../shm/tests/support/scribbled.rs"]
mod scribbled;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scribbled::region(bytes));
