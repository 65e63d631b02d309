//! Owns the AVX-512 kernel that encodes codec 4, for blocks of 32 to 256 elements.
//!
//! Values lie in pairs of registers, elements of even number in the first and of odd number in the second: a register of
//! bf16 splits into such a pair in two instructions, and the last step of the transform needs no shuffle.

use std::arch::x86_64::{
    __m512, __m512i, _mm_setr_epi8, _mm256_mask_storeu_epi16, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cmpge_epu32_mask, _mm512_cvtepi32_epi16,
    _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_blend_ps, _mm512_maskz_div_ps, _mm512_maskz_max_epu32, _mm512_max_epu32,
    _mm512_mul_ps, _mm512_packs_epi16, _mm512_packs_epi32, _mm512_permute_ps,
    _mm512_permutex2var_ps, _mm512_permutexvar_epi64, _mm512_range_ps, _mm512_set_epi32,
    _mm512_set_epi64, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_shuffle_f32x4, _mm512_shuffle_i64x2, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_ps,
    _mm512_test_epi32_mask, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

use super::CACHE_LINE_BYTES;
use super::ahead::ask;
use super::avx512::load_values;
use super::hadamard::block_of;
use super::kernels::{Rows, Scale};
use super::scale::{BF16, RECIPROCAL_OF_CODE_MAX, SCALE_MIN, element_bytes, value_of_scale};
use super::turned::{Run, Scratch, share_of};
use super::turned_avx2;
use crate::codec_id::MEAN_TOKENS;

/// Values of a register.
const LANES: usize = 16;
/// Values of a pair of registers.
const PAIR: usize = 2 * LANES;
/// The larger magnitude of two numbers; a NaN only if both are NaN.
const ABS_MAX: i32 = 0b1011;
const INFINITY: u32 = 0x7f80_0000;

/// Magnitudes of a row, of which the largest counts; rows beyond those of the run stay zero.
type Most = [[u32; LANES]; MEAN_TOKENS];

/// Encodes a run.
///
/// # Safety
/// The rows are readable; the processor has AVX-512 F, BW, VL and DQ.
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one promise covers all: the caller's rows are readable"
)]
pub unsafe fn encode<const D: u8>(run: Run<'_>, scratch: &mut Scratch) -> bool {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        match block_of(run.rows.dim) {
            32 => blocks::<D, 1>(run, scratch),
            64 => blocks::<D, 2>(run, scratch),
            128 => blocks::<D, 4>(run, scratch),
            256 => blocks::<D, 8>(run, scratch),
            _ => (turned_avx2::kernels::<D>().encode)(run, scratch),
        }
    }
}

/// `P`: pairs of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn blocks<const D: u8, const P: usize>(run: Run<'_>, scratch: &mut Scratch) -> bool {
    let Run { at, rows, next, means, scales, codes } = run;
    let Scratch { values, mean, .. } = scratch;
    let (count, dim) = (scales.len(), rows.dim);
    values.resize(MEAN_TOKENS * dim, 0.0);
    let values = &mut values[..count * dim];
    let mut most: Most = [[0; LANES]; MEAN_TOKENS];
    let mut factors = [0.0; LANES];
    let rows_of = (at, rows, next);
    if means.scales.is_empty() {
        let see = |row: usize, _, even: &[__m512; P], odd: &[__m512; P]| {
            let more = _mm512_max_epu32(load_lanes(&most[row]), block_most(even, odd));
            most[row] = lanes_of(more);
        };
        // SAFETY: the caller's rows are readable.
        unsafe { forth::<D, P>(rows_of, values, see) };
    } else {
        mean.clear();
        mean.resize(dim, 0.0);
        let see = |_, at: usize, even: &[__m512; P], odd: &[__m512; P]| {
            let (sums, _) = mean[at..].as_chunks_mut::<LANES>();
            for (index, sums) in sums.chunks_exact_mut(2).take(P).enumerate() {
                let (one, other) = (load(&sums[0]), load(&sums[1]));
                store(&mut sums[0], _mm512_add_ps(one, even[index]));
                store(&mut sums[1], _mm512_add_ps(other, odd[index]));
            }
        };
        // SAFETY: as above.
        unsafe { forth::<D, P>(rows_of, values, see) };
        if !code_mean(mean, count, means.scales, means.codes) {
            return false;
        }
        for (values, most) in values.chunks_exact_mut(dim).zip(&mut most) {
            *most = subtract::<P>(values, mean);
        }
    }
    let finite = scale_rows(&most, scales, &mut factors);
    let rows = values.chunks_exact(dim).zip(codes.chunks_exact_mut(dim));
    for ((values, codes), factor) in rows.zip(factors) {
        code_row(values, factor, codes);
    }
    finite
}

/// Transforms rows into values, and hands each block to `see`, with the number of its row and its place in the row.
///
/// # Safety
/// The rows at the pointer, as many as values, are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
unsafe fn forth<const D: u8, const P: usize>(
    (at, rows, next): (*const u8, Rows, *const u8),
    values: &mut [f32],
    mut see: impl FnMut(usize, usize, &[__m512; P], &[__m512; P]),
) {
    let share = _mm512_set1_ps(share_of(P * PAIR));
    for (row, values) in values.chunks_exact_mut(rows.dim).enumerate() {
        let at = at.wrapping_add(row * rows.stride);
        for line in (0..rows.dim * element_bytes(D)).step_by(CACHE_LINE_BYTES) {
            ask(next.wrapping_add(row * rows.stride + line));
        }
        for (number, values) in values.chunks_exact_mut(P * PAIR).enumerate() {
            let start = number * P * PAIR;
            let (mut even, mut odd) = ([share; P], [share; P]);
            for index in 0..P {
                // SAFETY: the block lies within the row, which is readable.
                let (one, other) = unsafe { load_pair::<D>(at, start + index * PAIR) };
                even[index] = _mm512_mul_ps(one, share);
                odd[index] = _mm512_mul_ps(other, share);
            }
            turn(&mut even, &mut odd);
            let (registers, _) = values.as_chunks_mut::<LANES>();
            for index in 0..P {
                store(&mut registers[2 * index], even[index]);
                store(&mut registers[2 * index + 1], odd[index]);
            }
            see(row, start, &even, &odd);
        }
    }
}

/// 32 elements as values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
unsafe fn load_pair<const D: u8>(row: *const u8, index: usize) -> (__m512, __m512) {
    if D == BF16 {
        let at = row.wrapping_add(index * element_bytes(D));
        // SAFETY: the caller's elements are readable.
        let bits = unsafe { _mm512_loadu_si512(at.cast()) };
        let odd = _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)), _mm512_castsi512_ps(odd))
    } else {
        // SAFETY: as above.
        let low = unsafe { load_values::<D>(row, index, !0) };
        // SAFETY: as above.
        let high = unsafe { load_values::<D>(row, index + LANES, !0) };
        let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        (_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high))
    }
}

/// Transforms a block: whole pairs first, then within each register, then evens with odds, as the format asks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn turn<const P: usize>(even: &mut [__m512; P], odd: &mut [__m512; P]) {
    for half in [&mut *even, &mut *odd] {
        let mut apart = P / 2;
        while apart > 0 {
            for part in half.chunks_exact_mut(2 * apart) {
                let (low, high) = part.split_at_mut(apart);
                for (one, other) in low.iter_mut().zip(high) {
                    let (a, b) = (*one, *other);
                    *one = _mm512_add_ps(a, b);
                    *other = _mm512_sub_ps(a, b);
                }
            }
            apart /= 2;
        }
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        let (a, b) = (within(*even), within(*odd));
        *even = _mm512_add_ps(a, b);
        *odd = _mm512_sub_ps(a, b);
    }
}

/// The steps within a register: each lane adds its partner to its own value or to its negative.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn within(lanes: __m512) -> __m512 {
    let (plus, minus) = (_mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
    let mut v = lanes;
    let sign = _mm512_mask_blend_ps(0xff00, plus, minus);
    v = _mm512_fmadd_ps(v, sign, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
    let sign = _mm512_mask_blend_ps(0xf0f0, plus, minus);
    v = _mm512_fmadd_ps(v, sign, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
    let sign = _mm512_mask_blend_ps(0xcccc, plus, minus);
    v = _mm512_fmadd_ps(v, sign, _mm512_permute_ps::<0b01_00_11_10>(v));
    let sign = _mm512_mask_blend_ps(0xaaaa, plus, minus);
    _mm512_fmadd_ps(v, sign, _mm512_permute_ps::<0b10_11_00_01>(v))
}

/// Turns sums of `count` rows into a mean, its scale and its codes, and the mean into what readers decode.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn code_mean(mean: &mut [f32], count: usize, scales: &mut [Scale], codes: &mut [u8]) -> bool {
    let share = _mm512_set1_ps(1.0 / f32::from(u16::try_from(count.max(1)).unwrap_or(1)));
    for lanes in mean.as_chunks_mut::<LANES>().0 {
        let value = _mm512_mul_ps(load(lanes), share);
        store(lanes, value);
    }
    let mut most: Most = [[0; LANES]; MEAN_TOKENS];
    let (lanes, _) = mean.as_chunks::<LANES>();
    let largest = lanes.iter().fold(_mm512_setzero_si512(), |most, lanes| {
        _mm512_max_epu32(most, magnitudes(load(lanes)))
    });
    most[0] = lanes_of(largest);
    let mut factors = [0.0; LANES];
    if !scale_rows(&most, scales, &mut factors) {
        return false;
    }
    code_row(mean, factors[0], codes);
    let (factor, scale) = (_mm512_set1_ps(factors[0]), _mm512_set1_ps(value_of_scale(scales[0])));
    for lanes in mean.as_chunks_mut::<LANES>().0 {
        let code = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(_mm512_mul_ps(load(lanes), factor)));
        store(lanes, _mm512_mul_ps(code, scale));
    }
    true
}

/// Subtracts the mean from a row; returns the row's magnitudes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn subtract<const P: usize>(values: &mut [f32], mean: &[f32]) -> [u32; LANES] {
    let mut most = _mm512_setzero_si512();
    let blocks = values.chunks_exact_mut(P * PAIR).zip(mean.chunks_exact(P * PAIR));
    for (values, mean) in blocks {
        let (mut even, mut odd) = ([_mm512_setzero_ps(); P], [_mm512_setzero_ps(); P]);
        let ((values, _), (mean, _)) = (values.as_chunks_mut::<LANES>(), mean.as_chunks::<LANES>());
        for index in 0..P {
            let (one, other) = (2 * index, 2 * index + 1);
            even[index] = _mm512_sub_ps(load(&values[one]), load(&mean[one]));
            odd[index] = _mm512_sub_ps(load(&values[other]), load(&mean[other]));
            store(&mut values[one], even[index]);
            store(&mut values[other], odd[index]);
        }
        most = _mm512_max_epu32(most, block_most(&even, &odd));
    }
    lanes_of(most)
}

/// The largest magnitudes of a block, lane by lane. A NaN or an inf in a row makes all values of its block such, so that it
/// shows in each lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn block_most<const P: usize>(even: &[__m512; P], odd: &[__m512; P]) -> __m512i {
    let (mut one, mut other) = (even[0], odd[0]);
    for index in 1..P {
        one = _mm512_range_ps::<ABS_MAX>(one, even[index]);
        other = _mm512_range_ps::<ABS_MAX>(other, odd[index]);
    }
    magnitudes(_mm512_range_ps::<ABS_MAX>(one, other))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn magnitudes(values: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fff_ffff))
}

/// The scales of rows and the factors that turn their values into codes, by the rule of `scale_of`; false where a
/// magnitude is not finite.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn scale_rows(most: &Most, scales: &mut [Scale], factors: &mut [f32; LANES]) -> bool {
    let absmax = largest_of_each(most);
    let values = _mm512_castsi512_ps(absmax);
    let some = _mm512_test_epi32_mask(absmax, absmax);
    let bits = _mm512_castps_si512(_mm512_mul_ps(values, _mm512_set1_ps(RECIPROCAL_OF_CODE_MAX)));
    let tie = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), tie);
    let high = _mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
    let least = _mm512_set1_epi32(SCALE_MIN.cast_signed());
    let scale = _mm512_maskz_max_epu32(some, high, least);
    let one = _mm512_set1_ps(1.0);
    store(factors, _mm512_maskz_div_ps(some, one, _mm512_castsi512_ps(scale)));
    let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(scale));
    let present = u16::try_from((1_u32 << scales.len().min(LANES)) - 1).unwrap_or(u16::MAX);
    // SAFETY: there are as many scales as bits of the mask.
    unsafe { _mm256_mask_storeu_epi16(scales.as_mut_ptr().cast(), present, halves) };
    _mm512_cmpge_epu32_mask(absmax, _mm512_set1_epi32(INFINITY.cast_signed())) == 0
}

/// The largest number of each of 16 registers, in their order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn largest_of_each(most: &Most) -> __m512i {
    let mut rows = [_mm512_setzero_si512(); MEAN_TOKENS];
    for (row, lanes) in rows.iter_mut().zip(most) {
        *row = load_lanes(lanes);
    }
    let twos: [__m512i; 8] = std::array::from_fn(|at| {
        let (a, b) = (rows[2 * at], rows[2 * at + 1]);
        _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    });
    let fours: [__m512i; 4] = std::array::from_fn(|at| {
        let (a, b) = (twos[2 * at], twos[2 * at + 1]);
        _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    });
    let eights: [__m512i; 2] = std::array::from_fn(|at| join(fours[2 * at], fours[2 * at + 1]));
    join(eights[0], eights[1])
}

/// The larger of even and odd quarters of both registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn join(a: __m512i, b: __m512i) -> __m512i {
    let (even, odd) =
        (_mm512_shuffle_i64x2::<0b10_00_10_00>(a, b), _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b));
    _mm512_max_epu32(even, odd)
}

/// Turns a row of values into codes, in the order of the elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn code_row(values: &[f32], factor: f32, codes: &mut [u8]) {
    let factor = _mm512_set1_ps(factor);
    let code = |lanes| _mm512_cvtps_epi32(_mm512_mul_ps(load(lanes), factor));
    let (values, rest) = values.as_chunks::<{ 2 * PAIR }>();
    let (codes, last) = codes.as_chunks_mut::<{ 2 * PAIR }>();
    for (values, codes) in values.iter().zip(codes) {
        let (lanes, _) = values.as_chunks::<LANES>();
        let low = _mm512_packs_epi32(code(&lanes[0]), code(&lanes[1]));
        let high = _mm512_packs_epi32(code(&lanes[2]), code(&lanes[3]));
        let bytes = in_order(_mm512_packs_epi16(low, high));
        // SAFETY: the array has 64 bytes.
        unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), bytes) };
    }
    if let ([even, odd], Some(last)) = (rest.as_chunks::<LANES>().0, last.first_chunk_mut::<PAIR>())
    {
        let words = _mm512_packs_epi32(code(even), code(odd));
        let bytes = _mm512_castsi512_si256(in_order(_mm512_packs_epi16(words, words)));
        // SAFETY: the array has 32 bytes.
        unsafe { _mm256_storeu_si256(last.as_mut_ptr().cast(), bytes) };
    }
}

/// Puts the codes of two pairs, packed quarter by quarter with evens before odds, into the order of their elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn in_order(bytes: __m512i) -> __m512i {
    let within = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    let bytes = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(within));
    _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), bytes)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn load(lanes: &[f32; LANES]) -> __m512 {
    // SAFETY: the array has as many values.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn store(lanes: &mut [f32; LANES], values: __m512) {
    // SAFETY: the array has as many values.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), values) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn load_lanes(lanes: &[u32; LANES]) -> __m512i {
    // SAFETY: the array has as many numbers.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
fn lanes_of(register: __m512i) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    // SAFETY: the array has as many numbers.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), register) };
    lanes
}
