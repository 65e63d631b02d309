//! Owns a deferred record: its sender encodes it, so that its bytes are still in the cache when they are sent.

use std::sync::Arc;

use super::{Identity, Outbox, check};
use crate::arena::Arena;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::pool::PooledBuffer;
use crate::record::{HEADER_BYTES, Hash};
use crate::slots::Lease;

/// A record to be made later. Its slot must stay leased until then, because `make` checks the lease; a slot in use is not leased again.
#[derive(Debug)]
pub struct DeferredRecord {
    outbox: Arc<Outbox>,
    arena: Arc<Arena>,
    lease: Lease,
    geometry: Arc<Geometry>,
    codec: (Codec, u8),
    identity: Identity,
    length: usize,
}

impl Outbox {
    /// Returns a record that `make` encodes later as `encode` would now.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` as for `encode`, except for reasons that depend on the slot.
    ///
    /// # Panics
    /// Never: raw takes any page.
    pub fn defer(
        self: &Arc<Self>,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Arc<Geometry>,
        codec: (Codec, u8),
        identity: Identity,
    ) -> Result<DeferredRecord> {
        check(codec, &identity)?;
        let payload = geometry
            .payload_bytes(identity.form(codec.0))
            .or_else(|| geometry.payload_bytes(Codec::Raw));
        let (before, behind) = self.around();
        let length = before + HEADER_BYTES + payload.expect("raw takes any page") + behind;
        let (outbox, arena, geometry) = (Arc::clone(self), Arc::clone(arena), Arc::clone(geometry));
        Ok(DeferredRecord { outbox, arena, lease, geometry, codec, identity, length })
    }
}

impl DeferredRecord {
    /// Length of the record, or the most where lengths vary; another one if the codec has no codes for the page (inf, NaN).
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Hash of the block before, which a sealed record hides.
    #[must_use]
    pub fn parent_hash(&self) -> &Hash {
        &self.identity.parent_hash
    }

    /// Makes the record, of whatever length.
    ///
    /// # Errors
    /// As `Outbox::encode`.
    pub fn make(&self) -> Result<PooledBuffer> {
        self.outbox.encode(&self.arena, self.lease, &self.geometry, self.codec, &self.identity)
    }

    /// Makes the record for a receiver that was told its length.
    ///
    /// # Errors
    /// As `make`; `BAD_ARGUMENT` where its length differs.
    pub fn make_as_announced(&self) -> Result<PooledBuffer> {
        let record = self.make()?;
        if record.len() == self.length {
            return Ok(record);
        }
        let text = format!("{} bytes were announced, the record has {}", self.length, record.len());
        Err(Error::bad_argument(text))
    }
}
