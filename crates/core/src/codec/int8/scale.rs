//! Owns the arithmetic that all instruction sets share: the scale rule and the conversions of elements.

use crate::codec_id::SCALE_BYTES;

/// bf16, as in the record header.
pub const BF16: u8 = 1;
/// fp16, as in the record header.
pub const F16: u8 = 2;
/// float32, as in the record header.
pub const F32: u8 = 3;

/// Smallest scale above zero: the smallest normal bf16 number, 2^-126.
pub const SCALE_MIN: u32 = 0x0080_0000;
/// 2^-107: a 2^16th part of it is still a normal number.
const ORDINARY_MIN: u16 = (127 - 107) << 7;
/// 2^120: 128 times this is still a bf16 number.
const ORDINARY_LIMIT: u16 = (127 + 120) << 7;
/// 2^9: 128 times the number below it, 510, is still an fp16 number.
const ORDINARY_F16_LIMIT: u16 = (127 + 9) << 7;
/// 2^-100, the smallest scale of codec 4.
const TURNED_MIN: u16 = (127 - 100) << 7;
/// 2^110: twice 2^15 times the number below it is finite.
const TURNED_LIMIT: u16 = (127 + 110) << 7;
const BF16_INFINITY: u16 = 0x7f80;
const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);
const F16_MAX: f32 = 65504.0;
/// Turns the largest magnitude into a scale.
pub const RECIPROCAL_OF_CODE_MAX: f32 = 1.0 / 127.0;

/// Bytes of one element.
#[must_use]
pub const fn element_bytes(dtype: u8) -> usize {
    if dtype == F32 { 4 } else { 2 }
}

/// Mask of an element's bits without the sign.
#[must_use]
pub const fn magnitude_mask(dtype: u8) -> u32 {
    if dtype == F32 { 0x7fff_ffff } else { 0x7fff }
}

/// The value of an element's bits; exact.
#[must_use]
#[inline]
pub fn value_of(dtype: u8, bits: u32) -> f32 {
    match dtype {
        BF16 => f32::from_bits(bits << 16),
        F16 => value_of_f16(bits),
        _ => f32::from_bits(bits),
    }
}

/// The element nearest to a finite or infinite `value`, ties to even; never inf.
#[must_use]
#[inline]
pub fn element_of(dtype: u8, value: f32) -> u32 {
    match dtype {
        BF16 => nearest_bf16(value.clamp(-BF16_MAX, BF16_MAX)) >> 16,
        F16 => f16_of(value.clamp(-F16_MAX, F16_MAX)),
        _ => value.clamp(f32::MIN, f32::MAX).to_bits(),
    }
}

/// Scale of a head vector with this largest magnitude, and the factor that turns its elements into codes. The scale is
/// `absmax / 127` to the nearest bf16, at least the smallest normal one. Both are zero for a zero vector.
#[must_use]
#[inline]
pub fn scale_of(absmax: f32) -> (u16, f32) {
    if absmax == 0.0 {
        return (0, 0.0);
    }
    let bits = nearest_bf16(absmax * RECIPROCAL_OF_CODE_MAX).max(SCALE_MIN);
    (high_half(bits), 1.0 / f32::from_bits(bits))
}

/// The value of a scale's bytes.
#[must_use]
#[inline]
pub fn value_of_scale(scale: [u8; SCALE_BYTES]) -> f32 {
    value_of(BF16, u32::from(u16::from_le_bytes(scale)))
}

/// Whether a writer can have made this scale: zero or a positive normal number.
#[must_use]
#[inline]
pub fn is_possible(scale: [u8; SCALE_BYTES]) -> bool {
    let bits = u16::from_le_bytes(scale);
    bits == 0 || (high_half(SCALE_MIN)..BF16_INFINITY).contains(&bits)
}

/// Whether a writer of codec 4 can have made this scale: zero, or so far from the ends of float32 that no sum of codes times
/// it, and no sum of two such products, is subnormal or infinite.
#[must_use]
#[inline]
pub fn is_turned(scale: [u8; SCALE_BYTES]) -> bool {
    let bits = u16::from_le_bytes(scale);
    bits == 0 || (TURNED_MIN..TURNED_LIMIT).contains(&bits)
}

/// Whether every code times this scale stays within the normal numbers of `dtype` and f32, so that kernels need no clamp;
/// the portable kernel decodes the others.
#[must_use]
#[inline]
pub fn is_ordinary(dtype: u8, scale: [u8; SCALE_BYTES]) -> bool {
    let bits = u16::from_le_bytes(scale);
    let limit = if dtype == F16 { ORDINARY_F16_LIMIT } else { ORDINARY_LIMIT };
    bits == 0 || (bits >= ORDINARY_MIN && bits < limit)
}

/// The nearest bf16 of a finite number, ties to even, as an f32's bits.
#[inline]
fn nearest_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000
}

#[inline]
fn high_half(bits: u32) -> u16 {
    let [_, _, low, high] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn value_of_f16(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    if magnitude >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (magnitude << 13));
    }
    // Shifted into place, the exponent is 112 too small; multiplying by 2^112 is exact and also normalises subnormals.
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | value.to_bits())
}

/// Converts a `value` within the finite range of fp16.
fn f16_of(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let half = if magnitude < f32::from_bits((127 - 14) << 23) {
        // Subnormal: adding 2^-1 leaves steps of 2^-24, so that the addition rounds to nearest even.
        (magnitude + 0.5).to_bits() - 0.5_f32.to_bits()
    } else {
        let bits = magnitude.to_bits() - (112 << 23);
        (bits + 0xfff + ((bits >> 13) & 1)) >> 13
    };
    sign | half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_the_way_to_f32_and_back() {
        for bits in (0..0x7c00).chain(0x8000..0xfc00) {
            assert_eq!(element_of(F16, value_of(F16, bits)), bits);
        }
        let exact = [(0x0001, -24), (0x0400, -14), (0x3c00, 0), (0x7800, 15)];
        for (bits, power) in exact {
            assert_eq!(value_of(F16, bits).to_bits(), 2.0_f32.powi(power).to_bits());
        }
        assert!(value_of(F16, 0x7c00).is_infinite());
        assert!(value_of(F16, 0x7c01).is_nan());
    }

    #[test]
    fn halves_are_rounded_to_nearest_even() {
        // 1 + 2^-11 lies halfway between 0x3c00 and 0x3c01; 1 + 3 * 2^-11 between 0x3c01 and 0x3c02.
        assert_eq!(element_of(F16, 1.0 + 2.0_f32.powi(-11)), 0x3c00);
        assert_eq!(element_of(F16, 1.0 + 3.0 * 2.0_f32.powi(-11)), 0x3c02);
        assert_eq!(element_of(F16, 1.5 * 2.0_f32.powi(-24)), 0x0002);
        assert_eq!(element_of(F16, 2.5 * 2.0_f32.powi(-24)), 0x0002);
        assert_eq!(element_of(BF16, 1.0 + 2.0_f32.powi(-8)), 0x3f80);
        assert_eq!(element_of(BF16, 1.0 + 3.0 * 2.0_f32.powi(-8)), 0x3f82);
    }

    #[test]
    fn what_is_too_large_becomes_the_largest_number() {
        assert_eq!(element_of(F16, 1e9), 0x7bff);
        assert_eq!(element_of(F16, -65519.0), 0xfbff);
        assert_eq!(element_of(BF16, f32::MAX), 0x7f7f);
        assert_eq!(element_of(F32, f32::INFINITY), f32::MAX.to_bits());
    }

    #[test]
    fn the_largest_element_always_becomes_127() {
        // Every 16th number of one binade; other binades differ only in the exponent.
        for bits in (0x3f80_0000_u32..0x4000_0000).step_by(16) {
            let absmax = f32::from_bits(bits);
            let (_, reciprocal) = scale_of(absmax);
            let code = (absmax * reciprocal).round_ties_even();
            assert_eq!(code.to_bits(), 127.0_f32.to_bits(), "{absmax}");
        }
    }

    #[test]
    fn scales_are_zero_or_normal() {
        assert_eq!(scale_of(0.0), (0, 0.0));
        assert_eq!(scale_of(f32::from_bits(1)).0, 0x0080);
        for bits in [1, 0x7f_ffff, 0x80_0000, 0x3f80_0000, 0x7f7f_ffff] {
            let (scale, reciprocal) = scale_of(f32::from_bits(bits));
            assert!(is_possible(scale.to_le_bytes()) && reciprocal.is_normal(), "{bits:#x}");
        }
        for bits in [1_u16, 0x7f, 0x7f80, 0x7fc0, 0x8000, 0xbf80] {
            assert!(!is_possible(bits.to_le_bytes()), "{bits:#x}");
        }
    }
}
