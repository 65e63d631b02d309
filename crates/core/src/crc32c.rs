//! Owns the checksum CRC32C (Castagnoli), in hardware where the processor has it.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Extends the checksum `crc` by `bytes`.
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    // The algorithm has 32 bits.
    u32::try_from(digest.finalize()).unwrap_or_default()
}

/// Instructions that compute the checksum here, in the library's terms, for example `x86_64-avx512-vpclmulqdq`.
#[must_use]
pub fn implementation() -> String {
    crc_fast::get_calculator_target(CrcAlgorithm::Crc32Iscsi)
}

/// The polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// x^(2^n) modulo the polynomial, for each n; x^(2^31) is x again, because the polynomial has the factor x + 1.
const POWERS: [u32; 31] = {
    let mut powers = [1 << 30; 31];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Product of two polynomials modulo ours; the highest coefficient is the lowest bit.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ (if b & 1 == 0 { 0 } else { POLYNOMIAL });
        bit >>= 1;
    }
    product
}

/// Checksum of two parts joined, `second` being that of the last `bytes` bytes. Chunks arrive by the thousand per second,
/// so that this must take about a microsecond; the crate `crc32c` takes twenty times as long.
#[must_use]
pub fn combine(first: u32, second: u32, bytes: usize) -> u32 {
    // x^(8 * bytes), multiplied from one power per bit of `bytes`.
    let bits = (0..usize::BITS as usize).filter(|bit| bytes >> bit & 1 == 1);
    let shift = bits.fold(1 << 31, |shift, bit| multiply(POWERS[(bit + 3) % POWERS.len()], shift));
    multiply(shift, first) ^ second
}

#[cfg(test)]
mod tests {
    use super::{append, checksum, combine};

    #[test]
    fn two_checksums_make_one() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|at| (at * 31 % 251) as u8).collect();
        for middle in [0, 1, 7, 192, 4096, 65_537, bytes.len()] {
            let (first, second) = bytes.split_at(middle);
            let joined = combine(checksum(first), checksum(second), second.len());
            // The expected value comes from another library.
            assert_eq!(joined, ::crc32c::crc32c(&bytes), "{middle}");
            assert_eq!(append(checksum(first), second), joined, "{middle}");
        }
        assert_eq!(combine(7, 9, 1 << 40), ::crc32c::crc32c_combine(7, 9, 1 << 40));
    }
}
