//! Owns copies past the cache: memory that another core, process or device reads next.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Copies whole lines past the cache, because the page is as large as the cache and the engine reads it later.
///
/// # Safety
/// `run.len()` bytes at `target` are writable and do not overlap `run`.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_past_cache(run: &[u8], target: *mut u8) {
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
pub unsafe fn copy_past_cache(run: &[u8], target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { target.copy_from_nonoverlapping(run.as_ptr(), run.len()) };
}

/// Prefetches lines, because memory takes long to answer.
#[cfg(target_arch = "x86_64")]
pub fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn prefetch(_bytes: &[u8]) {}

/// Orders the streaming stores before any later notice that the page is complete.
#[cfg(target_arch = "x86_64")]
pub fn settle() {
    // SAFETY: every processor of this architecture has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
pub fn settle() {}
