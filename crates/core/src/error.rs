//! Owns the errors of the core: a code from a closed list and a text for people.

use std::fmt;

/// Kind of a failure, for callers to branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An argument is out of range, stale or of the wrong length.
    BadArgument,
    /// The shared memory could not be made, sized, mapped or swept.
    ArenaFailed,
    /// The id names no object, or no longer.
    UnknownId,
    /// Bytes do not form the expected record.
    BadRecord,
    /// A record sealed with another key, or changed since.
    RecordUnopened,
    /// A named limit on memory is reached, or the allocator refused.
    NoMemory,
    /// A lane could not be opened, broke, or its peer broke the protocol.
    LaneFailed,
    /// The caller gave the request up.
    Cancelled,
    /// No byte came for a fetch for as long as its caller allows.
    FetchStalled,
    /// The directory of the durable tier cannot be used.
    DiskFailed,
    /// A store that others run, or an archive, cannot be used as configured.
    StoreFailed,
}

impl Code {
    /// Name of the code, which precedes the text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BadArgument => "BAD_ARGUMENT",
            Self::ArenaFailed => "ARENA_FAILED",
            Self::UnknownId => "UNKNOWN_ID",
            Self::BadRecord => "BAD_RECORD",
            Self::RecordUnopened => "RECORD_UNOPENED",
            Self::NoMemory => "NO_MEMORY",
            Self::LaneFailed => "LANE_FAILED",
            Self::Cancelled => "CANCELLED",
            Self::FetchStalled => "FETCH_STALLED",
            Self::DiskFailed => "DISK_FAILED",
            Self::StoreFailed => "STORE_FAILED",
        }
    }
}

/// A failure of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The code.
    pub code: Code,
    /// Text that names the thing, the value and the fix.
    pub text: String,
}

impl Error {
    /// An error of `code`.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// An argument that cannot be used.
    pub fn bad_argument(text: impl Into<String>) -> Self {
        Self::new(Code::BadArgument, text)
    }

    /// A lane that cannot be used, or no longer.
    pub fn lane_failed(text: impl Into<String>) -> Self {
        Self::new(Code::LaneFailed, text)
    }

    /// A step of a lane that a failpoint made fail.
    #[must_use]
    pub fn made_to_fail(error: &std::io::Error) -> Self {
        Self::lane_failed(error.to_string())
    }

    /// Bytes that are not the expected record.
    pub fn bad_record(text: impl Into<String>) -> Self {
        Self::new(Code::BadRecord, text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.text)
    }
}

impl std::error::Error for Error {}

/// Result of the core's operations.
pub type Result<T> = std::result::Result<T, Error>;
