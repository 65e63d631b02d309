//! Owns the digest of what a slot holds: SHA-256 over a block's values, the same whatever record they came in.

use std::sync::Arc;

use ring::digest::{Context, SHA256};

use crate::arena::Arena;
use crate::error::Result;
use crate::geometry::Geometry;
use crate::outbox::check_fits;
use crate::record::Hash;
use crate::slots::Lease;

/// Of the page in a leased slot, its runs in canonical order; padding and strides do not count.
///
/// # Errors
/// `BAD_ARGUMENT` for a stale lease, or a slot that is smaller than the page.
pub fn of_slot(arena: &Arc<Arena>, lease: Lease, geometry: &Geometry) -> Result<Hash> {
    let slot = arena.access(lease)?;
    check_fits(geometry, slot.bytes())?;
    let mut context = Context::new(&SHA256);
    let mut run = Vec::new();
    geometry.for_each_run(|offset, bytes| {
        run.resize(bytes, 0);
        // SAFETY: a validated geometry has all its runs inside the page, which the slot holds for as long as the access lasts.
        let source = unsafe { slot.as_ptr().add(offset) };
        // SAFETY: as above; `run` is our own.
        unsafe { source.copy_to_nonoverlapping(run.as_mut_ptr(), bytes) };
        context.update(&run);
    });
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}
