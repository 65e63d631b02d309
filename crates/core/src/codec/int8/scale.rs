//! Owns the arithmetic every instruction set must agree on: the scale rule and the conversions of elements.

/// bf16, as in the record header.
pub const BF16: u8 = 1;
/// fp16, as in the record header.
pub const F16: u8 = 2;
/// float32, as in the record header.
pub const F32: u8 = 3;

/// Bytes of one scale.
pub const SCALE_BYTES: usize = 2;
/// The smallest scale but zero: the smallest normal bf16 number, 2^-126.
const SCALE_MIN: u16 = 0x0080;
const BF16_INFINITY: u16 = 0x7f80;
const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);
const F16_MAX: f32 = 65504.0;
const RECIPROCAL_OF_CODE_MAX: f32 = 1.0 / 127.0;

/// Bytes of one element.
#[must_use]
pub const fn element_bytes(dtype: u8) -> usize {
    if dtype == F32 { 4 } else { 2 }
}

/// The bits of an element that are not the sign.
#[must_use]
pub const fn magnitude_mask(dtype: u8) -> u32 {
    if dtype == F32 { 0x7fff_ffff } else { 0x7fff }
}

/// Whether the magnitude bits of an element are those of a number, not of inf or NaN.
#[must_use]
pub fn is_finite(dtype: u8, magnitude: u32) -> bool {
    let infinity = match dtype {
        BF16 => u32::from(BF16_INFINITY),
        F16 => 0x7c00,
        _ => 0x7f80_0000,
    };
    magnitude < infinity
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
        BF16 => u32::from(bf16_of(value.clamp(-BF16_MAX, BF16_MAX))),
        F16 => f16_of(value.clamp(-F16_MAX, F16_MAX)),
        _ => value.clamp(f32::MIN, f32::MAX).to_bits(),
    }
}

/// The scale of a head vector with this largest magnitude: `absmax / 127` to the nearest bf16,
/// at least the smallest normal one, or zero where all is zero.
#[must_use]
#[inline]
pub fn scale_of(absmax: f32) -> u16 {
    if absmax == 0.0 { 0 } else { bf16_of(absmax * RECIPROCAL_OF_CODE_MAX).max(SCALE_MIN) }
}

/// Whether a writer can have made this scale: zero or a positive normal number.
#[must_use]
#[inline]
pub fn is_scale(bits: u16) -> bool {
    bits == 0 || (SCALE_MIN..BF16_INFINITY).contains(&bits)
}

/// What elements are multiplied with to become codes.
#[must_use]
#[inline]
pub fn reciprocal_of(scale: u16) -> f32 {
    if scale == 0 { 0.0 } else { 1.0 / value_of(BF16, u32::from(scale)) }
}

/// Whether every code times this scale stays clear of the limits of `dtype` and of f32, so that
/// kernels need no clamp: elsewhere the portable one decodes.
#[must_use]
#[inline]
pub fn is_ordinary(dtype: u8, scale: f32) -> bool {
    let limit = if dtype == F16 { 512.0 } else { 1e36 };
    scale == 0.0 || (1e-30..limit).contains(&scale)
}

/// The nearest bf16 of a finite number, ties to even.
#[inline]
fn bf16_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + ((bits >> 16) & 1);
    high_half(rounded)
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
    // Shifted into place, the exponent is 112 too small; a product with 2^112 is exact and mends subnormals, too.
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | value.to_bits())
}

/// `value` is within the finite numbers of fp16.
fn f16_of(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let half = if magnitude < f32::from_bits((127 - 14) << 23) {
        // Subnormal: adding 2^-1 leaves steps of 2^-24, which rounds to nearest even by itself.
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
        for bits in (0..=0xffff).filter(|bits| is_finite(F16, bits & 0x7fff)) {
            assert_eq!(element_of(F16, value_of(F16, bits)), bits);
        }
        assert!((value_of(F16, 0x0001) - 2.0_f32.powi(-24)).abs() < f32::EPSILON.powi(4));
        assert!((value_of(F16, 0x7bff) - 65504.0).abs() < f32::EPSILON);
    }

    #[test]
    fn f16_and_bf16_round_to_nearest_even() {
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
    fn no_scale_lets_a_code_pass_127() {
        // One whole binade of magnitudes; the rule is the same in all others.
        for bits in 0x3f80_0000_u32..0x4000_0000 {
            let absmax = f32::from_bits(bits);
            let code = (absmax * reciprocal_of(scale_of(absmax))).round_ties_even();
            assert!((code - 127.0).abs() < f32::EPSILON, "{absmax}: {code}");
        }
    }

    #[test]
    fn scales_are_zero_or_normal() {
        assert_eq!(scale_of(0.0), 0);
        for bits in [1, 0x7f_ffff, 0x80_0000, 0x7f7f_ffff] {
            assert!(is_scale(scale_of(f32::from_bits(bits))), "{bits:#x}");
        }
        assert_eq!(scale_of(f32::from_bits(1)), SCALE_MIN);
        for bits in [1, 0x7f, 0x7f80, 0x7fc0, 0x8000, 0xbf80] {
            assert!(!is_scale(bits), "{bits:#x}");
        }
    }
}
