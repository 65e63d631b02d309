//! Owns the way from a page to a payload and back, by codec.

pub mod int8;
pub(crate) mod raw;

pub use crate::codec_id::{Block, Codec};
use crate::geometry::Geometry;

use self::int8::{BadScale, Isa, NotFinite};

impl Codec {
    /// Encodes the page at `page` into `payload` in one pass and returns the payload's CRC32C.
    ///
    /// # Errors
    /// `NotFinite` where the codec has no code for an element; `payload` then holds nothing of use.
    /// Raw takes everything.
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
    ) -> Result<u32, NotFinite> {
        match self {
            // SAFETY: the caller's promise is the callee's.
            Self::Raw => Ok(unsafe { raw::gather(geometry, page, payload) }),
            // SAFETY: as above.
            Self::Int8 => unsafe { int8::encode(Isa::best(), geometry, page, payload) },
        }
    }

    /// Decodes `payload` into the page at `page` in one pass; padding of the page is left alone.
    ///
    /// # Errors
    /// `BadScale` where no writer of this codec made the payload; the page is untouched then.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
    ///
    /// # Panics
    /// If `payload` is not `geometry.payload_bytes(self)` long.
    pub unsafe fn decode(
        self,
        geometry: &Geometry,
        payload: &[u8],
        page: *mut u8,
    ) -> Result<(), BadScale> {
        match self {
            Self::Raw => {
                // SAFETY: the caller's promise is the callee's.
                unsafe { raw::scatter(geometry, payload, page) };
                Ok(())
            }
            // SAFETY: as above.
            Self::Int8 => unsafe { int8::decode(Isa::best(), geometry, payload, page) },
        }
    }
}
