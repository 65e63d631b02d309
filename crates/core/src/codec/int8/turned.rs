//! Owns the steps of codec 4: the tokens of a mean are transformed together, K loses its mean, and codes become rows again.
//!
//! The order of float32 operations is part of the format; docs/protocol.md, section 1, states it.

use super::group::{MeansMut, Parts, PartsMut};
use super::hadamard::{block_of, transform};
use super::kernels::{Rows, Scale};
use super::portable::{code_of, load, store};
use super::scale::{F32, element_of, is_turned, scale_of, value_of, value_of_scale};
use crate::codec_id::MEAN_TOKENS;

/// The tokens of a group that share a mean, to be encoded.
#[derive(Debug)]
pub struct Run<'a> {
    /// The first row, and the shape of all.
    pub at: *const u8,
    pub rows: Rows,
    /// The rows after these, to be prefetched.
    pub next: *const u8,
    /// One scale and the codes of a row; empty without a mean.
    pub means: MeansMut<'a>,
    /// One for each row, at most `MEAN_TOKENS`.
    pub scales: &'a mut [Scale],
    pub codes: &'a mut [u8],
}

/// Encodes a run; false where a value is not finite.
type Encode = unsafe fn(Run<'_>, &mut Scratch) -> bool;
/// Rows, their shape, rows to prefetch, values, sums.
type Forth = unsafe fn(*const u8, Rows, *const u8, &mut [f32], &mut [f32]);
/// Values, mean, scales, codes.
type Code = unsafe fn(&mut [f32], &[f32], &mut [Scale], &mut [u8]) -> bool;
/// Scales, codes, mean, scratch memory, rows, their shape, whether past the cache.
type Back = unsafe fn(&[Scale], &[u8], &[f32], &mut [i16], *mut u8, Rows, bool);

/// The kernels of one instruction set and dtype. A row has `Rows::dim` elements everywhere.
#[derive(Debug, Clone, Copy)]
pub struct Turned {
    /// Transforms rows, subtracts their mean and turns them into scales and codes. Unsafe: the rows must be readable, and
    /// the processor must have the instructions.
    pub encode: Encode,
    /// Transforms codes back into rows and adds the mean, unless it is empty; past the cache if the flag is set. The sums
    /// are scratch memory, as long as a row. Unsafe: the rows must be writable, and consist of whole cache lines to bypass
    /// the cache; scales must be those of the codec.
    pub back: Back,
    /// `back` into float32, for the means.
    pub back_single: Back,
}

/// Memory that is used again from group to group.
#[derive(Debug, Default)]
pub struct Scratch {
    pub values: Vec<f32>,
    pub mean: Vec<f32>,
    sums: Vec<i16>,
}

/// The tokens of a group that share a mean, without the first where it is exact.
fn runs(tokens: usize, has_exact: bool) -> impl Iterator<Item = std::ops::Range<usize>> {
    let start = move |at: usize| if at == 0 { usize::from(has_exact) } else { at };
    (0..tokens)
        .step_by(MEAN_TOKENS)
        .map(move |at| start(at).min(tokens)..(at + MEAN_TOKENS).min(tokens))
}

/// Encodes a group; false where a value is not finite, or a scale not one of the codec.
///
/// # Safety
/// The rows at `at`, as many as scales, are readable.
pub unsafe fn encode(
    kernels: &Turned,
    at: *const u8,
    rows: Rows,
    next: *const u8,
    parts: PartsMut<'_>,
    scratch: &mut Scratch,
) -> bool {
    let PartsMut { means, scales, codes, exact } = parts;
    let (tokens, dim, has_mean) = (scales.len(), rows.dim, !means.scales.is_empty());
    if !exact.is_empty() {
        scales[0] = [0; 2];
        codes[..dim].fill(0);
        // SAFETY: the first row has as many bytes, and is readable.
        unsafe { exact.as_mut_ptr().copy_from_nonoverlapping(at, exact.len()) };
    }
    for (number, run) in runs(tokens, !exact.is_empty()).enumerate() {
        let ahead = if run.end < tokens { at.wrapping_add(run.end * rows.stride) } else { next };
        let means = if has_mean {
            MeansMut {
                scales: &mut means.scales[number..=number],
                codes: &mut means.codes[number * dim..][..dim],
            }
        } else {
            MeansMut { scales: &mut [], codes: &mut [] }
        };
        let given = Run {
            at: at.wrapping_add(run.start * rows.stride),
            rows,
            next: ahead,
            means,
            scales: &mut scales[run.clone()],
            codes: &mut codes[run.start * dim..run.end * dim],
        };
        // SAFETY: the caller's rows are readable; the instruction set is one of this processor.
        if !unsafe { (kernels.encode)(given, scratch) } {
            return false;
        }
    }
    means.scales.iter().chain(scales.iter()).all(|scale| is_turned(*scale))
}

/// Encodes a run by kernels that do one step each: `forth` transforms rows into values and adds them up per channel, token
/// after token, unless there are no sums; `code` subtracts the mean, unless that is empty, and turns each row of values into a
/// scale and codes.
///
/// # Safety
/// The rows are readable, and the processor has the instructions of both kernels.
pub unsafe fn encode_by_steps(
    (forth, code): (Forth, Code),
    run: Run<'_>,
    Scratch { values, mean, .. }: &mut Scratch,
) -> bool {
    let Run { at, rows, next, means, scales, codes } = run;
    let (count, dim, has_mean) = (scales.len(), rows.dim, !means.scales.is_empty());
    values.resize(MEAN_TOKENS * dim, 0.0);
    let values = &mut values[..count * dim];
    mean.clear();
    mean.resize(if has_mean { dim } else { 0 }, 0.0);
    // SAFETY: the caller's rows are readable.
    unsafe { forth(at, rows, next, values, mean) };
    if has_mean {
        let share = 1.0 / f32::from(u16::try_from(count.max(1)).unwrap_or(1));
        for sum in mean.iter_mut() {
            *sum *= share;
        }
        // SAFETY: an instruction set of this processor.
        if !unsafe { code(mean, &[], means.scales, means.codes) } {
            return false;
        }
        let scale = value_of_scale(means.scales[0]);
        for (mean, code) in mean.iter_mut().zip(means.codes) {
            *mean = f32::from(code.cast_signed()) * scale;
        }
    }
    // SAFETY: as above.
    unsafe { code(values, mean, scales, codes) }
}

/// Decodes a group whose scales are those of the codec.
///
/// # Safety
/// The rows at `at`, as many as scales, are writable; if streamed, they consist of whole cache lines.
pub unsafe fn decode(
    kernels: &Turned,
    parts: &Parts<'_>,
    at: *mut u8,
    rows: Rows,
    stream: bool,
    Scratch { mean, sums, .. }: &mut Scratch,
) {
    let (dim, has_mean) = (rows.dim, !parts.means.scales.is_empty());
    if !parts.exact.is_empty() {
        // SAFETY: the first row has as many bytes, and is writable.
        unsafe { at.copy_from_nonoverlapping(parts.exact.as_ptr(), parts.exact.len()) };
    }
    sums.resize(dim, 0);
    mean.resize(if has_mean { dim } else { 0 }, 0.0);
    let plain = Rows { stride: dim * size_of::<f32>(), dim };
    for (number, run) in runs(parts.scales.len(), !parts.exact.is_empty()).enumerate() {
        if has_mean {
            let scale = &parts.means.scales[number..=number];
            let codes = &parts.means.codes[number * dim..][..dim];
            let to = mean.as_mut_ptr().cast();
            // SAFETY: the mean is as long as a row of float32.
            unsafe { (kernels.back_single)(scale, codes, &[], sums, to, plain, false) };
        }
        let scales = &parts.scales[run.clone()];
        let codes = &parts.codes[run.start * dim..run.end * dim];
        let to = at.wrapping_add(run.start * rows.stride);
        // SAFETY: the caller's promise is the callee's.
        unsafe { (kernels.back)(scales, codes, mean, sums, to, rows, stream) };
    }
}

pub const fn portable<const D: u8>() -> Turned {
    Turned { encode: encode_plainly::<D>, back: back::<D>, back_single: back::<F32> }
}

unsafe fn encode_plainly<const D: u8>(run: Run<'_>, scratch: &mut Scratch) -> bool {
    // SAFETY: the caller's promise is the callee's.
    unsafe { encode_by_steps((forth::<D>, code), run, scratch) }
}

unsafe fn forth<const D: u8>(
    at: *const u8,
    rows: Rows,
    _next: *const u8,
    values: &mut [f32],
    sums: &mut [f32],
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { transform_rows::<D>(at, rows, values, sums, transform::<f32, 8>) };
}

/// Scales the rows' values by one over the block length, transforms them by `transform`, and adds them up.
///
/// # Safety
/// The rows are readable.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
pub unsafe fn transform_rows<const D: u8>(
    at: *const u8,
    rows: Rows,
    values: &mut [f32],
    sums: &mut [f32],
    transform: impl Fn(&mut [f32]),
) {
    let block = block_of(rows.dim);
    let share = share_of(block);
    for (row, values) in values.chunks_exact_mut(rows.dim).enumerate() {
        let at = at.wrapping_add(row * rows.stride);
        for (index, value) in values.iter_mut().enumerate() {
            // SAFETY: the caller's row is readable.
            *value = value_of(D, unsafe { load::<D>(at, index) }) * share;
        }
        for values in values.chunks_exact_mut(block) {
            transform(values);
        }
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += *value;
        }
    }
}

/// One over the block length, a power of two: products are exact unless subnormal, and no sum of `block` of them overflows.
#[inline]
pub fn share_of(block: usize) -> f32 {
    1.0 / f32::from(u16::try_from(block).unwrap_or(1))
}

unsafe fn code(values: &mut [f32], mean: &[f32], scales: &mut [Scale], codes: &mut [u8]) -> bool {
    let dim = codes.len() / scales.len().max(1);
    let mut finite = true;
    let rows = values.chunks_exact_mut(dim.max(1)).zip(codes.chunks_exact_mut(dim.max(1)));
    for ((values, codes), scale) in rows.zip(scales) {
        for (value, mean) in values.iter_mut().zip(mean) {
            *value -= *mean;
        }
        let absmax = values.iter().fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
        let absmax = f32::from_bits(absmax);
        let (bits, reciprocal) = scale_of(absmax);
        *scale = bits.to_le_bytes();
        finite &= absmax.is_finite();
        for (code, value) in codes.iter_mut().zip(values) {
            *code = code_of(*value * reciprocal);
        }
    }
    finite
}

unsafe fn back<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    mean: &[f32],
    sums: &mut [i16],
    at: *mut u8,
    rows: Rows,
    _stream: bool,
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { back_rows::<D>(scales, codes, mean, sums, at, rows) };
}

/// # Safety
/// The rows are writable.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
pub unsafe fn back_rows<const D: u8>(
    scales: &[Scale],
    codes: &[u8],
    mean: &[f32],
    sums: &mut [i16],
    at: *mut u8,
    rows: Rows,
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
            let product = f32::from(*sum) * scale;
            let value = mean.get(index).map_or(product, |mean| product + mean);
            // SAFETY: the caller's row is writable.
            unsafe { store::<D>(at, index, element_of(D, value)) };
        }
    }
}
