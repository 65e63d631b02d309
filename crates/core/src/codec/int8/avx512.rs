//! Owns the AVX-512 kernels: 16 elements per step, the rest of a row through a mask.

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, __mmask16, _MM_FROUND_TO_NEAREST_INT, _mm_mask_storeu_epi8,
    _mm_maskz_loadu_epi8, _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm256_stream_si256,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_epi32, _mm512_cvtps_ph,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_epu32, _mm512_mul_ps,
    _mm512_reduce_max_epu32, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_srli_epi32, _mm512_stream_ps,
};

use super::CACHE_LINE_BYTES;
use super::ahead::{Path, ask};
use super::kernels::{Kernels, Rows, Scale};
use super::scale::{
    BF16, F16, F32, element_bytes, magnitude_mask, scale_of, value_of, value_of_scale,
};

/// Elements of one step.
const STEP: usize = 16;

pub const fn kernels<const D: u8>() -> Kernels {
    Kernels { encode: encode::<D>, decode: decode::<D> }
}

/// Steps of a row: the first element of each, and the mask of its elements that exist.
pub fn steps(dim: usize) -> impl Iterator<Item = (usize, __mmask16)> {
    let rest = dim % STEP;
    let whole = (0..dim - rest).step_by(STEP).map(|index| (index, !0));
    whole.chain((rest > 0).then_some((dim - rest, (1 << rest) - 1)))
}

/// Encodes rows; quantises a row after reading the next one, so that its scale is ready by then.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn encode<const D: u8>(
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
        let absmax = value_of(D, unsafe { absmax_row::<D>(from, rows.dim, ahead) });
        let (bits, reciprocal) = scale_of(absmax);
        *scale = bits.to_le_bytes();
        finite &= absmax.is_finite();
        if row > 0 {
            let (ready, rest) = codes.split_at_mut(rows.dim);
            // SAFETY: as above.
            unsafe { quantise_row::<D>(from.wrapping_sub(rows.stride), before, ready) };
            codes = rest;
        }
        from = from.wrapping_add(rows.stride);
        before = reciprocal;
    }
    // SAFETY: as above.
    unsafe { quantise_row::<D>(from.wrapping_sub(rows.stride), before, codes) };
    finite
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn absmax_row<const D: u8>(row: *const u8, dim: usize, ahead: *const u8) -> u32 {
    for line in (0..dim * element_bytes(D)).step_by(CACHE_LINE_BYTES) {
        ask(ahead.wrapping_add(line));
    }
    let mask = _mm512_set1_epi32(magnitude_mask(D).cast_signed());
    let mut lanes = _mm512_setzero_si512();
    for (index, present) in steps(dim) {
        // SAFETY: the caller's row is readable.
        let bits = unsafe { load_bits::<D>(row, index, present) };
        lanes = _mm512_max_epu32(lanes, _mm512_and_si512(bits, mask));
    }
    _mm512_reduce_max_epu32(lanes)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn quantise_row<const D: u8>(row: *const u8, reciprocal: f32, codes: &mut [u8]) {
    let factor = _mm512_set1_ps(reciprocal);
    for (index, present) in steps(codes.len()) {
        // SAFETY: the caller's row is readable and as long as `codes`.
        let values = unsafe { load_values::<D>(row, index, present) };
        let step = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values, factor)));
        let out = codes.as_mut_ptr().wrapping_add(index);
        // SAFETY: the elements that are present have their codes within `codes`.
        unsafe { _mm_mask_storeu_epi8(out.cast(), present, step) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn decode<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    at: *mut u8,
    rows: Rows,
    stream: bool,
) {
    for (row, codes) in codes.chunks_exact(rows.dim).enumerate() {
        let factor = _mm512_set1_ps(value_of_scale(scales[row]));
        for (index, present) in steps(rows.dim) {
            // SAFETY: the codes that are present lie within `codes`.
            let values = _mm512_mul_ps(unsafe { load_codes(codes, index, present) }, factor);
            let out = at.wrapping_add(row * rows.stride + index * element_bytes(D));
            match D {
                BF16 => {
                    let step = _mm512_cvtepi32_epi16(nearest_bf16(values));
                    // SAFETY: the caller's rows are writable and, if streamed, consist of whole cache lines.
                    unsafe { store_halves(out, present, step, stream) };
                }
                F16 => {
                    let step = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
                    // SAFETY: as above.
                    unsafe { store_halves(out, present, step, stream) };
                }
                // SAFETY: as above.
                _ => unsafe { store_singles(out, present, values, stream) },
            }
        }
    }
}

/// The nearest bf16 in the lower half of each lane, ties to even.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn nearest_bf16(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let last = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    _mm512_srli_epi32::<16>(rounded)
}

/// 16 values as bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub fn narrow_bf16(values: __m512) -> __m256i {
    _mm512_cvtepi32_epi16(nearest_bf16(values))
}

/// The bits of the elements in the mask, one per lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn load_bits<const D: u8>(row: *const u8, index: usize, present: __mmask16) -> __m512i {
    let at = row.wrapping_add(index * element_bytes(D));
    if D == F32 {
        // SAFETY: the elements in the mask are readable; the others are not accessed.
        _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(present, at.cast()) })
    } else {
        // SAFETY: as above.
        _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(present, at.cast()) })
    }
}

/// The values of the elements in the mask.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub unsafe fn load_values<const D: u8>(row: *const u8, index: usize, present: __mmask16) -> __m512 {
    // SAFETY: the caller's promise is the callee's.
    let bits = unsafe { load_bits::<D>(row, index, present) };
    match D {
        BF16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)),
        F16 => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)),
        _ => _mm512_castsi512_ps(bits),
    }
}

/// The codes in the mask, as floats. Unsafe: they must lie within `codes`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub unsafe fn load_codes(codes: &[u8], index: usize, present: __mmask16) -> __m512 {
    let at = codes.as_ptr().wrapping_add(index);
    // SAFETY: the codes in the mask are readable; the others are not accessed.
    let step: __m128i = unsafe { _mm_maskz_loadu_epi8(present, at.cast()) };
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(step))
}

/// Writes the two-byte elements in the mask.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub unsafe fn store_halves(at: *mut u8, present: __mmask16, step: __m256i, stream: bool) {
    if stream {
        // SAFETY: the caller's row is writable and, when streamed, consists of whole cache lines.
        unsafe { _mm256_stream_si256(at.cast(), step) };
    } else {
        // SAFETY: the elements in the mask are writable; the others are not accessed.
        unsafe { _mm256_mask_storeu_epi16(at.cast(), present, step) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn store_singles(at: *mut u8, present: __mmask16, step: __m512, stream: bool) {
    if stream {
        // SAFETY: the caller's row is writable and, when streamed, consists of whole cache lines.
        unsafe { _mm512_stream_ps(at.cast(), step) };
    } else {
        // SAFETY: the elements in the mask are writable; the others are not accessed.
        unsafe { _mm512_mask_storeu_ps(at.cast(), present, step) };
    }
}
