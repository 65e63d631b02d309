//! Owns codecs 2 and 4, int8 without and with a transform of K and V: head vectors to scales and codes and back, one pass each way.
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
mod group;
mod hadamard;
mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scale;
mod turned;
#[cfg(target_arch = "x86_64")]
mod turned_avx2;
#[cfg(target_arch = "x86_64")]
mod turned_avx512;
#[cfg(target_arch = "x86_64")]
mod turned_avx512_encode;

use std::ops::Range;

use crate::codec_id::{Codec, Form};
use crate::crc32c;
use crate::geometry::Geometry;
use crate::limits::{CHECKSUM_SPAN_BYTES, STREAM_BYTES_MIN};
use crate::past_cache::prefetch;

use self::group::{Group, groups, groups_from, layer_payload_bytes};
use self::kernels::Kernels;
use self::turned::{Scratch, Turned};

pub use self::kernels::Isa;
pub use crate::codec_id::SCALE_BYTES;

/// Streaming stores pay only where they fill whole lines.
const CACHE_LINE_BYTES: usize = 64;

/// The page holds a number that has no code: an inf, a NaN, or in codec 4 numbers beyond the range of its scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// The payload holds a scale that is neither zero nor one that its codec writes.
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
/// If `payload` does not have the length of this form for this geometry.
pub unsafe fn encode(
    (isa, form): (Isa, impl Into<Form>),
    geometry: &Geometry,
    page: *const u8,
    payload: &mut [u8],
) -> Result<u32, NotFinite> {
    let form = form.into();
    check_length(geometry, form, payload);
    let dtype = geometry.spec().dtype;
    let kernels = isa.kernels(dtype);
    let turned = isa.turned(dtype);
    let mut scratch = Scratch::default();
    let (mut checksum, mut checked) = (0, 0);
    let mut groups = groups(geometry, form).peekable();
    while let Some(group) = groups.next() {
        let next = groups.peek().unwrap_or(&group).page_at;
        let (at, next) = (page.wrapping_add(group.page_at), page.wrapping_add(next));
        let parts = group.split_mut(&mut payload[group.payload()]);
        let is_finite = if form.codec() == Codec::Int8MeanHad {
            // SAFETY: a validated geometry has all its rows inside the page, which is readable.
            unsafe { turned::encode(&turned, at, group.rows(), next, parts, &mut scratch) }
        } else {
            // SAFETY: as above.
            unsafe { (kernels.encode)(at, group.rows(), next, parts.scales, parts.codes) }
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
/// If `payload` does not have the length of this form for this geometry.
pub unsafe fn decode(
    (isa, form): (Isa, impl Into<Form>),
    geometry: &Geometry,
    payload: &[u8],
    page: *mut u8,
) -> Result<(), BadScale> {
    let form = form.into();
    check_length(geometry, form, payload);
    let spans = Spans::new((isa, form), geometry, page);
    // SAFETY: the caller's promise is the callee's.
    unsafe { spans.decode(geometry, payload.as_ptr(), 0..payload.len(), page) }.map(|_| ())
}

/// Decodes a payload in parts, as it arrives; facts about the whole page are computed once.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    isa: Isa,
    form: Form,
    stream: bool,
}

impl Spans {
    /// Prepares for the page at `page`, which is not accessed.
    #[must_use]
    pub fn new((isa, form): (Isa, impl Into<Form>), geometry: &Geometry, page: *const u8) -> Self {
        Self { isa, form: form.into(), stream: streams(geometry, page) }
    }

    /// Payload range of the group that contains position `at`.
    #[must_use]
    pub fn group_around(&self, geometry: &Geometry, at: usize) -> Option<Range<usize>> {
        let from = at - at % layer_payload_bytes(geometry, self.form);
        let mut ranges = groups_from(geometry, self.form, from).map(|group| group.payload());
        ranges.find(|lies| lies.end > at)
    }

    /// Payload bytes of the longest group.
    #[must_use]
    pub fn group_bytes_max(&self, geometry: &Geometry) -> usize {
        let layer = groups(geometry, self.form).take(2 * geometry.spec().heads as usize);
        layer.map(|group| group.payload().len()).max().unwrap_or_default()
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
        let mut decoder = Decoder::new(*self, geometry);
        let mut end = span.start;
        for group in groups_from(geometry, self.form, span.start) {
            let lies = group.payload();
            if lies.end > span.end {
                break;
            }
            end = lies.end;
            let start = payload.wrapping_add(lies.start);
            // SAFETY: the group lies within `span`, which is readable and not written.
            let bytes = unsafe { std::slice::from_raw_parts(start, lies.len()) };
            // SAFETY: the caller's promise about the page.
            unsafe { decoder.decode(&group, bytes, page) }?;
        }
        if self.stream {
            kernels::fence();
        }
        Ok(end)
    }

    /// Decodes a whole payload that others may write meanwhile: a span of groups at a time is copied to `window`, in the cache,
    /// and what was copied is checksummed and decoded, while the next span is prefetched. Returns the checksum.
    ///
    /// # Errors
    /// Beside the checksum `BadScale`; the page is then unusable.
    ///
    /// # Safety
    /// As `decode`, but for the payload.
    ///
    /// # Panics
    /// If `window` has less than `CHECKSUM_SPAN_BYTES` and `group_bytes_max` bytes, or the payload not the length of its form.
    pub unsafe fn decode_standing(
        &self,
        geometry: &Geometry,
        payload: &[u8],
        page: *mut u8,
        window: &mut [u8],
    ) -> (u32, Result<(), BadScale>) {
        check_length(geometry, self.form, payload);
        let mut decoder = Decoder::new(*self, geometry);
        let (mut checksum, mut outcome, mut span) = (0, Ok(()), Vec::new());
        let mut groups = groups(geometry, self.form).peekable();
        while let Some(first) = groups.next() {
            span.clear();
            span.push(first);
            let Range { start, mut end } = first.payload();
            while let Some(group) =
                groups.next_if(|group| group.payload().end - start <= CHECKSUM_SPAN_BYTES)
            {
                end = group.payload().end;
                span.push(group);
            }
            let copied = &mut window[..end - start];
            copied.copy_from_slice(&payload[start..end]);
            checksum = crc32c::append(checksum, copied);
            for group in &span {
                let lies = group.payload();
                let Range { start: from, end: to } = lies.start - start..lies.end - start;
                let ahead = |at: usize| (end + at).min(payload.len());
                prefetch(&payload[ahead(from)..ahead(to)]);
                if outcome.is_ok() {
                    // SAFETY: the caller's promise about the page.
                    outcome = unsafe { decoder.decode(group, &copied[from..to], page) };
                }
            }
        }
        if self.stream {
            kernels::fence();
        }
        (checksum, outcome)
    }
}

/// Decodes group after group of one payload.
struct Decoder {
    spans: Spans,
    dtype: u8,
    kernels: Kernels,
    careful: Kernels,
    turned: Turned,
    scratch: Scratch,
}

impl Decoder {
    fn new(spans: Spans, geometry: &Geometry) -> Self {
        let dtype = geometry.spec().dtype;
        Self {
            spans,
            dtype,
            kernels: spans.isa.kernels(dtype),
            careful: Isa::PORTABLE.kernels(dtype),
            turned: spans.isa.turned(dtype),
            scratch: Scratch::default(),
        }
    }

    /// Decodes the group whose payload is `bytes`.
    ///
    /// # Safety
    /// The group's rows in the page at `page` are writable; `spans` was made for its alignment.
    unsafe fn decode(
        &mut self,
        group: &Group,
        bytes: &[u8],
        page: *mut u8,
    ) -> Result<(), BadScale> {
        let Spans { form, stream, .. } = self.spans;
        let parts = group.split(bytes);
        let (at, rows) = (page.wrapping_add(group.page_at), group.rows());
        if form.codec() == Codec::Int8MeanHad {
            if !parts.means.scales.iter().chain(parts.scales).all(|s| scale::is_turned(*s)) {
                return Err(BadScale);
            }
            // SAFETY: a validated geometry has all its rows inside the page, which is writable; `stream` was chosen
            // for rows of whole cache lines.
            unsafe { turned::decode(&self.turned, &parts, at, rows, stream, &mut self.scratch) };
            return Ok(());
        }
        let kernels = if parts.scales.iter().all(|scale| scale::is_ordinary(self.dtype, *scale)) {
            &self.kernels
        } else if parts.scales.iter().all(|scale| scale::is_possible(*scale)) {
            &self.careful
        } else {
            return Err(BadScale);
        };
        // SAFETY: as above.
        unsafe { (kernels.decode)(parts.scales, parts.codes, at, rows, stream) };
        Ok(())
    }
}

fn check_length(geometry: &Geometry, form: Form, payload: &[u8]) {
    assert_eq!(Some(payload.len()), geometry.payload_bytes(form), "payload fits the geometry");
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
