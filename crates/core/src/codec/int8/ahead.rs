//! Owns the prefetch of rows, because memory takes long to answer.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::kernels::Rows;

const ROWS_AHEAD: usize = 16;

/// Rows to read, and the start of the rows after them.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub at: *const u8,
    pub next: *const u8,
    pub rows: Rows,
    pub count: usize,
}

impl Path {
    /// Start of the row to prefetch while `row` is read.
    #[inline]
    pub fn ahead_of(&self, row: usize) -> *const u8 {
        let wanted = row + ROWS_AHEAD;
        if wanted < self.count {
            self.at.wrapping_add(wanted * self.rows.stride)
        } else {
            self.next.wrapping_add((wanted - self.count) * self.rows.stride)
        }
    }
}

/// Prefetches a cache line.
#[inline]
pub fn ask(at: *const u8) {
    // SAFETY: a hint, which never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}
