//! Owns the AVX2 kernels of codec 4, for blocks of 16 to 256 elements; others by the plain ones, compiled for it.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_loadu_si128, _mm256_add_epi16, _mm256_add_ps,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cvtepi8_epi16,
    _mm256_cvtepi16_epi32, _mm256_cvtepi32_ps, _mm256_cvtps_ph, _mm256_extracti128_si256,
    _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_packus_epi32,
    _mm256_permute_ps, _mm256_permute2f128_ps, _mm256_permute2x128_si256, _mm256_permute4x64_epi64,
    _mm256_set_m128i, _mm256_set1_ps, _mm256_setr_epi16, _mm256_setr_epi32, _mm256_setzero_si256,
    _mm256_shuffle_epi32, _mm256_shufflehi_epi16, _mm256_shufflelo_epi16, _mm256_sign_epi16,
    _mm256_srli_epi32, _mm256_sub_epi16, _mm256_sub_ps, _mm256_xor_ps,
};

use super::CACHE_LINE_BYTES;
use super::ahead::ask;
use super::avx2::{self, IN_ORDER, NEAREST_EVEN, nearest_bf16, store as store_bytes};
use super::hadamard::{block_of, transform};
use super::kernels::{Rows, Scale};
use super::scale::{BF16, F16, F32, element_bytes, value_of_scale};
use super::turned::{Run, Scratch, Turned, back_rows, encode_by_steps, transform_rows};

const LANES: usize = 8;
/// Sums of one register.
const WORDS: usize = 16;
const NEGATIVE: i32 = i32::MIN;
const F16_MAX: f32 = 65504.0;

pub const fn kernels<const D: u8>() -> Turned {
    Turned { encode: encode::<D>, back: back::<D>, back_single: back::<F32> }
}

unsafe fn encode<const D: u8>(run: Run<'_>, scratch: &mut Scratch) -> bool {
    // SAFETY: the caller's promise is the callee's.
    unsafe { encode_by_steps((forth::<D>, code), run, scratch) }
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn forth<const D: u8>(
    at: *const u8,
    rows: Rows,
    next: *const u8,
    values: &mut [f32],
    sums: &mut [f32],
) {
    for row in 0..values.len() / rows.dim {
        for line in (0..rows.dim * element_bytes(D)).step_by(CACHE_LINE_BYTES) {
            ask(next.wrapping_add(row * rows.stride + line));
        }
    }
    let transform = |values: &mut [f32]| {
        if values.len() >= 2 * LANES {
            turn_block(values);
        } else {
            transform::<f32, LANES>(values);
        }
    };
    // SAFETY: the caller's promise is the callee's.
    unsafe { transform_rows::<D>(at, rows, values, sums, transform) };
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn code(values: &mut [f32], mean: &[f32], scales: &mut [Scale], codes: &mut [u8]) -> bool {
    if scales.is_empty() {
        return true;
    }
    let dim = codes.len() / scales.len();
    if !mean.is_empty() {
        for values in values.chunks_exact_mut(dim) {
            for (value, mean) in values.iter_mut().zip(mean) {
                *value -= *mean;
            }
        }
    }
    let plain = Rows { stride: dim * size_of::<f32>(), dim };
    let at: *const u8 = values.as_ptr().cast();
    // SAFETY: there are as many values as codes.
    unsafe { (avx2::kernels::<F32>().encode)(at, plain, at, scales, codes) }
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one promise covers all: the caller's rows are writable"
)]
#[target_feature(enable = "avx2,f16c")]
unsafe fn back<const D: u8>(
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
        match (block_of(rows.dim), stream) {
            (16, true) => back_blocks::<D, 1, true>(scales, codes, mean, at, rows),
            (16, false) => back_blocks::<D, 1, false>(scales, codes, mean, at, rows),
            (32, true) => back_blocks::<D, 2, true>(scales, codes, mean, at, rows),
            (32, false) => back_blocks::<D, 2, false>(scales, codes, mean, at, rows),
            (64, true) => back_blocks::<D, 4, true>(scales, codes, mean, at, rows),
            (64, false) => back_blocks::<D, 4, false>(scales, codes, mean, at, rows),
            (128, true) => back_blocks::<D, 8, true>(scales, codes, mean, at, rows),
            (128, false) => back_blocks::<D, 8, false>(scales, codes, mean, at, rows),
            (256, true) => back_blocks::<D, 16, true>(scales, codes, mean, at, rows),
            (256, false) => back_blocks::<D, 16, false>(scales, codes, mean, at, rows),
            _ => back_rows::<D>(scales, codes, mean, sums, at, rows),
        }
    }
}

/// `R`: registers of a block's sums.
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one promise covers all: the caller's rows are writable"
)]
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn back_blocks<const D: u8, const R: usize, const STREAM: bool>(
    scales: &[Scale],
    codes: &[u8],
    mean: &[f32],
    at: *mut u8,
    rows: Rows,
) {
    for ((row, codes), scale) in codes.chunks_exact(rows.dim).enumerate().zip(scales) {
        let factor = _mm256_set1_ps(value_of_scale(*scale));
        let row = at.wrapping_add(row * rows.stride);
        for (number, codes) in codes.chunks_exact(R * WORDS).enumerate() {
            let mut block = [_mm256_setzero_si256(); R];
            let (steps, _) = codes.as_chunks::<WORDS>();
            for (words, step) in block.iter_mut().zip(steps) {
                // SAFETY: a step has 16 bytes.
                *words = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(step.as_ptr().cast()) });
            }
            turn_words(&mut block);
            for (index, words) in block.into_iter().enumerate() {
                let place = (number * R + index) * WORDS;
                let low = single(_mm256_castsi256_si128(words), factor, mean, place);
                let high = _mm256_extracti128_si256::<1>(words);
                let high = single(high, factor, mean, place + LANES);
                let to = row.wrapping_add(place * element_bytes(D));
                // SAFETY: the caller's row is writable and, if streamed, of whole cache lines.
                unsafe {
                    match D {
                        BF16 => store_bytes::<STREAM>(to, pack_bf16(low, high)),
                        F16 => store_bytes::<STREAM>(to, pack_f16(low, high)),
                        _ => {
                            store_bytes::<STREAM>(to, _mm256_castps_si256(low));
                            let to = to.wrapping_add(size_of::<__m256>());
                            store_bytes::<STREAM>(to, _mm256_castps_si256(high));
                        }
                    }
                }
            }
        }
    }
}

/// Eight sums times the scale, plus the mean at `place`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn single(words: __m128i, factor: __m256, mean: &[f32], place: usize) -> __m256 {
    let sums = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(words));
    let products = _mm256_mul_ps(sums, factor);
    match mean.get(place..).and_then(<[f32]>::first_chunk::<LANES>) {
        // SAFETY: a chunk has eight values.
        Some(mean) => _mm256_add_ps(products, unsafe { _mm256_loadu_ps(mean.as_ptr()) }),
        None => products,
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn pack_bf16(low: __m256, high: __m256) -> __m256i {
    let low = _mm256_srli_epi32::<16>(nearest_bf16(low));
    let high = _mm256_srli_epi32::<16>(nearest_bf16(high));
    _mm256_permute4x64_epi64::<IN_ORDER>(_mm256_packus_epi32(low, high))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn pack_f16(low: __m256, high: __m256) -> __m256i {
    let (most, least) = (_mm256_set1_ps(F16_MAX), _mm256_set1_ps(-F16_MAX));
    let [low, high] = [low, high].map(|values| _mm256_max_ps(_mm256_min_ps(values, most), least));
    let low = _mm256_cvtps_ph::<NEAREST_EVEN>(low);
    _mm256_set_m128i(_mm256_cvtps_ph::<NEAREST_EVEN>(high), low)
}

/// Transforms the sums of a block, in any order: integers are exact.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn turn_words<const R: usize>(block: &mut [__m256i; R]) {
    let mut apart = R / 2;
    while apart > 0 {
        for part in block.chunks_exact_mut(2 * apart) {
            let (low, high) = part.split_at_mut(apart);
            for (one, other) in low.iter_mut().zip(high) {
                let (a, b) = (*one, *other);
                *one = _mm256_add_epi16(a, b);
                *other = _mm256_sub_epi16(a, b);
            }
        }
        apart /= 2;
    }
    let eight = _mm256_setr_epi16(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    let four = _mm256_setr_epi16(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    let two = _mm256_setr_epi16(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    let one = _mm256_setr_epi16(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    for words in block {
        let mut v = *words;
        let other = _mm256_permute2x128_si256::<1>(v, v);
        v = _mm256_add_epi16(other, _mm256_sign_epi16(v, eight));
        let other = _mm256_shuffle_epi32::<0b01_00_11_10>(v);
        v = _mm256_add_epi16(other, _mm256_sign_epi16(v, four));
        let other = _mm256_shuffle_epi32::<0b10_11_00_01>(v);
        v = _mm256_add_epi16(other, _mm256_sign_epi16(v, two));
        let other = _mm256_shufflelo_epi16::<0b10_11_00_01>(v);
        let other = _mm256_shufflehi_epi16::<0b10_11_00_01>(other);
        *words = _mm256_add_epi16(other, _mm256_sign_epi16(v, one));
    }
}

/// Transforms a power of two of values, at least two registers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn turn_block(values: &mut [f32]) {
    let (registers, _) = values.as_chunks_mut::<LANES>();
    let mut apart = registers.len() / 2;
    // Two steps at once, which halves the memory traffic.
    while apart > 1 {
        for part in registers.chunks_exact_mut(2 * apart) {
            let (low, high) = part.split_at_mut(apart);
            let (low, middle) = low.split_at_mut(apart / 2);
            let (next, last) = high.split_at_mut(apart / 2);
            for (((a, b), c), d) in low.iter_mut().zip(middle).zip(next).zip(last) {
                let [one, two, three, four] = [load(a), load(b), load(c), load(d)];
                let (one, three) = (_mm256_add_ps(one, three), _mm256_sub_ps(one, three));
                let (two, four) = (_mm256_add_ps(two, four), _mm256_sub_ps(two, four));
                *a = store(_mm256_add_ps(one, two));
                *b = store(_mm256_sub_ps(one, two));
                *c = store(_mm256_add_ps(three, four));
                *d = store(_mm256_sub_ps(three, four));
            }
        }
        apart /= 4;
    }
    if apart == 1 {
        for [low, high] in registers.as_chunks_mut::<2>().0 {
            let (one, other) = (load(low), load(high));
            *low = store(within(_mm256_add_ps(one, other)));
            *high = store(within(_mm256_sub_ps(one, other)));
        }
    } else {
        for register in registers {
            *register = store(within(load(register)));
        }
    }
}

/// The steps within a register: each lane adds its partner to its own value or to its negative.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn within(lanes: __m256) -> __m256 {
    let n = NEGATIVE;
    let minus = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, 0, n, n, n, n));
    let other = _mm256_permute2f128_ps::<1>(lanes, lanes);
    let lanes = _mm256_add_ps(other, _mm256_xor_ps(lanes, minus));
    let minus = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, n, n, 0, 0, n, n));
    let other = _mm256_permute_ps::<0b01_00_11_10>(lanes);
    let lanes = _mm256_add_ps(other, _mm256_xor_ps(lanes, minus));
    let minus = _mm256_castsi256_ps(_mm256_setr_epi32(0, n, 0, n, 0, n, 0, n));
    let other = _mm256_permute_ps::<0b10_11_00_01>(lanes);
    _mm256_add_ps(other, _mm256_xor_ps(lanes, minus))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load(lanes: &[f32; LANES]) -> __m256 {
    // SAFETY: both are 32 bytes of plain numbers.
    unsafe { std::mem::transmute(*lanes) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store(lanes: __m256) -> [f32; LANES] {
    // SAFETY: both are 32 bytes of plain numbers.
    unsafe { std::mem::transmute(lanes) }
}
