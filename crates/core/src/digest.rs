//! Owns the digest of a slot's contents: SHA-256 over a block's values, independent of the record that carried them.

use std::sync::Arc;

use ring::digest::{Context, SHA256};

use crate::arena::Arena;
use crate::error::Result;
use crate::geometry::Geometry;
use crate::outbox::check_fits;
use crate::record::Hash;
use crate::slots::Lease;

/// Digest of the page in a leased slot, over its runs in canonical order without padding.
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
        // SAFETY: a validated geometry has all its runs inside the page, which the slot holds during the access.
        let source = unsafe { slot.as_ptr().add(offset) };
        // SAFETY: as above; `run` is our own.
        unsafe { source.copy_to_nonoverlapping(run.as_mut_ptr(), bytes) };
        context.update(&run);
    });
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}
