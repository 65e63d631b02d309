//! Owns the helpers of all bindings: errors with their code, no panic across the border, checked numbers.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use napi::Status;
use tierkv_core::error::{Error, Result};
use tierkv_core::record::{HASH_BYTES, Hash};

/// Largest integer that a JavaScript number holds exactly.
const EXACT_MAX: f64 = 9_007_199_254_740_991.0;

/// Runs a call; turns its error or panic into a JavaScript error "CODE: text".
pub fn run<T>(call: impl FnOnce() -> Result<T>) -> napi::Result<T> {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
        Err(Error::bad_argument(format!("the native core gave up on this call: {words}")))
    });
    outcome.map_err(|error| napi::Error::new(Status::GenericFailure, error.to_string()))
}

/// A byte count or offset.
#[expect(clippy::cast_possible_truncation, reason = "checked to be a whole number in range")]
#[expect(clippy::cast_sign_loss, reason = "checked not to be negative")]
pub fn count(name: &str, value: f64) -> Result<u64> {
    if (0.0..=EXACT_MAX).contains(&value) && value.fract() == 0.0 {
        return Ok(value as u64);
    }
    Err(Error::bad_argument(format!("{name} is {value}: it must be a whole number, 0 to 2^53 - 1")))
}

/// Converts a byte count for JavaScript.
#[expect(clippy::cast_precision_loss, reason = "byte counts stay far below 2^53")]
pub fn number(value: u64) -> f64 {
    value as f64
}

/// Converts a length or a count for JavaScript.
pub fn size(value: usize) -> f64 {
    number(value as u64)
}

/// Checks the length of a namespace or hash.
pub fn hash(name: &str, bytes: &[u8]) -> Result<Hash> {
    bytes.try_into().map_err(|_| {
        Error::bad_argument(format!("{name} has {} bytes: it must have {HASH_BYTES}", bytes.len()))
    })
}

/// Parses an IP address.
pub fn ip(name: &str, text: &str) -> Result<IpAddr> {
    text.parse().map_err(|error| Error::bad_argument(format!("{name} {text:?}: {error}")))
}

/// Checks that the account of a credential fits two bytes.
pub fn account_of(number: u32) -> Result<u16> {
    u16::try_from(number)
        .map_err(|_| Error::bad_argument(format!("account {number}: it must be below 65536")))
}
