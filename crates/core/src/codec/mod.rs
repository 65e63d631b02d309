//! Owns the encoding of a page to a payload and back, by codec.

pub mod int8;
pub mod lossless;
pub(crate) mod raw;
mod weigh;

use std::fmt;

pub use crate::codec_id::{Block, Codec, Form, MEAN_TOKENS, SCALE_BYTES};
use crate::geometry::Geometry;

use self::int8::Isa;
pub use self::weigh::{Weight, weigh};

/// The codec cannot represent the page, or saves nothing on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

/// The payload is not one that a writer of the codec makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPayload {
    /// A scale that is neither zero nor within the range of its codec.
    Scale,
    /// Not a payload of codec 1.
    Lossless,
}

impl fmt::Display for BadPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scale => "a scale is neither zero nor one that its codec writes",
            Self::Lossless => "its payload is not one of its codec",
        })
    }
}

/// Length and checksum of an encoded payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Its length.
    pub bytes: usize,
    /// Its CRC32C.
    pub checksum: u32,
}

impl Form {
    /// Encodes the page at `page` into `payload`, or into its start where lengths vary, in one pass.
    ///
    /// # Errors
    /// `Unfit`; `payload` then holds no usable bytes. Raw takes everything.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`.
    ///
    /// # Panics
    /// If `payload` is not `geometry.payload_bytes(self)` long.
    pub unsafe fn encode(
        self,
        geometry: &Geometry,
        page: *const u8,
        payload: &mut [u8],
    ) -> Result<Encoded, Unfit> {
        assert_eq!(Some(payload.len()), geometry.payload_bytes(self), "payload fits the geometry");
        let bytes = payload.len();
        match self.codec() {
            Codec::Raw => {
                // SAFETY: the caller's promise is the callee's.
                let checksum = unsafe { raw::gather(geometry, page, payload) };
                Ok(Encoded { bytes, checksum })
            }
            Codec::Lossless => {
                // SAFETY: as above; only bf16 has such a payload.
                let made = unsafe { lossless::encode(geometry, page, payload) };
                made.map(|(bytes, checksum)| Encoded { bytes, checksum }).map_err(|_| Unfit)
            }
            Codec::Int8 | Codec::Int8MeanHad => {
                // SAFETY: as above.
                let made = unsafe { int8::encode((Isa::best(), self), geometry, page, payload) };
                made.map(|checksum| Encoded { bytes, checksum }).map_err(|_| Unfit)
            }
        }
    }

    /// Decodes `payload` into the page at `page` in one pass; padding of the page is left alone.
    ///
    /// # Errors
    /// `BadPayload` where no writer of this codec makes such a payload; the page is then unusable.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
    ///
    /// # Panics
    /// If no payload of this geometry and codec has this length.
    pub unsafe fn decode(
        self,
        geometry: &Geometry,
        payload: &[u8],
        page: *mut u8,
    ) -> Result<(), BadPayload> {
        assert!(geometry.has_payload_of(self, payload.len()), "payload fits the geometry");
        match self.codec() {
            Codec::Raw => {
                // SAFETY: the caller's promise is the callee's.
                unsafe { raw::scatter(geometry, payload, page) };
                Ok(())
            }
            Codec::Lossless => {
                // SAFETY: as above; only bf16 has such a payload.
                let done = unsafe { lossless::decode(geometry, payload, page) };
                done.map_err(|_| BadPayload::Lossless)
            }
            Codec::Int8 | Codec::Int8MeanHad => {
                // SAFETY: as above.
                let done = unsafe { int8::decode((Isa::best(), self), geometry, payload, page) };
                done.map_err(|_| BadPayload::Scale)
            }
        }
    }
}
