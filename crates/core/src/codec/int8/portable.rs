//! Owns the portable kernels; those of other instruction sets must give the same bytes.

use super::kernels::{Kernels, Rows, Scale};
use super::scale::{element_bytes, element_of, magnitude_mask, scale_of, value_of, value_of_scale};

pub const fn kernels<const D: u8>() -> Kernels {
    Kernels { encode: encode::<D>, decode: decode::<D> }
}

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
        let absmax = value_of(D, unsafe { absmax::<D>(at, rows.dim) });
        let (scale, reciprocal) = scale_of(absmax);
        scales[row] = scale.to_le_bytes();
        finite &= absmax.is_finite();
        // SAFETY: as above.
        unsafe { quantise::<D>(at, reciprocal, codes) };
    }
    finite
}

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
        unsafe { dequantise::<D>(codes, scale, at.wrapping_add(row * rows.stride)) };
    }
}

/// Largest magnitude bits of `count` elements.
///
/// # Safety
/// The elements are readable.
#[inline]
pub unsafe fn absmax<const D: u8>(at: *const u8, count: usize) -> u32 {
    (0..count).fold(0, |largest, index| {
        // SAFETY: `index` is below `count`.
        let bits = unsafe { load::<D>(at, index) };
        largest.max(bits & magnitude_mask(D))
    })
}

/// Turns elements into codes.
///
/// # Safety
/// `codes.len()` elements at `at` are readable.
#[inline]
pub unsafe fn quantise<const D: u8>(at: *const u8, reciprocal: f32, codes: &mut [u8]) {
    for (index, code) in codes.iter_mut().enumerate() {
        // SAFETY: `index` is below `codes.len()`.
        let bits = unsafe { load::<D>(at, index) };
        *code = code_of(value_of(D, bits) * reciprocal);
    }
}

/// Turns codes into elements.
///
/// # Safety
/// `codes.len()` elements at `at` are writable.
#[inline]
pub unsafe fn dequantise<const D: u8>(codes: &[u8], scale: f32, at: *mut u8) {
    for (index, code) in codes.iter().enumerate() {
        let value = f32::from(code.cast_signed()) * scale;
        // SAFETY: `index` is below `codes.len()`.
        unsafe { store::<D>(at, index, element_of(D, value)) };
    }
}

/// The nearest integer, ties to even; the scale rule keeps it within -127..=127.
///
/// Around 1.5 * 2^23 floats are integers, so that the sum is rounded and its low bits are the code.
#[inline]
pub fn code_of(quotient: f32) -> u8 {
    let [code, ..] = (quotient + 12_582_912.0).to_bits().to_le_bytes();
    code
}

/// The bits of an element.
///
/// # Safety
/// The element is readable.
#[inline]
pub unsafe fn load<const D: u8>(row: *const u8, index: usize) -> u32 {
    let at = row.wrapping_add(index * element_bytes(D));
    if element_bytes(D) == 4 {
        // SAFETY: the caller's element is readable; no alignment is asked for.
        u32::from_le_bytes(unsafe { at.cast::<[u8; 4]>().read() })
    } else {
        // SAFETY: as above.
        u32::from(u16::from_le_bytes(unsafe { at.cast::<[u8; 2]>().read() }))
    }
}

/// Writes an element.
///
/// # Safety
/// The element is writable.
#[inline]
pub unsafe fn store<const D: u8>(row: *mut u8, index: usize, bits: u32) {
    let at = row.wrapping_add(index * element_bytes(D));
    let bytes @ [low, high, ..] = bits.to_le_bytes();
    if element_bytes(D) == 4 {
        // SAFETY: the caller's element is writable; no alignment is asked for.
        unsafe { at.cast::<[u8; 4]>().write(bytes) };
    } else {
        // SAFETY: as above.
        unsafe { at.cast::<[u8; 2]>().write([low, high]) };
    }
}
