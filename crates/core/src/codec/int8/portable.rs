//! Owns the kernels for any processor; the other instruction sets must give the same bytes.

use super::kernels::{BATCH, Kernels, Rows};
use super::scale::{element_bytes, element_of, magnitude_mask, value_of};

pub const fn kernels<const D: u8>() -> Kernels {
    Kernels { absmax: absmax::<D>, quantise: quantise::<D>, dequantise: dequantise::<D> }
}

unsafe fn absmax<const D: u8>(at: *const u8, rows: Rows, largest: &mut [u32; BATCH]) {
    for (offset, largest) in rows.offsets().zip(largest) {
        // SAFETY: the caller's rows are readable.
        *largest = unsafe { absmax_from::<D>(at.wrapping_add(offset), 0, rows.dim) };
    }
}

unsafe fn quantise<const D: u8>(
    at: *const u8,
    rows: Rows,
    reciprocals: &[f32; BATCH],
    codes: &mut [u8],
) {
    let codes = codes.chunks_exact_mut(rows.dim);
    for ((offset, reciprocal), codes) in rows.offsets().zip(reciprocals).zip(codes) {
        // SAFETY: the caller's rows are readable.
        unsafe { quantise_from::<D>(at.wrapping_add(offset), 0, *reciprocal, codes) };
    }
}

unsafe fn dequantise<const D: u8>(
    codes: &[u8],
    scales: &[f32; BATCH],
    at: *mut u8,
    rows: Rows,
    _stream: bool,
) {
    let codes = codes.chunks_exact(rows.dim);
    for ((offset, scale), codes) in rows.offsets().zip(scales).zip(codes) {
        // SAFETY: the caller's rows are writable.
        unsafe { dequantise_from::<D>(codes, 0, *scale, at.wrapping_add(offset)) };
    }
}

/// Largest magnitude bits of the elements `from..dim` of a row.
///
/// # Safety
/// `dim` elements at `row` are readable.
#[inline]
pub unsafe fn absmax_from<const D: u8>(row: *const u8, from: usize, dim: usize) -> u32 {
    (from..dim).fold(0, |largest, index| {
        // SAFETY: `index` is below `dim`.
        let bits = unsafe { load::<D>(row, index) };
        largest.max(bits & magnitude_mask(D))
    })
}

/// Codes of the elements from `from` on, as many as `codes` is long.
///
/// # Safety
/// `codes.len()` finite elements at `row` are readable.
#[inline]
pub unsafe fn quantise_from<const D: u8>(
    row: *const u8,
    from: usize,
    reciprocal: f32,
    codes: &mut [u8],
) {
    for (index, code) in codes.iter_mut().enumerate().skip(from) {
        // SAFETY: `index` is below `codes.len()`.
        let bits = unsafe { load::<D>(row, index) };
        *code = code_of(value_of(D, bits) * reciprocal);
    }
}

/// Elements of the codes from `from` on.
///
/// # Safety
/// `codes.len()` elements at `row` are writable.
#[inline]
pub unsafe fn dequantise_from<const D: u8>(codes: &[u8], from: usize, scale: f32, row: *mut u8) {
    for (index, code) in codes.iter().enumerate().skip(from) {
        let value = f32::from(code.cast_signed()) * scale;
        // SAFETY: `index` is below `codes.len()`.
        unsafe { store::<D>(row, index, element_of(D, value)) };
    }
}

/// The nearest whole number, ties to even; the scale rule keeps it within -127..=127.
#[inline]
fn code_of(quotient: f32) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "within -127..=127, and `as` saturates")]
    let code = quotient.round_ties_even() as i8;
    code.cast_unsigned()
}

#[inline]
unsafe fn load<const D: u8>(row: *const u8, index: usize) -> u32 {
    let at = row.wrapping_add(index * element_bytes(D));
    if element_bytes(D) == 4 {
        // SAFETY: the caller's element is readable; no alignment is asked for.
        u32::from_le_bytes(unsafe { at.cast::<[u8; 4]>().read() })
    } else {
        // SAFETY: as above.
        u32::from(u16::from_le_bytes(unsafe { at.cast::<[u8; 2]>().read() }))
    }
}

#[inline]
unsafe fn store<const D: u8>(row: *mut u8, index: usize, bits: u32) {
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
