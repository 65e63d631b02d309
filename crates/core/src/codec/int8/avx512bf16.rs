//! Owns the AVX512-BF16 kernel, in which the processor rounds to bf16; the rest is AVX-512.

use std::arch::x86_64::{__m256i, __m512, _mm512_cvtneps_pbh, _mm512_mul_ps, _mm512_set1_ps};

use super::avx512;
use super::kernels::{Kernels, Rows, Scale};
use super::scale::{BF16, element_bytes, value_of_scale};

pub const fn kernels<const D: u8>() -> Kernels {
    let kernels = avx512::kernels::<D>();
    if D == BF16 { Kernels { decode, ..kernels } } else { kernels }
}

/// Decodes rows. The instruction flushes subnormals to zero, but scales are such that no product is subnormal.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode(scales: &[Scale], codes: &[u8], at: *mut u8, rows: Rows, stream: bool) {
    for (row, codes) in codes.chunks_exact(rows.dim).enumerate() {
        let factor = _mm512_set1_ps(value_of_scale(scales[row]));
        for (index, present) in avx512::steps(rows.dim) {
            // SAFETY: the codes that are present lie within `codes`.
            let values = unsafe { avx512::load_codes(codes, index, present) };
            let step = nearest_bf16(_mm512_mul_ps(values, factor));
            let out = at.wrapping_add(row * rows.stride + index * element_bytes(BF16));
            // SAFETY: the caller's rows are writable and, if streamed, consist of whole cache lines.
            unsafe { avx512::store_halves(out, present, step, stream) };
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
fn nearest_bf16(values: __m512) -> __m256i {
    let step = _mm512_cvtneps_pbh(values);
    // SAFETY: both are 32 bytes of plain bits.
    unsafe { std::mem::transmute(step) }
}
