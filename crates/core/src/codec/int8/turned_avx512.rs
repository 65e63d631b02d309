//! Owns the AVX-512 kernels that decode codec 4, for blocks of 32 to 256 elements; others by plain code, compiled for it.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm512_add_epi16, _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_cvtepi8_epi16,
    _mm512_cvtepi16_epi32, _mm512_cvtepi32_ps, _mm512_cvtne2ps_pbh, _mm512_cvtps_ph,
    _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_inserti64x4, _mm512_loadu_ps,
    _mm512_mask_sub_epi16, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_rol_epi32,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_shuffle_epi32, _mm512_shuffle_i64x2,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_stream_ps, _mm512_stream_si512, _mm512_sub_epi16,
};

use super::CACHE_LINE_BYTES;
use super::avx512::narrow_bf16;
use super::hadamard::block_of;
use super::kernels::{Rows, Scale};
use super::scale::{BF16, F16, F32, element_bytes, value_of_scale};
use super::turned::{Turned, back_rows};
use super::turned_avx512_encode::encode;

/// Values of one register.
const LANES: usize = 16;
/// Sums of one register.
const WORDS: usize = 32;
const F16_MAX: f32 = 65504.0;

/// `NATIVE`: the processor rounds to bf16.
pub const fn kernels<const D: u8, const NATIVE: bool>() -> Turned {
    let back = if NATIVE { native::back::<D> } else { plain::back::<D> };
    Turned { encode: encode::<D>, back, back_single: plain::back::<F32> }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn load(lanes: &[f32; LANES]) -> __m512 {
    // SAFETY: the array has as many values.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

/// Transforms the sums of a block, in any order: integers are exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn turn_words<const R: usize>(block: &mut [__m512i; R]) {
    let mut apart = R / 2;
    while apart > 0 {
        for part in block.chunks_exact_mut(2 * apart) {
            let (low, high) = part.split_at_mut(apart);
            for (one, other) in low.iter_mut().zip(high) {
                let (a, b) = (*one, *other);
                *one = _mm512_add_epi16(a, b);
                *other = _mm512_sub_epi16(a, b);
            }
        }
        apart /= 2;
    }
    for words in block {
        let mut v = *words;
        v = meet(v, _mm512_shuffle_i64x2::<0b01_00_11_10>(v, v), 0xffff_0000);
        v = meet(v, _mm512_shuffle_i64x2::<0b10_11_00_01>(v, v), 0xff00_ff00);
        v = meet(v, _mm512_shuffle_epi32::<0b01_00_11_10>(v), 0xf0f0_f0f0);
        v = meet(v, _mm512_shuffle_epi32::<0b10_11_00_01>(v), 0xcccc_cccc);
        *words = meet(v, _mm512_rol_epi32::<16>(v), 0xaaaa_aaaa);
    }
}

/// Each word plus its partner, or in the lanes of the mask its partner less itself.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn meet(own: __m512i, other: __m512i, mask: u32) -> __m512i {
    _mm512_mask_sub_epi16(_mm512_add_epi16(own, other), mask, other, own)
}

/// The elements of 32 values, as bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn pack(low: __m512, high: __m512) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(narrow_bf16(low)), narrow_bf16(high))
}

/// As `pack`, by the processor. It flushes subnormals to zero, but sums of codes times scales of the codec are none.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
fn pack_natively(low: __m512, high: __m512) -> __m512i {
    let packed = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute(packed) }
}

/// The kernel that decodes, with a function that rounds to bf16.
macro_rules! decoder {
    ($name:ident, $features:literal, $pack:ident) => {
        mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            pub unsafe fn back<const D: u8>(
                scales: &[Scale],
                codes: &[u8],
                mean: &[f32],
                sums: &mut [i16],
                at: *mut u8,
                rows: Rows,
                stream: bool,
            ) {
                // SAFETY: the caller's promise is the callee's.
                unsafe {
                    match block_of(rows.dim) {
                        32 => blocks::<D, 1>(scales, codes, mean, at, rows, stream),
                        64 => blocks::<D, 2>(scales, codes, mean, at, rows, stream),
                        128 => blocks::<D, 4>(scales, codes, mean, at, rows, stream),
                        256 => blocks::<D, 8>(scales, codes, mean, at, rows, stream),
                        _ => back_rows::<D>(scales, codes, mean, sums, at, rows),
                    }
                }
            }

            /// `R`: registers of a block's sums.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn blocks<const D: u8, const R: usize>(
                scales: &[Scale],
                codes: &[u8],
                mean: &[f32],
                at: *mut u8,
                rows: Rows,
                stream: bool,
            ) {
                for ((row, codes), scale) in codes.chunks_exact(rows.dim).enumerate().zip(scales) {
                    let factor = _mm512_set1_ps(value_of_scale(*scale));
                    let row = at.wrapping_add(row * rows.stride);
                    for (number, codes) in codes.chunks_exact(R * WORDS).enumerate() {
                        let mut block = [_mm512_setzero_si512(); R];
                        let (steps, _) = codes.as_chunks::<WORDS>();
                        for (words, step) in block.iter_mut().zip(steps) {
                            // SAFETY: a step has 32 bytes.
                            let step = unsafe { _mm256_loadu_si256(step.as_ptr().cast()) };
                            *words = _mm512_cvtepi8_epi16(step);
                        }
                        turn_words(&mut block);
                        for (index, words) in block.into_iter().enumerate() {
                            let place = (number * R + index) * WORDS;
                            let high = _mm512_extracti64x4_epi64::<1>(words);
                            let low = single(_mm512_castsi512_si256(words), factor, mean, place);
                            let high = single(high, factor, mean, place + LANES);
                            let to = row.wrapping_add(place * element_bytes(D));
                            // SAFETY: the caller's row is writable and, if streamed, of whole cache lines.
                            unsafe { put::<D>(to, low, high, stream) };
                        }
                    }
                }
            }

            /// Writes 32 elements.
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn put<const D: u8>(to: *mut u8, low: __m512, high: __m512, stream: bool) {
                // SAFETY: the caller's bytes are writable and, if streamed, a cache line.
                unsafe {
                    match D {
                        BF16 => put_line(to, $pack(low, high), stream),
                        F16 => {
                            put_half(to, narrow_f16(low), stream);
                            put_half(to.wrapping_add(32), narrow_f16(high), stream);
                        }
                        _ => {
                            put_singles(to, low, stream);
                            put_singles(to.wrapping_add(CACHE_LINE_BYTES), high, stream);
                        }
                    }
                }
            }
        }
    };
}

decoder!(plain, "avx512f,avx512bw,avx512vl", pack);
decoder!(native, "avx512f,avx512bw,avx512vl,avx512bf16", pack_natively);

/// 16 sums times the scale, plus the mean at `place`. Products are exact, so that one rounding is left either way.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn single(words: __m256i, factor: __m512, mean: &[f32], place: usize) -> __m512 {
    let sums = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words));
    match mean.get(place..).and_then(<[f32]>::first_chunk) {
        Some(mean) => _mm512_fmadd_ps(sums, factor, load(mean)),
        None => _mm512_mul_ps(sums, factor),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn narrow_f16(values: __m512) -> __m256i {
    let most = _mm512_set1_ps(F16_MAX);
    let values = _mm512_max_ps(_mm512_min_ps(values, most), _mm512_set1_ps(-F16_MAX));
    _mm512_cvtps_ph::<0>(values)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn put_line(to: *mut u8, line: __m512i, stream: bool) {
    if stream {
        // SAFETY: the caller's line is writable and aligned.
        unsafe { _mm512_stream_si512(to.cast(), line) };
    } else {
        // SAFETY: the caller's 64 bytes are writable.
        unsafe { _mm512_storeu_si512(to.cast(), line) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn put_half(to: *mut u8, half: __m256i, stream: bool) {
    if stream {
        // SAFETY: the caller's half of a line is writable and aligned.
        unsafe { _mm256_stream_si256(to.cast(), half) };
    } else {
        // SAFETY: the caller's 32 bytes are writable.
        unsafe { _mm256_storeu_si256(to.cast(), half) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn put_singles(to: *mut u8, values: __m512, stream: bool) {
    if stream {
        // SAFETY: the caller's line is writable and aligned.
        unsafe { _mm512_stream_ps(to.cast(), values) };
    } else {
        // SAFETY: the caller's 64 bytes are writable.
        unsafe { _mm512_storeu_ps(to.cast(), values) };
    }
}
