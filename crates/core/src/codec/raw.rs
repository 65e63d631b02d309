//! Owns codec 0: the strided page of the engine to the canonical payload and back, one copy each way.

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
