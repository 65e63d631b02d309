//! Owns the errors of the core: a code from a closed list and a text for people.

use std::fmt;

/// What went wrong, as the callers branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An argument is out of range, stale or of the wrong length.
    BadArgument,
    /// The shared memory could not be made, sized, mapped or swept.
    ArenaFailed,
    /// The id names nothing (any more).
    UnknownId,
    /// Bytes do not form the record that was expected.
    BadRecord,
    /// A record that is sealed with another key, or was changed since.
    RecordUnopened,
    /// A named limit on memory is reached, or the allocator refused.
    NoMemory,
    /// A lane could not be opened, broke, or its peer broke the protocol.
    LaneFailed,
    /// The request was given up by whoever made it.
    Cancelled,
    /// The directory of the durable tier cannot be used.
    DiskFailed,
}

impl Code {
    /// The name that stands in front of the text.
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
            Self::DiskFailed => "DISK_FAILED",
        }
    }
}

/// One failure of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The code.
    pub code: Code,
    /// Names the thing, the value and the fix.
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

    /// A lane that is of no use (any more).
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

/// What the core's operations answer.
pub type Result<T> = std::result::Result<T, Error>;
