//! Owns the Hadamard transform of K in codec 3: head vectors are transformed before coding, and back after decoding.
//!
//! Plain Rust, compiled per instruction set. The order of additions is part of the format, and the compiler keeps it. Sums
//! of codes are integers, exact in any order.

use super::kernels::{Isa, Rows, Scale};
use super::portable::{load, store};
use super::scale::{F32, element_of, value_of, value_of_scale};

/// Most elements transformed together, because sums of that many codes fit 16 bits.
const BLOCK_MAX: usize = 256;
/// Elements transformed before they are coded; they must still be in the L1 cache by then.
const STEP_ELEMENTS: usize = 4096;
/// Elements transformed together: the largest power of two that divides the head dim, at most `BLOCK_MAX`.
#[must_use]
pub fn block_of(dim: usize) -> usize {
    (1 << dim.trailing_zeros().min(usize::BITS - 1)).min(BLOCK_MAX)
}

/// The two kernels of one instruction set and dtype.
#[derive(Debug, Clone, Copy)]
pub struct Hadamard {
    /// Transforms the rows at the pointer. Unsafe: the rows must be readable.
    pub forth: unsafe fn(*const u8, Rows, &mut [f32]),
    /// Turns scales and codes of transformed values into rows; the last argument is scratch memory, as long as a row.
    /// Unsafe: the rows must be writable.
    pub back: unsafe fn(&[Scale], &[u8], *mut u8, Rows, &mut [i16]),
}

/// Transforms rows and encodes them; false where a transformed value is not finite.
///
/// # Safety
/// The rows at `at`, as many as `scales`, are readable.
pub unsafe fn encode(
    (isa, dtype): (Isa, u8),
    at: *const u8,
    rows: Rows,
    scales: &mut [Scale],
    codes: &mut [u8],
) -> bool {
    let (transform, kernels) = (isa.hadamard(dtype), isa.kernels(F32));
    let plain = Rows { stride: rows.dim * size_of::<f32>(), dim: rows.dim };
    let count = (STEP_ELEMENTS / rows.dim).clamp(1, scales.len());
    let mut values = vec![0.0; count * rows.dim];
    let steps = scales.chunks_mut(count).zip(codes.chunks_mut(count * rows.dim));
    steps.enumerate().fold(true, |finite, (step, (scales, codes))| {
        let from = at.wrapping_add(step * count * rows.stride);
        let values = &mut values[..codes.len()];
        // SAFETY: the caller's rows are readable.
        unsafe { (transform.forth)(from, rows, values) };
        let transformed = values.as_ptr().cast();
        // SAFETY: there are as many values as codes.
        let is_finite = unsafe { (kernels.encode)(transformed, plain, transformed, scales, codes) };
        finite & is_finite
    })
}

pub const fn portable<const D: u8>() -> Hadamard {
    Hadamard { forth: forth::<D>, back: back::<D> }
}

unsafe fn forth<const D: u8>(at: *const u8, rows: Rows, values: &mut [f32]) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { transform_rows::<D>(at, rows, values, transform::<f32, 8>) };
}

/// Scales the rows' values by one over the block length, and transforms them by `transform`.
///
/// # Safety
/// The rows are readable.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
pub unsafe fn transform_rows<const D: u8>(
    at: *const u8,
    rows: Rows,
    values: &mut [f32],
    transform: impl Fn(&mut [f32]),
) {
    let block = block_of(rows.dim);
    // The factor is a power of two: products are exact unless subnormal, and no sum of `block` of them overflows.
    let share = 1.0 / f32::from(u16::try_from(block).unwrap_or(1));
    for (row, values) in values.chunks_exact_mut(rows.dim).enumerate() {
        let at = at.wrapping_add(row * rows.stride);
        for (index, value) in values.iter_mut().enumerate() {
            // SAFETY: the caller's row is readable.
            *value = value_of(D, unsafe { load::<D>(at, index) }) * share;
        }
        for values in values.chunks_exact_mut(block) {
            transform(values);
        }
    }
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
unsafe fn back<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    at: *mut u8,
    rows: Rows,
    sums: &mut [i16],
) {
    let block = block_of(rows.dim);
    for ((row, codes), scale) in codes.chunks_exact(rows.dim).enumerate().zip(scales) {
        for (sum, code) in sums.iter_mut().zip(codes) {
            *sum = i16::from(code.cast_signed());
        }
        for sums in sums.chunks_exact_mut(block) {
            transform::<i16, 16>(sums);
        }
        let (at, scale) = (at.wrapping_add(row * rows.stride), value_of_scale(*scale));
        for (index, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's row is writable.
            unsafe { store::<D>(at, index, element_of(D, f32::from(*sum) * scale)) };
        }
    }
}

/// Element type of a transform: f32 forth, i16 back. Codes of -128, which no writer makes, may wrap; every kernel wraps them alike.
pub trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

impl Number for f32 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline]
    fn minus(self, other: Self) -> Self {
        self - other
    }
}

impl Number for i16 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

/// Hadamard transform in place: pairs half the length apart become sum and difference, then pairs a quarter apart, down to
/// neighbours. A register has `LANES` elements.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
pub fn transform<N: Number, const LANES: usize>(values: &mut [N]) {
    let (registers, rest) = values.as_chunks_mut::<LANES>();
    halves(registers, plus, minus);
    for register in registers {
        *register = within(*register);
    }
    // The rest is a block shorter than a register.
    halves(rest, N::plus, N::minus);
}

/// The steps between whole values, which do not look inside them.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn halves<T: Copy>(values: &mut [T], plus: impl Fn(T, T) -> T, minus: impl Fn(T, T) -> T) {
    let mut apart = values.len() / 2;
    // Two steps at once, which halves the memory traffic.
    while apart > 1 {
        for part in values.chunks_exact_mut(2 * apart) {
            let (low, high) = part.split_at_mut(apart);
            let (low, middle) = low.split_at_mut(apart / 2);
            let (next, last) = high.split_at_mut(apart / 2);
            for (((a, b), c), d) in low.iter_mut().zip(middle).zip(next).zip(last) {
                let [upper, lower] = [(plus(*a, *c), plus(*b, *d)), (minus(*a, *c), minus(*b, *d))];
                (*a, *b) = (plus(upper.0, upper.1), minus(upper.0, upper.1));
                (*c, *d) = (plus(lower.0, lower.1), minus(lower.0, lower.1));
            }
        }
        apart /= 4;
    }
    if apart == 1 {
        for [low, high] in values.as_chunks_mut::<2>().0 {
            (*low, *high) = (plus(*low, *high), minus(*low, *high));
        }
    }
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn plus<N: Number, const LANES: usize>(one: [N; LANES], other: [N; LANES]) -> [N; LANES] {
    std::array::from_fn(|lane| one[lane].plus(other[lane]))
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn minus<N: Number, const LANES: usize>(one: [N; LANES], other: [N; LANES]) -> [N; LANES] {
    std::array::from_fn(|lane| one[lane].minus(other[lane]))
}

/// The steps within a register.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn within<N: Number, const LANES: usize>(register: [N; LANES]) -> [N; LANES] {
    let mut register = register;
    if LANES >= 16 {
        register = neighbours::<8, N, LANES>(register);
    }
    register = neighbours::<4, N, LANES>(register);
    register = neighbours::<2, N, LANES>(register);
    neighbours::<1, N, LANES>(register)
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn neighbours<const APART: usize, N: Number, const LANES: usize>(
    register: [N; LANES],
) -> [N; LANES] {
    std::array::from_fn(|lane| {
        let (one, other) = (register[lane], register[lane ^ APART]);
        if lane & APART == 0 { one.plus(other) } else { other.minus(one) }
    })
}

/// The inverse transform, compiled for an instruction set; the forward one is written for AVX2 in `hadamard_avx2.rs`.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled_for {
    ($name:ident, $features:literal) => {
        pub mod $name {
            use super::{Hadamard, Rows, Scale};
            use crate::codec::int8::hadamard_avx2;

            pub const fn transform<const D: u8>() -> Hadamard {
                Hadamard { forth: hadamard_avx2::forth::<D>, back: back::<D> }
            }

            #[target_feature(enable = $features)]
            unsafe fn back<const D: u8>(
                scales: &[Scale],
                codes: &[u8],
                at: *mut u8,
                rows: Rows,
                sums: &mut [i16],
            ) {
                // SAFETY: the caller's promise is the callee's.
                unsafe { super::back::<D>(scales, codes, at, rows, sums) };
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled_for!(avx2, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx512, "avx512f,avx512bw,avx512vl");
