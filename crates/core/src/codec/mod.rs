//! Owns the choice of codec: one id, one way from a page to a payload and back.

mod raw;

use crate::geometry::Geometry;

/// The codecs this version reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The block's elements as they are.
    Raw,
}

impl Codec {
    /// The codec of an id as it stands in a record, if this version knows it.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Raw),
            _ => None,
        }
    }

    /// The id as it stands in a record.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Raw => 0,
        }
    }

    /// Length of the payload of a block of `source_bytes`.
    #[must_use]
    pub fn payload_bytes(self, source_bytes: u64) -> u64 {
        match self {
            Self::Raw => source_bytes,
        }
    }

    /// Encodes the page at `page` into `payload` in one pass and returns the payload's CRC32C.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`.
    ///
    /// # Panics
    /// If `payload` is not `payload_bytes` of the geometry long.
    pub unsafe fn encode(self, geometry: &Geometry, page: *const u8, payload: &mut [u8]) -> u32 {
        match self {
            // SAFETY: the caller's promise is the callee's.
            Self::Raw => unsafe { raw::gather(geometry, page, payload) },
        }
    }

    /// Decodes `payload` into the page at `page` in one pass; padding of the page is left alone.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
    ///
    /// # Panics
    /// If `payload` is not `payload_bytes` of the geometry long.
    pub unsafe fn decode(self, geometry: &Geometry, payload: &[u8], page: *mut u8) {
        match self {
            // SAFETY: the caller's promise is the callee's.
            Self::Raw => unsafe { raw::scatter(geometry, payload, page) },
        }
    }
}
