//! Owns the description of the core.

use napi_derive::napi;
use tierkv_core::codec::int8::Isa;
use tierkv_core::crc32c;
use tierkv_core::record::{HEADER_BYTES, VERSION};

/// Build of the core, and the processor's features.
#[napi(object)]
pub struct CoreInfo {
    /// Version of the software.
    pub version: String,
    /// Version of the record header.
    pub record_version: u32,
    /// Length of the record header.
    pub header_bytes: u32,
    /// Instructions that compute checksums, in the library's terms.
    #[napi(js_name = "crc32c")]
    pub crc32c: String,
    /// Instruction set of the int8 codec: `avx512bf16`, `avx512`, `avx2`, `neon` or `portable`.
    pub isa: String,
    /// Whether assertions are compiled in, as in the build for tests, whose speed says nothing.
    pub assertions: bool,
}

/// Describes the core.
#[napi]
#[must_use]
pub fn core_info() -> CoreInfo {
    CoreInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        record_version: u32::from(VERSION),
        header_bytes: u32::try_from(HEADER_BYTES).unwrap_or_default(),
        crc32c: crc32c::implementation(),
        isa: Isa::best().name().into(),
        assertions: cfg!(debug_assertions),
    }
}
