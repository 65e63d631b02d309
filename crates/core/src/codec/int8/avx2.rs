//! Owns the AVX2 kernels: 16 elements per step, the rest of a row by the portable kernels.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_castsi128_ps, _mm_cvtph_ps,
    _mm_cvtss_f32, _mm_max_epu16, _mm_max_epu32, _mm_minpos_epu16, _mm_packs_epi16, _mm_set1_epi32,
    _mm_shuffle_epi32, _mm_slli_epi32, _mm_srli_si128, _mm_xor_si128, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blend_epi16, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cvtepi8_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_extracti128_si256,
    _mm256_max_epu16, _mm256_max_epu32, _mm256_mul_ps, _mm256_packs_epi16, _mm256_packs_epi32,
    _mm256_permute4x64_epi64, _mm256_set_m128i, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_stream_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
};

use super::ahead::{Path, ask};
use super::kernels::{Kernels, Rows, Scale};
use super::portable;
use super::scale::{
    BF16, F16, F32, element_bytes, magnitude_mask, scale_of, value_of, value_of_scale,
};

/// Elements of one step.
const STEP: usize = 16;
/// Bytes of one load.
const LOAD: usize = size_of::<__m256i>();
pub const NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT;
/// Packing works on each half of a register; this permutation puts the quarters back in order.
pub const IN_ORDER: i32 = 0b11_01_10_00;

pub const fn kernels<const D: u8>() -> Kernels {
    Kernels { encode: encode::<D>, decode: decode::<D> }
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn encode<const D: u8>(
    at: *const u8,
    rows: Rows,
    next: *const u8,
    scales: &mut [Scale],
    codes: &mut [u8],
) -> bool {
    if rows.dim.is_multiple_of(2 * STEP) {
        // SAFETY: the caller's rows are readable.
        unsafe { encode_rows::<D, true>(at, rows, next, scales, codes) }
    } else {
        // SAFETY: as above.
        unsafe { encode_rows::<D, false>(at, rows, next, scales, codes) }
    }
}

/// Encodes rows; quantises a row after reading the next one, because its scale takes a while. `WHOLE`: rows are multiples
/// of two steps, as most are.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn encode_rows<const D: u8, const WHOLE: bool>(
    at: *const u8,
    rows: Rows,
    next: *const u8,
    scales: &mut [Scale],
    mut codes: &mut [u8],
) -> bool {
    let path = Path { at, next, rows, count: scales.len() };
    let mut finite = true;
    let (mut from, mut before) = (at, 0.0);
    for (row, scale) in scales.iter_mut().enumerate() {
        let ahead = path.ahead_of(row);
        // SAFETY: the caller's rows are readable.
        let absmax = unsafe { absmax_row::<D, WHOLE>(from, rows.dim, ahead) };
        let (bits, reciprocal) = scale_of(absmax);
        *scale = bits.to_le_bytes();
        finite &= absmax.is_finite();
        if row > 0 {
            let (ready, rest) = codes.split_at_mut(rows.dim);
            // SAFETY: as above.
            unsafe { quantise_row::<D, WHOLE>(from.wrapping_sub(rows.stride), before, ready) };
            codes = rest;
        }
        from = from.wrapping_add(rows.stride);
        before = reciprocal;
    }
    // SAFETY: as above.
    unsafe { quantise_row::<D, WHOLE>(from.wrapping_sub(rows.stride), before, codes) };
    finite
}

/// The largest magnitude of a row.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn absmax_row<const D: u8, const WHOLE: bool>(
    mut at: *const u8,
    dim: usize,
    mut ahead: *const u8,
) -> f32 {
    let mask = if D == F32 {
        _mm256_set1_epi32(magnitude_mask(D).cast_signed())
    } else {
        _mm256_set1_epi16(0x7fff)
    };
    let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for _ in 0..dim * element_bytes(D) / (2 * LOAD) {
        ask(ahead);
        // SAFETY: the step ends within the row, which the caller vouches for.
        let first = unsafe { load(at) };
        // SAFETY: as above.
        let second = unsafe { load(at.wrapping_add(LOAD)) };
        even = larger::<D>(even, _mm256_and_si256(first, mask));
        odd = larger::<D>(odd, _mm256_and_si256(second, mask));
        at = at.wrapping_add(2 * LOAD);
        ahead = ahead.wrapping_add(2 * LOAD);
    }
    let largest = largest_value::<D>(larger::<D>(even, odd));
    if WHOLE {
        return largest;
    }
    let rest = dim % (2 * LOAD / element_bytes(D));
    // SAFETY: as above.
    let rest = value_of(D, unsafe { portable::absmax::<D>(at, rest) });
    // Compared as bits, because NaN must count as larger than any number.
    f32::from_bits(largest.to_bits().max(rest.to_bits()))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn larger<const D: u8>(one: __m256i, other: __m256i) -> __m256i {
    if D == F32 { _mm256_max_epu32(one, other) } else { _mm256_max_epu16(one, other) }
}

/// The value of the largest magnitude bits.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn largest_value<const D: u8>(lanes: __m256i) -> f32 {
    let low = _mm256_castsi256_si128(lanes);
    let high = _mm256_extracti128_si256::<1>(lanes);
    if D == F32 {
        let lanes = _mm_max_epu32(low, high);
        let lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32::<0b01_00_11_10>(lanes));
        let lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32::<0b10_11_00_01>(lanes));
        return _mm_cvtss_f32(_mm_castsi128_ps(lanes));
    }
    // The instruction finds the smallest of eight words; with all bits flipped, that is the largest.
    let ones = _mm_set1_epi32(-1);
    let smallest = _mm_minpos_epu16(_mm_xor_si128(_mm_max_epu16(low, high), ones));
    let largest = _mm_xor_si128(smallest, ones);
    if D == F16 {
        _mm_cvtss_f32(_mm_cvtph_ps(largest))
    } else {
        _mm_cvtss_f32(_mm_castsi128_ps(_mm_slli_epi32::<16>(largest)))
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn quantise_row<const D: u8, const WHOLE: bool>(
    mut at: *const u8,
    reciprocal: f32,
    codes: &mut [u8],
) {
    let factor = _mm256_set1_ps(reciprocal);
    let step_bytes = STEP * element_bytes(D);
    let (pairs, rest) = codes.as_chunks_mut::<{ 2 * STEP }>();
    for pair in pairs {
        // SAFETY: the row is as long as `codes`.
        let low = unsafe { quotients::<D>(at, factor) };
        // SAFETY: as above.
        let high = unsafe { quotients::<D>(at.wrapping_add(step_bytes), factor) };
        let both = _mm256_permute4x64_epi64::<IN_ORDER>(_mm256_packs_epi16(low, high));
        // SAFETY: a pair of steps has 32 codes.
        unsafe { pair.as_mut_ptr().cast::<__m256i>().write_unaligned(both) };
        at = at.wrapping_add(2 * step_bytes);
    }
    if WHOLE {
        return;
    }
    let (steps, rest) = rest.as_chunks_mut::<STEP>();
    for step in steps {
        // SAFETY: the row is as long as `codes`.
        let words = unsafe { quotients::<D>(at, factor) };
        let high = _mm256_extracti128_si256::<1>(words);
        let packed = _mm_packs_epi16(_mm256_castsi256_si128(words), high);
        // SAFETY: a step has 16 codes.
        unsafe { step.as_mut_ptr().cast::<__m128i>().write_unaligned(packed) };
        at = at.wrapping_add(step_bytes);
    }
    // SAFETY: the row is as long as `codes`.
    unsafe { portable::quantise::<D>(at, reciprocal, rest) };
}

/// 16 rounded quotients as 16-bit words.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn quotients<const D: u8>(at: *const u8, factor: __m256) -> __m256i {
    // SAFETY: the caller's 16 elements are at least 32 bytes.
    let first = unsafe { load(at) };
    let zero = _mm256_setzero_si256();
    let (low, high) = match D {
        // A bf16 is the upper half of its f32. Packing undoes the order of this unpacking.
        BF16 => (
            _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first)),
        ),
        F16 => (
            _mm256_cvtph_ps(_mm256_castsi256_si128(first)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(first)),
        ),
        _ => {
            // SAFETY: 16 elements of four bytes are 64 bytes.
            let second = unsafe { load(at.wrapping_add(LOAD)) };
            (_mm256_castsi256_ps(first), _mm256_castsi256_ps(second))
        }
    };
    let low = _mm256_cvtps_epi32(_mm256_mul_ps(low, factor));
    let high = _mm256_cvtps_epi32(_mm256_mul_ps(high, factor));
    let words = _mm256_packs_epi32(low, high);
    if D == BF16 { words } else { _mm256_permute4x64_epi64::<IN_ORDER>(words) }
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn decode<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    at: *mut u8,
    rows: Rows,
    stream: bool,
) {
    for (row, codes) in codes.chunks_exact(rows.dim).enumerate() {
        let scale = value_of_scale(scales[row]);
        let out = at.wrapping_add(row * rows.stride);
        if stream {
            // SAFETY: the caller's rows are writable and, if streamed, consist of whole cache lines.
            unsafe { dequantise_row::<D, true>(codes, scale, out) };
        } else {
            // SAFETY: the caller's rows are writable.
            unsafe { dequantise_row::<D, false>(codes, scale, out) };
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn dequantise_row<const D: u8, const STREAM: bool>(
    codes: &[u8],
    scale: f32,
    mut at: *mut u8,
) {
    let (steps, rest) = codes.as_chunks::<STEP>();
    for step in steps {
        // SAFETY: a step has 16 codes.
        let codes = unsafe { step.as_ptr().cast::<__m128i>().read_unaligned() };
        if D == F32 {
            let [low, high] = products(codes, scale).map(|lanes| _mm256_castps_si256(lanes));
            // SAFETY: the row is as long as `codes`.
            unsafe { store::<STREAM>(at, low) };
            // SAFETY: as above.
            unsafe { store::<STREAM>(at.wrapping_add(LOAD), high) };
        } else {
            let step =
                if D == F16 { f16_products(codes, scale) } else { bf16_products(codes, scale) };
            // SAFETY: as above.
            unsafe { store::<STREAM>(at, step) };
        }
        at = at.wrapping_add(STEP * element_bytes(D));
    }
    // SAFETY: the row is as long as `codes`.
    unsafe { portable::dequantise::<D>(rest, scale, at) };
}

/// 16 codes times the scale.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn products(codes: __m128i, scale: f32) -> [__m256; 2] {
    let factor = _mm256_set1_ps(scale);
    let low = _mm256_cvtepi8_epi32(codes);
    let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes));
    [
        _mm256_mul_ps(_mm256_cvtepi32_ps(low), factor),
        _mm256_mul_ps(_mm256_cvtepi32_ps(high), factor),
    ]
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn f16_products(codes: __m128i, scale: f32) -> __m256i {
    let [low, high] = products(codes, scale);
    let low = _mm256_cvtps_ph::<NEAREST_EVEN>(low);
    let high = _mm256_cvtps_ph::<NEAREST_EVEN>(high);
    _mm256_set_m128i(high, low)
}

/// 16 codes times the scale, as bf16; even and odd elements stay in separate registers, so that no packing is needed.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn bf16_products(codes: __m128i, scale: f32) -> __m256i {
    let words = _mm256_cvtepi8_epi16(codes);
    // Codes in the upper half of a lane are 2^16 times as large.
    let factor = _mm256_set1_ps(scale * (1.0 / 65536.0));
    let even = _mm256_slli_epi32::<16>(words);
    let odd = _mm256_and_si256(words, _mm256_set1_epi32(!0xffff));
    let even = nearest_bf16(_mm256_mul_ps(_mm256_cvtepi32_ps(even), factor));
    let odd = nearest_bf16(_mm256_mul_ps(_mm256_cvtepi32_ps(odd), factor));
    _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd)
}

/// The nearest bf16 in the upper half of each lane, ties to even; the lower half is undefined.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub fn nearest_bf16(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last)
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller's 32 bytes are readable.
    unsafe { at.cast::<__m256i>().read_unaligned() }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub unsafe fn store<const STREAM: bool>(at: *mut u8, lanes: __m256i) {
    if STREAM {
        // SAFETY: the caller's 32 bytes are writable and aligned.
        unsafe { _mm256_stream_si256(at.cast(), lanes) };
    } else {
        // SAFETY: the caller's 32 bytes are writable.
        unsafe { at.cast::<__m256i>().write_unaligned(lanes) };
    }
}
