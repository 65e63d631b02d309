//! Owns the transform of float32 values with AVX2: the steps of hadamard.rs, in registers of eight.

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_castsi256_ps, _mm256_permute_ps, _mm256_permute2f128_ps,
    _mm256_setr_epi32, _mm256_sub_ps, _mm256_xor_ps,
};

use super::hadamard::{transform, transform_rows};
use super::kernels::Rows;

const LANES: usize = 8;
const NEGATIVE: i32 = i32::MIN;

/// # Safety
/// The rows are readable.
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn forth<const D: u8>(at: *const u8, rows: Rows, values: &mut [f32]) {
    let transform = |values: &mut [f32]| {
        if values.len() >= 2 * LANES {
            turn_block(values);
        } else {
            transform::<f32, LANES>(values);
        }
    };
    // SAFETY: the caller's promise is the callee's.
    unsafe { transform_rows::<D>(at, rows, values, transform) };
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
