//! Owns the AVX2 kernels: 16 elements a step, the rest of a row as the portable ones do it.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_cvtsi128_si32, _mm_max_epu16, _mm_max_epu32, _mm_minpos_epu16,
    _mm_packs_epi16, _mm_shuffle_epi32, _mm_xor_si128, _mm256_add_epi32, _mm256_and_si256,
    _mm256_blend_epi16, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepi8_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_extracti128_si256, _mm256_max_epu16,
    _mm256_max_epu32, _mm256_mul_ps, _mm256_packs_epi16, _mm256_packs_epi32,
    _mm256_permute2x128_si256, _mm256_permute4x64_epi64, _mm256_set_m128i, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_stream_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
};

use super::kernels::{BATCH, Kernels, Rows};
use super::portable;
use super::scale::{BF16, F16, F32, element_bytes, magnitude_mask};

/// Elements of one step.
const STEP: usize = 16;
const NEAREST_EVEN: i32 = 0;

pub const fn kernels<const D: u8>() -> Kernels {
    Kernels { absmax: absmax::<D>, quantise: quantise::<D>, dequantise: dequantise::<D> }
}

#[target_feature(enable = "avx2,f16c")]
unsafe fn absmax<const D: u8>(at: *const u8, rows: Rows, largest: &mut [u32; BATCH]) {
    for (offset, largest) in rows.offsets().zip(largest) {
        // SAFETY: the caller's rows are readable.
        *largest = unsafe { absmax_row::<D>(at.wrapping_add(offset), rows.dim) };
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn absmax_row<const D: u8>(row: *const u8, dim: usize) -> u32 {
    let per_load = size_of::<__m256i>() / element_bytes(D);
    let mut largest = _mm256_setzero_si256();
    let mut index = 0;
    while index + per_load <= dim {
        // SAFETY: the load ends at or before element `dim`, which the caller vouches for.
        let bits = unsafe { load(row, index * element_bytes(D)) };
        largest = if D == F32 {
            let mask = _mm256_set1_epi32(magnitude_mask(F32).cast_signed());
            _mm256_max_epu32(largest, _mm256_and_si256(bits, mask))
        } else {
            _mm256_max_epu16(largest, _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff)))
        };
        index += per_load;
    }
    let low = _mm256_castsi256_si128(largest);
    let high = _mm256_extracti128_si256::<1>(largest);
    let largest = if D == F32 {
        largest_of_u32(_mm_max_epu32(low, high))
    } else {
        largest_of_u16(_mm_max_epu16(low, high))
    };
    // SAFETY: as above.
    largest.max(unsafe { portable::absmax_from::<D>(row, index, dim) })
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn largest_of_u32(lanes: __m128i) -> u32 {
    let lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32::<0b01_00_11_10>(lanes));
    let lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32::<0b10_11_00_01>(lanes));
    _mm_cvtsi128_si32(lanes).cast_unsigned()
}

/// The processor finds the smallest of eight; of all bits turned, that is the largest.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn largest_of_u16(lanes: __m128i) -> u32 {
    let ones = _mm_shuffle_epi32::<0>(_mm256_castsi256_si128(_mm256_set1_epi32(-1)));
    let smallest = _mm_minpos_epu16(_mm_xor_si128(lanes, ones));
    !_mm_cvtsi128_si32(smallest).cast_unsigned() & 0xffff
}
