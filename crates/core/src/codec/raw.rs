//! Owns codec 0: copies between the engine's strided page and the canonical payload, one copy each way.

use std::ops::Range;

use crate::crc32c;
use crate::geometry::Geometry;
use crate::limits::CHECKSUM_SPAN_BYTES;

/// Copies the page's runs into `payload`, in canonical order; returns the payload's CRC32C.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`.
pub unsafe fn gather(geometry: &Geometry, page: *const u8, payload: &mut [u8]) -> u32 {
    assert_eq!(payload.len(), geometry.source_bytes(), "payload fits the geometry");
    let mut checksum = 0;
    let mut checked = 0;
    let mut at = 0;
    geometry.for_each_run(|offset, bytes| {
        let run = &mut payload[at..at + bytes];
        // SAFETY: a validated geometry has all its runs inside the page, which is readable.
        let source = unsafe { page.add(offset) };
        // SAFETY: as above; `run` is exclusively borrowed, so the two cannot overlap.
        unsafe { source.copy_to_nonoverlapping(run.as_mut_ptr(), bytes) };
        at += bytes;
        if at - checked >= CHECKSUM_SPAN_BYTES {
            checksum = crc32c::append(checksum, &payload[checked..at]);
            checked = at;
        }
    });
    crc32c::append(checksum, &payload[checked..])
}

/// Copies `payload`, in canonical order, onto the page's runs.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`.
pub unsafe fn scatter(geometry: &Geometry, payload: &[u8], page: *mut u8) {
    assert_eq!(payload.len(), geometry.source_bytes(), "payload fits the geometry");
    let mut at = 0;
    geometry.for_each_run(|offset, bytes| {
        let run = &payload[at..at + bytes];
        // SAFETY: a validated geometry has all its runs inside the page, which is writable.
        let target = unsafe { page.add(offset) };
        // SAFETY: as above; the caller promises that page and payload do not overlap.
        unsafe { target.copy_from_nonoverlapping(run.as_ptr(), bytes) };
        at += bytes;
    });
}

/// Like `scatter`, and returns the checksum of what it copied. The payload may be written meanwhile: each of its spans is copied
/// once, to memory of our own in the cache, and from there to the page, while the next one is prefetched.
///
/// # Safety
/// As `scatter`.
pub unsafe fn scatter_checked(geometry: &Geometry, payload: &[u8], page: *mut u8) -> u32 {
    assert_eq!(payload.len(), geometry.source_bytes(), "payload fits the geometry");
    let mut window = [0; CHECKSUM_SPAN_BYTES];
    let (mut checksum, mut from, mut at, mut end) = (0, 0, 0, 0);
    geometry.for_each_run(|offset, bytes| {
        let run_end = at + bytes;
        let mut target = page.wrapping_add(offset);
        while at < run_end {
            if at == end {
                (from, end) = (at, (at + CHECKSUM_SPAN_BYTES).min(payload.len()));
                let span = &mut window[..end - from];
                span.copy_from_slice(&payload[from..end]);
                checksum = crc32c::append(checksum, span);
            }
            let part = &window[at - from..run_end.min(end) - from];
            let ahead = |at: usize| (at + CHECKSUM_SPAN_BYTES).min(payload.len());
            prefetch(&payload[ahead(at)..ahead(at + part.len())]);
            // SAFETY: a validated geometry has all its runs inside the page, which is writable and not the window.
            unsafe { copy_past_cache(part, target) };
            at += part.len();
            target = target.wrapping_add(part.len());
        }
    });
    settle();
    checksum
}

/// Copies `part`, which begins at `at` in the payload, onto the page's runs.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `part`.
///
/// # Panics
/// If the payload ends before `part` does.
pub unsafe fn scatter_part(geometry: &Geometry, part: &[u8], at: usize, page: *mut u8) {
    let end = at + part.len();
    let layer_bytes = geometry.source_bytes() / geometry.spec().layers as usize;
    let layers: Range<usize> = at / layer_bytes..end.div_ceil(layer_bytes);
    let mut run_at = layers.start * layer_bytes;
    geometry.for_each_run_of(layers, |offset, bytes| {
        let (from, to) = (run_at.max(at), (run_at + bytes).min(end));
        if from < to {
            let run = &part[from - at..to - at];
            // SAFETY: a validated geometry has all its runs inside the page, which is writable.
            let target = unsafe { page.add(offset + from - run_at) };
            // SAFETY: as above; the caller promises that page and part do not overlap.
            unsafe { copy_past_cache(run, target) };
        }
        run_at += bytes;
    });
    settle();
}

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies whole lines past the cache, because the page is as large as the cache and the engine reads it later.
///
/// # Safety
/// `run.len()` bytes at `target` are writable and do not overlap `run`.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_past_cache(run: &[u8], target: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    if is_x86_feature_detected!("avx512f")
        && target.addr().is_multiple_of(LINE_BYTES)
        && run.len().is_multiple_of(LINE_BYTES)
    {
        // SAFETY: the processor has AVX-512 and the target is aligned; the rest is the caller's promise.
        unsafe { stream_lines(run, target) };
        return;
    }
    if !target.addr().is_multiple_of(LINE_BYTES) || !run.len().is_multiple_of(LINE_BYTES) {
        // SAFETY: the caller's promise.
        unsafe { target.copy_from_nonoverlapping(run.as_ptr(), run.len()) };
        return;
    }
    for (index, lanes) in run.chunks_exact(size_of::<__m128i>()).enumerate() {
        // SAFETY: a chunk has as many bytes as are loaded.
        let lanes = unsafe { _mm_loadu_si128(lanes.as_ptr().cast()) };
        let at = target.wrapping_add(index * size_of::<__m128i>());
        // SAFETY: within the caller's bytes, and aligned as they are.
        unsafe { _mm_stream_si128(at.cast(), lanes) };
    }
}

/// Stores whole lines: a quarter of the stores, and a fifth more of memory's bandwidth.
///
/// # Safety
/// As `copy_past_cache`, for whole lines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines(run: &[u8], target: *mut u8) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};

    for (index, line) in run.chunks_exact(LINE_BYTES).enumerate() {
        // SAFETY: a chunk is a line.
        let lanes = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        // SAFETY: within the caller's bytes, and aligned as they are.
        unsafe { _mm512_stream_si512(target.wrapping_add(index * LINE_BYTES).cast(), lanes) };
    }
}

/// # Safety
/// `run.len()` bytes at `target` are writable and do not overlap `run`.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_past_cache(run: &[u8], target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { target.copy_from_nonoverlapping(run.as_ptr(), run.len()) };
}

/// Prefetches lines, because memory takes long to answer.
#[cfg(target_arch = "x86_64")]
pub(super) fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn prefetch(_bytes: &[u8]) {}

/// Orders the streaming stores before any later notice that the page is complete.
#[cfg(target_arch = "x86_64")]
pub(crate) fn settle() {
    // SAFETY: every processor of this architecture has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn settle() {}
