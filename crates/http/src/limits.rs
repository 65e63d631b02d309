//! Owns the limits of the HTTP client.

use std::time::Duration;

/// Bytes of an answer's head, and of the extensions and trailers of a chunked body.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header fields of an answer.
pub const HEADERS_MAX: usize = 256;

/// Bytes read at once, and so of one piece of an answer.
pub const PIECE_BYTES: usize = 64 * 1024;

/// Bytes of an answer of known length that is awaited whole before anybody hears of it.
pub const WHOLE_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of a body that is sent in one write with its head.
pub const JOINED_BYTES_MAX: usize = 16 * 1024;

/// Interval at which it is looked at what takes too long.
pub const TICK: Duration = Duration::from_millis(500);

/// Requests that wait for a connection to one engine.
pub const WAITING_MAX: usize = 65_536;

/// Reads of one connection before the others have their turn.
pub const READS_AT_ONCE: usize = 16;

/// Readiness events taken from the system at once.
pub const EVENTS_AT_ONCE: usize = 1_024;

/// Names of hosts that are resolved at once, each by a thread.
pub const RESOLVES_MAX: usize = 32;

/// Readiness events a second from which on pieces gather, measured over windows of this length, and for how long: a
/// fraction of what an engine takes for a token.
pub const BUSY_EVENTS_PER_S: u128 = 5_000;
pub const BUSY_WINDOW: Duration = Duration::from_millis(10);
pub const GATHERING: Duration = Duration::from_micros(200);

/// Events at once that are enough of a gathering.
pub const GATHERED: usize = 32;
