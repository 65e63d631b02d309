//! Owns codecs 2 and 3, int8 without and with a transform of K: head vectors to scales and codes and back, one pass each way.
//!
//! The rule, the layout of the payload and the error bound stand in docs/protocol.md, section 1.

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod hadamard;
#[cfg(target_arch = "x86_64")]
mod hadamard_avx2;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scale;

use std::ops::Range;

use crate::codec_id::Codec;
use crate::crc32c;
use crate::geometry::Geometry;
use crate::limits::{CHECKSUM_SPAN_BYTES, STREAM_BYTES_MIN};

use self::kernels::Rows;

pub use self::kernels::Isa;
pub(super) use self::scale::element_bytes;
pub use crate::codec_id::SCALE_BYTES;

/// Streaming stores pay only where they fill whole lines.
const CACHE_LINE_BYTES: usize = 64;

/// The page holds an inf or a NaN, which has no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// The payload holds a scale that is neither zero nor a positive normal number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadScale;

/// Encodes the page at `page` into `payload` in one pass and returns the payload's CRC32C.
///
/// # Errors
/// `NotFinite`; `payload` then holds no usable bytes.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`.
///
/// # Panics
/// If `payload` does not have the length of these codecs for this geometry.
pub unsafe fn encode(
    way: (Isa, Codec),
    geometry: &Geometry,
    page: *const u8,
    payload: &mut [u8],
) -> Result<u32, NotFinite> {
    check_length(geometry, payload);
    let dtype = geometry.spec().dtype;
    let kernels = way.0.kernels(dtype);
    let (mut checksum, mut checked) = (0, 0);
    let mut groups = groups(geometry).peekable();
    while let Some(group) = groups.next() {
        let next = groups.peek().unwrap_or(&group).page_at;
        let (at, next) = (page.wrapping_add(group.page_at), page.wrapping_add(next));
        let (scales, codes) = payload[group.payload()].split_at_mut(group.tokens * SCALE_BYTES);
        let (scales, _) = scales.as_chunks_mut();
        let is_finite = if group.is_transformed(way.1) {
            // SAFETY: a validated geometry has all its rows inside the page, which is readable.
            unsafe { hadamard::encode((way.0, dtype), at, group.rows(), scales, codes) }
        } else {
            // SAFETY: as above.
            unsafe { (kernels.encode)(at, group.rows(), next, scales, codes) }
        };
        if !is_finite {
            return Err(NotFinite);
        }
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
/// `BadScale`; the page is then partly written, and unusable.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
///
/// # Panics
/// If `payload` does not have the length of these codecs for this geometry.
pub unsafe fn decode(
    way: (Isa, Codec),
    geometry: &Geometry,
    payload: &[u8],
    page: *mut u8,
) -> Result<(), BadScale> {
    check_length(geometry, payload);
    let spans = Spans::new(way, geometry, page);
    // SAFETY: the caller's promise is the callee's.
    unsafe { spans.decode(geometry, payload.as_ptr(), 0..payload.len(), page) }.map(|_| ())
}

/// Decodes a payload in parts, as it arrives; facts about the whole page are computed once.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    isa: Isa,
    codec: Codec,
    stream: bool,
}

impl Spans {
    /// Prepares for the page at `page`, which is not accessed.
    #[must_use]
    pub fn new((isa, codec): (Isa, Codec), geometry: &Geometry, page: *const u8) -> Self {
        Self { isa, codec, stream: streams(geometry, page) }
    }

    /// Decodes every group that lies completely in `span` of the payload. Returns the end of the last one, where the next
    /// span begins; without one, the start of `span`.
    ///
    /// # Errors
    /// `BadScale`; the page is then unusable.
    ///
    /// # Safety
    /// `geometry.page_bytes()` bytes at `page` are writable; `span` of the payload at `payload` is readable and not
    /// written. The two do not overlap, and `page` has the alignment of the one given to `new`.
    pub unsafe fn decode(
        &self,
        geometry: &Geometry,
        payload: *const u8,
        span: Range<usize>,
        page: *mut u8,
    ) -> Result<usize, BadScale> {
        let dtype = geometry.spec().dtype;
        let (kernels, careful) = (self.isa.kernels(dtype), Isa::PORTABLE.kernels(dtype));
        let transform = self.isa.hadamard(dtype);
        let mut sums = Vec::new();
        let mut end = span.start;
        for group in groups_from(geometry, span.start) {
            let lies = group.payload();
            if lies.end > span.end {
                break;
            }
            end = lies.end;
            let start = payload.wrapping_add(lies.start);
            // SAFETY: the group lies within `span`, which is readable and not written.
            let bytes = unsafe { std::slice::from_raw_parts(start, lies.len()) };
            let (scales, codes) = bytes.split_at(group.tokens * SCALE_BYTES);
            let (scales, _) = scales.as_chunks();
            let at = page.wrapping_add(group.page_at);
            if group.is_transformed(self.codec) {
                if !scales.iter().all(|scale| scale::is_possible(*scale)) {
                    return Err(BadScale);
                }
                sums.resize(group.dim, 0);
                // SAFETY: a validated geometry has all its rows inside the page, which is writable.
                unsafe { (transform.back)(scales, codes, at, group.rows(), &mut sums) };
                continue;
            }
            let kernels = if scales.iter().all(|scale| scale::is_ordinary(dtype, *scale)) {
                kernels
            } else if scales.iter().all(|scale| scale::is_possible(*scale)) {
                careful
            } else {
                return Err(BadScale);
            };
            // SAFETY: as above; `stream` was chosen for rows of whole cache lines.
            unsafe { (kernels.decode)(scales, codes, at, group.rows(), self.stream) };
        }
        if self.stream {
            kernels::fence();
        }
        Ok(end)
    }
}

/// The value of an element's bytes, as stored in a page.
pub(super) fn value_at(dtype: u8, bytes: &[u8]) -> f32 {
    let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    scale::value_of(dtype, bits)
}

/// Payload range of the group that contains position `at`.
#[must_use]
pub fn group_around(geometry: &Geometry, at: usize) -> Option<Range<usize>> {
    let from = at - at % layer_payload_bytes(geometry);
    groups_from(geometry, from).map(|group| group.payload()).find(|lies| lies.end > at)
}

/// Payload bytes of the longest group.
#[must_use]
pub fn group_bytes_max(geometry: &Geometry) -> usize {
    let spec = geometry.spec();
    let layer = groups(geometry).take(2 * spec.heads as usize);
    layer.map(|group| group.payload().len()).max().unwrap_or_default()
}

fn check_length(geometry: &Geometry, payload: &[u8]) {
    let expected = geometry.payload_bytes(Codec::Int8);
    assert_eq!(Some(payload.len()), expected, "payload fits the geometry");
}

/// K or V of one head in one layer: `tokens` head vectors of `dim` elements, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
struct Group {
    page_at: usize,
    payload_at: usize,
    tokens: usize,
    stride: usize,
    dim: usize,
    is_key: bool,
}

impl Group {
    /// Whether its vectors are transformed before coding; a transform of one element does nothing.
    fn is_transformed(&self, codec: Codec) -> bool {
        codec == Codec::Int8Had && self.is_key && hadamard::block_of(self.dim) > 1
    }

    /// Payload range of its scales and codes.
    fn payload(&self) -> Range<usize> {
        self.payload_at..self.payload_at + self.tokens * (SCALE_BYTES + self.dim)
    }

    fn rows(&self) -> Rows {
        Rows { stride: self.stride, dim: self.dim }
    }
}

/// All groups of a page, in canonical order: layer, part, head.
fn groups(geometry: &Geometry) -> impl Iterator<Item = Group> {
    groups_from(geometry, 0)
}

/// The groups that start at `payload_at` or later; earlier layers are not walked.
fn groups_from(geometry: &Geometry, payload_at: usize) -> impl Iterator<Item = Group> {
    let element_bytes = scale::element_bytes(geometry.spec().dtype);
    let layer_bytes = layer_payload_bytes(geometry);
    let layer = payload_at / layer_bytes;
    let groups = geometry.heads_from(layer).scan(layer * layer_bytes, move |end, head| {
        let group = Group {
            page_at: head.offset,
            payload_at: *end,
            tokens: head.tokens,
            stride: head.token_stride,
            dim: head.vector_bytes / element_bytes,
            is_key: head.is_key,
        };
        *end = group.payload().end;
        Some(group)
    });
    groups.skip_while(move |group| group.payload_at < payload_at)
}

/// Payload bytes of one layer; all layers are alike.
fn layer_payload_bytes(geometry: &Geometry) -> usize {
    let bytes = geometry.payload_bytes(Codec::Int8).unwrap_or_default();
    (bytes / geometry.spec().layers as usize).max(1)
}

/// Whether a page is large enough to evict everything else from the cache, and consists of whole lines.
fn streams(geometry: &Geometry, page: *const u8) -> bool {
    geometry.source_bytes() >= STREAM_BYTES_MIN
        && geometry.heads().all(|head| {
            [page.addr() + head.offset, head.token_stride, head.vector_bytes]
                .into_iter()
                .all(|bytes| bytes.is_multiple_of(CACHE_LINE_BYTES))
        })
}
