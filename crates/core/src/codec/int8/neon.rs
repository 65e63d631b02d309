//! Owns the NEON kernels for bf16 and float32: 8 elements per step, the rest of a row by the portable kernels. fp16 is
//! portable, because its conversions are not stable in Rust.

use std::arch::aarch64::{
    float32x4_t, int8x8_t, int16x8_t, uint16x8_t, uint32x4_t, vaddq_u32, vandq_u16, vandq_u32,
    vcombine_s16, vcombine_u16, vcvtnq_s32_f32, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_u16,
    vdupq_n_u32, vget_high_s16, vget_high_u16, vget_low_s16, vget_low_u16, vmaxq_u16, vmaxq_u32,
    vmaxvq_u16, vmaxvq_u32, vmovl_s8, vmovl_s16, vmulq_f32, vqmovn_s16, vqmovn_s32,
    vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshll_n_u16, vshrn_n_u32, vshrq_n_u32,
};

use super::kernels::{Kernels, Rows, Scale};
use super::portable;
use super::scale::{BF16, F16, element_bytes, scale_of, value_of, value_of_scale};

/// Elements of one step.
const STEP: usize = 8;

pub const fn kernels<const D: u8>() -> Kernels {
    if D == F16 {
        portable::kernels::<D>()
    } else {
        Kernels { encode: encode::<D>, decode: decode::<D> }
    }
}

/// Elements of a row in whole steps; the portable kernels do the rest.
fn whole(dim: usize) -> usize {
    dim - dim % STEP
}

#[target_feature(enable = "neon")]
unsafe fn encode<const D: u8>(
    at: *const u8,
    rows: Rows,
    _next: *const u8,
    scales: &mut [Scale],
    codes: &mut [u8],
) -> bool {
    let mut finite = true;
    for (row, codes) in codes.chunks_exact_mut(rows.dim).enumerate() {
        let at = at.wrapping_add(row * rows.stride);
        // SAFETY: the caller's rows are readable.
        let absmax = value_of(D, unsafe { absmax_row::<D>(at, rows.dim) });
        let (scale, reciprocal) = scale_of(absmax);
        scales[row] = scale.to_le_bytes();
        finite &= absmax.is_finite();
        // SAFETY: as above.
        unsafe { quantise_row::<D>(at, reciprocal, codes) };
    }
    finite
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn absmax_row<const D: u8>(row: *const u8, dim: usize) -> u32 {
    let steps = if D == BF16 {
        // SAFETY: the caller's row is readable.
        unsafe { absmax_bf16(row, dim) }
    } else {
        // SAFETY: as above.
        unsafe { absmax_f32(row, dim) }
    };
    let rest = row.wrapping_add(whole(dim) * element_bytes(D));
    // SAFETY: as above.
    steps.max(unsafe { portable::absmax::<D>(rest, dim % STEP) })
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn absmax_bf16(row: *const u8, dim: usize) -> u32 {
    let mut lanes = vdupq_n_u16(0);
    for index in (0..whole(dim)).step_by(STEP) {
        // SAFETY: the step ends within the row.
        let bits: uint16x8_t = unsafe { load(row.wrapping_add(index * 2)) };
        lanes = vmaxq_u16(lanes, vandq_u16(bits, vdupq_n_u16(0x7fff)));
    }
    u32::from(vmaxvq_u16(lanes))
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn absmax_f32(row: *const u8, dim: usize) -> u32 {
    let mut lanes = vdupq_n_u32(0);
    for index in (0..whole(dim)).step_by(STEP / 2) {
        // SAFETY: the step ends within the row.
        let bits: uint32x4_t = unsafe { load(row.wrapping_add(index * 4)) };
        lanes = vmaxq_u32(lanes, vandq_u32(bits, vdupq_n_u32(0x7fff_ffff)));
    }
    vmaxvq_u32(lanes)
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn quantise_row<const D: u8>(row: *const u8, reciprocal: f32, codes: &mut [u8]) {
    let factor = vdupq_n_f32(reciprocal);
    let (steps, rest) = codes.as_chunks_mut::<STEP>();
    let mut at = row;
    for step in steps {
        // SAFETY: the caller's row is readable and as long as `codes`.
        let (low, high) = unsafe { load_values::<D>(at) };
        let low = vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(low, factor)));
        let high = vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(high, factor)));
        let narrow: int8x8_t = vqmovn_s16(vcombine_s16(low, high));
        // SAFETY: a step has eight codes.
        unsafe { store(step.as_mut_ptr(), narrow) };
        at = at.wrapping_add(STEP * element_bytes(D));
    }
    // SAFETY: as above.
    unsafe { portable::quantise::<D>(at, reciprocal, rest) };
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn load_values<const D: u8>(at: *const u8) -> (float32x4_t, float32x4_t) {
    if D == BF16 {
        // SAFETY: the caller's step of 16 bytes is readable.
        let bits: uint16x8_t = unsafe { load(at) };
        // A bf16 is the upper half of its f32.
        let low = vshll_n_u16::<16>(vget_low_u16(bits));
        let high = vshll_n_u16::<16>(vget_high_u16(bits));
        (vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
    } else {
        // SAFETY: the caller's step of 32 bytes is readable.
        let low = unsafe { load(at) };
        // SAFETY: as above.
        (low, unsafe { load(at.wrapping_add(size_of::<float32x4_t>())) })
    }
}

#[target_feature(enable = "neon")]
unsafe fn decode<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    at: *mut u8,
    rows: Rows,
    _stream: bool,
) {
    for (row, codes) in codes.chunks_exact(rows.dim).enumerate() {
        let scale = value_of_scale(scales[row]);
        // SAFETY: the caller's rows are writable.
        unsafe { dequantise_row::<D>(codes, scale, at.wrapping_add(row * rows.stride)) };
    }
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn dequantise_row<const D: u8>(codes: &[u8], scale: f32, row: *mut u8) {
    let factor = vdupq_n_f32(scale);
    let (steps, rest) = codes.as_chunks::<STEP>();
    let mut at = row;
    for step in steps {
        // SAFETY: a step has eight codes.
        let step: int8x8_t = unsafe { load(step.as_ptr()) };
        let words: int16x8_t = vmovl_s8(step);
        let low = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), factor);
        let high = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(words))), factor);
        if D == BF16 {
            let low = vshrn_n_u32::<16>(nearest_bf16(low));
            let high = vshrn_n_u32::<16>(nearest_bf16(high));
            let step = vcombine_u16(low, high);
            // SAFETY: the caller's row is writable and as long as `codes`.
            unsafe { store(at, step) };
        } else {
            // SAFETY: as above.
            unsafe { store(at, low) };
            // SAFETY: as above.
            unsafe { store(at.wrapping_add(size_of::<float32x4_t>()), high) };
        }
        at = at.wrapping_add(STEP * element_bytes(D));
    }
    // SAFETY: as above.
    unsafe { portable::dequantise::<D>(rest, scale, at) };
}

/// The nearest bf16 in the upper half of each lane, ties to even; the lower half is undefined.
#[target_feature(enable = "neon")]
#[inline]
fn nearest_bf16(values: float32x4_t) -> uint32x4_t {
    let bits = vreinterpretq_u32_f32(values);
    let last = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), last)
}

#[inline]
unsafe fn load<V: Copy>(at: *const u8) -> V {
    // SAFETY: the caller's bytes are readable; `V` is a vector type, valid for any bits.
    unsafe { at.cast::<V>().read_unaligned() }
}

#[inline]
unsafe fn store<V: Copy>(at: *mut u8, lanes: V) {
    // SAFETY: the caller's bytes are writable.
    unsafe { at.cast::<V>().write_unaligned(lanes) };
}
