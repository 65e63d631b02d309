//! Owns the first bytes of a region: how memory becomes one, and what its layout is.

use tierkv_core::error::Result;

use crate::layout::{FIELDS_BYTES, Layout};
use crate::visibility::{Fabric, Rule, Seen};

const EMPTY_PAGE: [u8; 4096] = [0; 4096];
/// Bytes of a superblock that arrive together: one line.
const HEAD_BYTES: usize = 64;

/// Creates a region in memory that is all zeros and not shared yet.
pub fn format<F: Fabric>(fabric: &F, layout: &Layout) {
    let seen = Seen(fabric);
    seen.payload_in(0, &layout.to_bytes());
    seen.fence(Rule::PayloadFence);
}

/// Returns the bytes of the region in `fabric`, by its superblock, and whether it was made now. Creates one if the first page is
/// empty; other contents are left alone. The superblock's first line is written last, so that another process can continue after a
/// death before it.
pub fn settle<F: Fabric>(fabric: &F, layout: Option<&Layout>) -> (u64, bool) {
    let (seen, mut first, mut begun) = (Seen(fabric), EMPTY_PAGE, EMPTY_PAGE);
    seen.payload_out(0, &mut first);
    let fields = layout.map_or([0; FIELDS_BYTES], Layout::to_bytes);
    let (head, tail) = fields.split_at(HEAD_BYTES);
    begun[head.len()..fields.len()].copy_from_slice(tail);
    let Some(layout) = layout.filter(|_| [EMPTY_PAGE, begun].contains(&first)) else {
        let bytes = first[16..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        return (bytes, false);
    };
    for at in (0..layout.payload_at).step_by(EMPTY_PAGE.len()).skip(1) {
        seen.payload_in(at, &EMPTY_PAGE);
    }
    seen.payload_in(head.len() as u64, tail);
    seen.fence(Rule::PayloadFence);
    seen.payload_in(0, head);
    seen.fence(Rule::PayloadFence);
    (layout.region_bytes, true)
}

/// Layout of memory of `bytes` bytes, by its superblock.
pub(crate) fn layout_of<F: Fabric>(fabric: &F, bytes: u64) -> Result<Layout> {
    let mut fields = [0; FIELDS_BYTES];
    Seen(fabric).payload_out(0, &mut fields);
    Layout::from_bytes(&fields, bytes)
}
