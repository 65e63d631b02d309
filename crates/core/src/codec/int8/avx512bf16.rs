//! Owns the AVX512-BF16 kernel: the processor rounds to bf16 itself, the rest is AVX-512.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_mul_ps,
    _mm512_set1_ps, _mm512_storeu_si512, _mm512_stream_si512,
};

use super::avx512;
use super::kernels::{Kernels, Rows, Scale};
use super::scale::{BF16, element_bytes, value_of_scale};

/// Elements of a cache line: written at once, because a line that is written in parts goes past the cache slower.
const LINE: usize = 32;

pub const fn kernels<const D: u8>() -> Kernels {
    let kernels = avx512::kernels::<D>();
    if D == BF16 { Kernels { decode, ..kernels } } else { kernels }
}

/// The instruction takes subnormal numbers for zero; scales are such that no product is subnormal.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn decode(scales: &[Scale], codes: &[u8], at: *mut u8, rows: Rows, stream: bool) {
    for (row, codes) in codes.chunks_exact(rows.dim).enumerate() {
        let factor = _mm512_set1_ps(value_of_scale(scales[row]));
        let row = at.wrapping_add(row * rows.stride);
        let (lines, rest) = codes.as_chunks::<LINE>();
        for (number, line) in lines.iter().enumerate() {
            // SAFETY: a line has the codes of two steps.
            let [low, high] = [0, LINE / 2]
                .map(|index| _mm512_mul_ps(unsafe { avx512::load_codes(line, index, !0) }, factor));
            let out = row.wrapping_add(number * LINE * element_bytes(BF16));
            // SAFETY: the caller's rows are writable and, to be streamed, whole cache lines.
            unsafe { store_line(out, nearest_bf16_of_two(low, high), stream) };
        }
        let row = row.wrapping_add(lines.len() * LINE * element_bytes(BF16));
        for (index, present) in avx512::steps(rest.len()) {
            // SAFETY: the codes that are present lie within `rest`.
            let values = unsafe { avx512::load_codes(rest, index, present) };
            let step = nearest_bf16(_mm512_mul_ps(values, factor));
            let out = row.wrapping_add(index * element_bytes(BF16));
            // SAFETY: as above; what is streamed has no rest.
            unsafe { avx512::store_halves(out, present, step, false) };
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
fn nearest_bf16_of_two(low: __m512, high: __m512) -> __m512i {
    let line = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute(line) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
unsafe fn store_line(at: *mut u8, line: __m512i, stream: bool) {
    if stream {
        // SAFETY: the caller's row is writable and, being streamed, whole cache lines.
        unsafe { _mm512_stream_si512(at.cast(), line) };
    } else {
        // SAFETY: the caller's line is writable.
        unsafe { _mm512_storeu_si512(at.cast(), line) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
fn nearest_bf16(values: __m512) -> __m256i {
    let step = _mm512_cvtneps_pbh(values);
    // SAFETY: both are 32 bytes of plain bits.
    unsafe { std::mem::transmute(step) }
}
