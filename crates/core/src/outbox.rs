//! Owns the sending side: a slot's page becomes a record in memory of our own, ready to be sent.

mod deferred;

use std::sync::{Arc, OnceLock};

pub use self::deferred::DeferredRecord;

use crate::arena::{Arena, SlotAccess};
use crate::codec::{Codec, Form};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::header::is_first;
use crate::lent::Lendable;
use crate::limits::{OUTBOX_BYTES_MAX, POOL_IDLE_BYTES_MAX};
use crate::pool::{Pool, PooledBuffer};
use crate::record::{self, HEADER_BYTES, Hash, Header};
use crate::seal::{RecordKeys, SEALED_AROUND};
use crate::slots::Lease;

/// Fields of a record that do not follow from the geometry and the slot.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Shard, 0-based.
    pub shard: u16,
    /// Shards of the block.
    pub shard_count: u16,
    /// Prompt tokens up to and with this block.
    pub end_tokens: u64,
    /// Digest of everything that makes bytes comparable.
    pub namespace: Hash,
    /// Hash of this block.
    pub block_hash: Hash,
    /// Hash of the block before.
    pub parent_hash: Hash,
}

impl Identity {
    /// The form of the block in this codec.
    fn form(&self, codec: Codec) -> Form {
        codec.form(is_first(&self.parent_hash))
    }
}

/// Encodes records. Their memory counts until it is dropped.
#[derive(Debug)]
pub struct Outbox {
    pool: Arc<Pool>,
    keys: OnceLock<Arc<RecordKeys>>,
}

impl Default for Outbox {
    fn default() -> Self {
        let pool = Pool::lending("outbox", OUTBOX_BYTES_MAX, POOL_IDLE_BYTES_MAX);
        Self { pool, keys: OnceLock::new() }
    }
}

impl Outbox {
    /// From now on seals records with `keys`; false if other keys are set already.
    pub fn seal_with(&self, keys: &Arc<RecordKeys>) -> bool {
        Arc::ptr_eq(self.keys.get_or_init(|| Arc::clone(keys)), keys)
    }

    /// Memory of the records as readers may map it; `None` where the system has no such memory.
    #[must_use]
    pub fn lendable(&self) -> Option<&Lendable> {
        self.pool.lendable()
    }

    /// (records, bytes) in memory.
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        self.pool.live()
    }

    /// Encodes a leased slot: page to payload in one pass, then the header. The record is raw, and its header
    /// says so, if the codec does not take the page (opaque, recurrent state), lacks codes (inf, NaN) or does not shorten it.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a stale lease, a slot that is smaller than the page, or a codec of another fidelity; `NO_MEMORY`
    /// at the limit.
    ///
    /// # Panics
    /// Never: raw takes any page.
    pub fn encode(
        &self,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Geometry,
        (codec, fidelity): (Codec, u8),
        identity: &Identity,
    ) -> Result<PooledBuffer> {
        check((codec, fidelity), identity)?;
        let slot = arena.access(lease)?;
        check_fits(geometry, slot.bytes())?;
        if let Some(record) = self.record(&slot, geometry, (codec, fidelity), identity)? {
            return Ok(record);
        }
        let raw = self.record(&slot, geometry, (Codec::Raw, fidelity), identity)?;
        Ok(raw.expect("raw takes any page"))
    }

    /// Takes a record made elsewhere and seals it if records are sealed; does not check that it is sound.
    ///
    /// # Errors
    /// `NO_MEMORY` at the limit.
    pub fn put(&self, plain: &[u8]) -> Result<PooledBuffer> {
        let keys = self.keys.get().zip(record::parse(plain).ok());
        let (before, behind) = keys.as_ref().map_or((0, 0), |_| SEALED_AROUND);
        let mut record = self.pool.take(before + plain.len() + behind)?;
        record[before..before + plain.len()].copy_from_slice(plain);
        if let Some((keys, parsed)) = keys {
            keys.seal(&mut record, &parsed.header)?;
        }
        Ok(record)
    }

    /// Bytes that sealing adds before and behind a record.
    fn around(&self) -> (usize, usize) {
        self.keys.get().map_or((0, 0), |_| SEALED_AROUND)
    }

    /// Encodes with one codec; `None` where the codec does not take the page, or saves nothing. The slot must hold the geometry's page.
    fn record(
        &self,
        slot: &SlotAccess,
        geometry: &Geometry,
        codec: (Codec, u8),
        identity: &Identity,
    ) -> Result<Option<PooledBuffer>> {
        let Some(payload_bytes) = geometry.payload_bytes(identity.form(codec.0)) else {
            return Ok(None);
        };
        let (before, behind) = self.around();
        let mut record = self.pool.take(before + HEADER_BYTES + payload_bytes + behind)?;
        let filled = self.fill(slot, geometry, codec, identity, &mut record)?;
        Ok(filled.map(|bytes| {
            record.shorten(bytes);
            record
        }))
    }

    /// Encodes at the front of `record`, which has room for the codec's longest record; returns the record's bytes. `None`
    /// where the codec has no codes for the page, or saves nothing.
    fn fill(
        &self,
        slot: &SlotAccess,
        geometry: &Geometry,
        (codec, fidelity): (Codec, u8),
        identity: &Identity,
        record: &mut [u8],
    ) -> Result<Option<usize>> {
        let (before, behind) = self.around();
        let plain = before..record.len() - behind;
        let (head, payload) = record[plain].split_at_mut(HEADER_BYTES);
        let form = identity.form(codec);
        // SAFETY: the slot holds the page (checked by the caller); payload is the caller's own memory.
        let Ok(made) = (unsafe { form.encode(geometry, slot.as_ptr(), payload) }) else {
            return Ok(None);
        };
        // Readers tell codecs by length, and would take this record for one of the namespace's lossy codec.
        if geometry.form_of_length(fidelity, made.bytes) != Some(form) {
            return Ok(None);
        }
        let header = header_of(geometry, (codec, fidelity), made.bytes as u64, identity);
        head.copy_from_slice(&header.encode(made.checksum));
        let bytes = before + HEADER_BYTES + made.bytes + behind;
        if let Some(keys) = self.keys.get() {
            keys.seal(&mut record[..bytes], &header)?;
        }
        Ok(Some(bytes))
    }
}

fn check((codec, fidelity): (Codec, u8), identity: &Identity) -> Result<()> {
    if identity.shard >= identity.shard_count {
        return Err(Error::bad_argument(format!(
            "shard {} is not below the shard count {}",
            identity.shard, identity.shard_count
        )));
    }
    if !codec.fits_fidelity(fidelity) {
        return Err(Error::bad_argument(format!(
            "codec {}: fidelity {fidelity} is not its own",
            codec.id()
        )));
    }
    Ok(())
}

/// A slot may be larger than the page: one arena serves all groups of an engine.
pub(crate) fn check_fits(geometry: &Geometry, slot_bytes: usize) -> Result<()> {
    if geometry.page_bytes() > slot_bytes {
        return Err(Error::bad_argument(format!(
            "a page of {} bytes does not fit the arena's slots of {slot_bytes}",
            geometry.page_bytes()
        )));
    }
    Ok(())
}

fn header_of(
    geometry: &Geometry,
    (codec, fidelity): (Codec, u8),
    payload_bytes: u64,
    identity: &Identity,
) -> Header {
    let spec = geometry.spec();
    Header {
        codec: codec.id(),
        record_class: spec.record_class,
        fidelity,
        layout: spec.layout,
        group: spec.group,
        shard: identity.shard,
        shard_count: identity.shard_count,
        dtype: spec.dtype,
        parts: geometry.part_count(),
        tokens: spec.tokens,
        layers: spec.layers,
        heads: spec.heads,
        dim_k: spec.dim_k,
        dim_v: spec.dim_v,
        end_tokens: identity.end_tokens,
        payload_bytes,
        source_bytes: geometry.source_bytes() as u64,
        namespace: identity.namespace,
        block_hash: identity.block_hash,
        parent_hash: identity.parent_hash,
    }
}
