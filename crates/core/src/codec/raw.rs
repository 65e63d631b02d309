//! Owns codec 0: copies between the engine's strided page and the canonical payload, one copy each way.

use std::ops::Range;

use crate::crc32c;
use crate::geometry::Geometry;
use crate::limits::CHECKSUM_SPAN_BYTES;
use crate::past_cache::{copy_past_cache, prefetch, settle};

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
