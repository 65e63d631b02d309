//! Owns the checksum: CRC32C (Castagnoli), in hardware where the processor has it.

/// The checksum of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// The checksum of what `crc` covers, followed by `bytes`.
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// Which instructions compute it here: `sse4.2`, `armv8` or `portable`.
#[must_use]
pub fn implementation() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        return "sse4.2";
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        return "armv8";
    }
    "portable"
}

/// The checksum of `bytes` bytes whose own one is `second`, after bytes whose one is `first`.
#[must_use]
pub fn combine(first: u32, second: u32, bytes: usize) -> u32 {
    ::crc32c::crc32c_combine(first, second, bytes)
}
