//! Owns codec 2, int8: head vectors of a strided page to scales and codes and back, in one pass each way.
//!
//! The rule, the layout of the payload and the error bound stand in docs/protocol.md, section 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scale;

use std::ops::Range;

use crate::codec::Codec;
use crate::crc32c;
use crate::geometry::Geometry;
use crate::limits::{CHECKSUM_SPAN_BYTES, STREAM_BYTES_MIN};

use self::kernels::{BATCH, Kernels, Rows};
use self::scale::{BF16, SCALE_BYTES};

pub use self::kernels::Isa;

/// Stores past the cache pay where they fill whole lines.
const CACHE_LINE_BYTES: usize = 64;

/// The page holds an inf or a NaN: no code stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// The payload holds a scale that is neither zero nor a positive normal number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadScale;

/// Encodes the page at `page` into `payload` in one pass and returns the payload's CRC32C.
///
/// # Errors
/// `NotFinite`; `payload` then holds nothing of use.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`.
///
/// # Panics
/// If `payload` is not as long as codec 2 makes it for this geometry.
pub unsafe fn encode(
    isa: Isa,
    geometry: &Geometry,
    page: *const u8,
    payload: &mut [u8],
) -> Result<u32, NotFinite> {
    check_length(geometry, payload);
    let dtype = geometry.spec().dtype;
    let kernels = isa.kernels(dtype);
    let (mut checksum, mut checked) = (0, 0);
    for group in groups(geometry) {
        // SAFETY: a validated geometry has all its rows inside the page, which is readable.
        unsafe { group.encode(kernels, dtype, page, &mut payload[group.payload()]) }?;
        let end = group.payload().end;
        if end - checked >= CHECKSUM_SPAN_BYTES {
            checksum = crc32c::append(checksum, &payload[checked..end]);
            checked = end;
        }
    }
    Ok(crc32c::append(checksum, &payload[checked..]))
}

/// Decodes `payload` into the page at `page` in one pass; padding of the page is left alone.
///
/// # Errors
/// `BadScale`; the page is untouched then.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
///
/// # Panics
/// If `payload` is not as long as codec 2 makes it for this geometry.
pub unsafe fn decode(
    isa: Isa,
    geometry: &Geometry,
    payload: &[u8],
    page: *mut u8,
) -> Result<(), BadScale> {
    check_length(geometry, payload);
    for group in groups(geometry) {
        group.check_scales(&payload[group.payload()])?;
    }
    let how = How { isa, dtype: geometry.spec().dtype, stream: streams(geometry, page) };
    for group in groups(geometry) {
        // SAFETY: a validated geometry has all its rows inside the page, which is writable.
        unsafe { group.decode(how, &payload[group.payload()], page) };
    }
    if how.stream {
        kernels::fence();
    }
    Ok(())
}

fn check_length(geometry: &Geometry, payload: &[u8]) {
    let expected = geometry.payload_bytes(Codec::Int8);
    assert_eq!(Some(payload.len()), expected, "payload fits the geometry");
}

/// How a page is decoded.
#[derive(Debug, Clone, Copy)]
struct How {
    isa: Isa,
    dtype: u8,
    stream: bool,
}

/// K or V of one head in one layer: `tokens` head vectors of `dim` elements, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
struct Group {
    page_at: usize,
    payload_at: usize,
    tokens: usize,
    stride: usize,
    dim: usize,
}

impl Group {
    /// Where its scales and codes lie.
    fn payload(&self) -> Range<usize> {
        self.payload_at..self.payload_at + self.tokens * (SCALE_BYTES + self.dim)
    }

    /// The head vectors of some tokens at a time: the first of them, and where and how they lie.
    fn batches(self) -> impl Iterator<Item = (Range<usize>, usize, Rows)> {
        (0..self.tokens).step_by(BATCH).map(move |first| {
            let count = BATCH.min(self.tokens - first);
            let rows = Rows { count, stride: self.stride, dim: self.dim };
            (first..first + count, self.page_at + first * self.stride, rows)
        })
    }

    /// Unsafe: the group's rows lie in the page, which is readable.
    unsafe fn encode(
        self,
        kernels: Kernels,
        dtype: u8,
        page: *const u8,
        payload: &mut [u8],
    ) -> Result<(), NotFinite> {
        let (scales, codes) = payload.split_at_mut(self.tokens * SCALE_BYTES);
        for (tokens, at, rows) in self.batches() {
            let at = page.wrapping_add(at);
            let mut largest = [0; BATCH];
            // SAFETY: the caller's rows are readable.
            unsafe { (kernels.absmax)(at, rows, &mut largest) };
            let scales = scales[tokens.start * SCALE_BYTES..].chunks_exact_mut(SCALE_BYTES);
            let mut reciprocals = [0.0; BATCH];
            for ((magnitude, reciprocal), written) in largest.iter().zip(&mut reciprocals).zip(scales) {
                if !scale::is_finite(dtype, *magnitude) {
                    return Err(NotFinite);
                }
                let scale = scale::scale_of(scale::value_of(dtype, *magnitude));
                *reciprocal = scale::reciprocal_of(scale);
                written.copy_from_slice(&scale.to_le_bytes());
            }
            let codes = &mut codes[tokens.start * self.dim..tokens.end * self.dim];
            // SAFETY: as above; all elements are finite.
            unsafe { (kernels.quantise)(at, rows, &reciprocals, codes) };
        }
        Ok(())
    }

    fn check_scales(self, payload: &[u8]) -> Result<(), BadScale> {
        let good = scales(&payload[..self.tokens * SCALE_BYTES]).all(scale::is_scale);
        if good { Ok(()) } else { Err(BadScale) }
    }

    /// Unsafe: the group's rows lie in the page, which is writable.
    unsafe fn decode(self, how: How, payload: &[u8], page: *mut u8) {
        let (all, codes) = payload.split_at(self.tokens * SCALE_BYTES);
        for (tokens, at, rows) in self.batches() {
            let mut batch = [0.0; BATCH];
            for (value, bits) in batch.iter_mut().zip(scales(&all[tokens.start * SCALE_BYTES..])) {
                *value = scale::value_of(BF16, u32::from(bits));
            }
            let ordinary = batch.iter().all(|scale| scale::is_ordinary(how.dtype, *scale));
            let isa = if ordinary { how.isa } else { Isa::PORTABLE };
            let codes = &codes[tokens.start * self.dim..tokens.end * self.dim];
            let at = page.wrapping_add(at);
            // SAFETY: the caller's rows are writable; `stream` was chosen for rows of whole lines.
            unsafe { (isa.kernels(how.dtype).dequantise)(codes, &batch, at, rows, how.stream) };
        }
    }
}

/// All groups of a page, in canonical order: layer, part, head.
fn groups(geometry: &Geometry) -> impl Iterator<Item = Group> {
    let element_bytes = scale::element_bytes(geometry.spec().dtype);
    geometry.heads().scan(0, move |end, head| {
        let group = Group {
            page_at: head.offset,
            payload_at: *end,
            tokens: head.tokens,
            stride: head.token_stride,
            dim: head.vector_bytes / element_bytes,
        };
        *end = group.payload().end;
        Some(group)
    })
}

fn scales(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(SCALE_BYTES).map(|scale| u16::from_le_bytes([scale[0], scale[1]]))
}

/// Whether a page is large enough to push everything else out of the cache, and made of whole lines.
fn streams(geometry: &Geometry, page: *const u8) -> bool {
    geometry.source_bytes() >= STREAM_BYTES_MIN
        && geometry.heads().all(|head| {
            [page.addr() + head.offset, head.token_stride, head.vector_bytes]
                .into_iter()
                .all(|bytes| bytes.is_multiple_of(CACHE_LINE_BYTES))
        })
}
