//! Owns the reasons for which bytes are refused as a record.

use std::fmt;

use crate::error::Error;

/// Reason for refusing a record. The variants are in the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Fewer bytes than a header.
    Short,
    /// Does not start with the magic.
    Magic,
    /// Another version.
    Version,
    /// Another header length.
    HeaderBytes,
    /// The header's checksum does not match.
    HeaderChecksum,
    /// A codec this reader does not know.
    Codec,
    /// A class this reader does not know.
    Class,
    /// A layout this reader does not know.
    Layout,
    /// A source dtype this reader does not know.
    Dtype,
    /// A codec in a namespace of another fidelity.
    Fidelity,
    /// Counts, dims and lengths that contradict each other.
    Geometry,
    /// Reserved bytes that are not zero.
    Reserved,
    /// Length is not header plus payload.
    Length,
    /// The payload's checksum does not match.
    PayloadChecksum,
}

impl Refusal {
    /// One word for tests and counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Magic => "magic",
            Self::Version => "version",
            Self::HeaderBytes => "header_bytes",
            Self::HeaderChecksum => "header_checksum",
            Self::Codec => "codec",
            Self::Class => "class",
            Self::Layout => "layout",
            Self::Dtype => "dtype",
            Self::Fidelity => "fidelity",
            Self::Geometry => "geometry",
            Self::Reserved => "reserved",
            Self::Length => "length",
            Self::PayloadChecksum => "payload_checksum",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Short => "fewer bytes than a record header",
            Self::Magic => "does not start with TKVR",
            Self::Version => "version is not 1",
            Self::HeaderBytes => "header length is not 192",
            Self::HeaderChecksum => "header checksum does not match",
            Self::Codec => "codec is not one this version reads",
            Self::Class => "class is neither kv nor ssm",
            Self::Layout => "layout is neither canonical nor opaque",
            Self::Dtype => "source dtype is unknown",
            Self::Fidelity => "a codec in a namespace of another fidelity",
            Self::Geometry => "counts, dims and lengths contradict each other",
            Self::Reserved => "reserved bytes are not zero",
            Self::Length => "length is not header plus payload",
            Self::PayloadChecksum => "payload checksum does not match",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::bad_record(refusal.to_string())
    }
}
