//! Owns the way in: pieces of a record arrive, are checked whole, and become a page in a slot.

mod landing;
mod piece;

use std::sync::{Arc, OnceLock};

pub use landing::Landing;
pub use piece::Piece;

use crate::arena::{Arena, SlotAccess};
use crate::codec::Codec;
use crate::codec::int8::BadScale;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::limits::{INBOX_BYTES_MAX, POOL_IDLE_BYTES_MAX};
use crate::outbox::check_fits;
use crate::pool::{Pool, PooledBuffer};
use crate::record::{self, HASH_BYTES, HEADER_BYTES, Hash, Header, PACKED_KEY_BYTES, Progress};
use crate::seal::{RecordKeys, SEALED_EXTRA_BYTES};
use crate::slots::Lease;

/// What the receiver asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The fidelity of the namespace.
    pub fidelity: u8,
    /// The namespace.
    pub namespace: Hash,
    /// Block hash, group, shard, as on the wire.
    pub packed_key: [u8; PACKED_KEY_BYTES],
}

/// Takes records in, within a limit on the memory of those that are not whole yet.
#[derive(Debug)]
pub struct Inbox {
    pool: Arc<Pool>,
    keys: OnceLock<Arc<RecordKeys>>,
}

impl Default for Inbox {
    fn default() -> Self {
        let pool = Pool::new("inbox", INBOX_BYTES_MAX, POOL_IDLE_BYTES_MAX);
        Self { pool, keys: OnceLock::new() }
    }
}

impl Inbox {
    /// From now on only sealed records are taken in; false where that is so already, with other keys.
    pub fn open_with(&self, keys: &Arc<RecordKeys>) -> bool {
        Arc::ptr_eq(self.keys.get_or_init(|| Arc::clone(keys)), keys)
    }

    /// Whether it does.
    #[must_use]
    pub fn opens_records(&self) -> bool {
        self.keys.get().is_some()
    }

    /// Bytes by which a record on its way is longer than the one in it.
    fn extra_bytes(&self) -> usize {
        self.keys.get().map_or(0, |_| SEALED_EXTRA_BYTES)
    }

    /// (records, bytes) in the middle of arriving.
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        self.pool.live()
    }

    /// Opens the way for one record of `record_bytes` into a leased slot.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a stale lease or a slot that is smaller than the page, `BAD_RECORD` for a
    /// length no record of this geometry has, `NO_MEMORY` at the limit.
    pub fn open(
        &self,
        arena: &Arc<Arena>,
        lease: Lease,
        geometry: &Arc<Geometry>,
        wanted: Wanted,
        record_bytes: u64,
    ) -> Result<Arrival> {
        let most = geometry.record_bytes_max() + self.extra_bytes();
        let record_bytes = usize::try_from(record_bytes)
            .ok()
            .filter(|bytes| (HEADER_BYTES..=most).contains(bytes))
            .ok_or_else(|| {
                Error::bad_record(format!(
                    "a record of {record_bytes} bytes: this geometry has {HEADER_BYTES} to {most}"
                ))
            })?;
        let slot = arena.access(lease)?;
        check_fits(geometry, slot.bytes())?;
        Ok(Arrival {
            slot,
            geometry: Arc::clone(geometry),
            wanted,
            progress: Progress::new(record_bytes),
            record: self.pool.take(record_bytes)?,
            keys: self.keys.get().cloned(),
        })
    }
}

/// One record in the middle of arriving. Its slot is not leased again before it is dropped.
#[derive(Debug)]
pub struct Arrival {
    slot: SlotAccess,
    geometry: Arc<Geometry>,
    wanted: Wanted,
    progress: Progress,
    record: PooledBuffer,
    keys: Option<Arc<RecordKeys>>,
}

impl Arrival {
    /// Takes the next piece; true when the record is complete.
    ///
    /// # Errors
    /// `BAD_RECORD` for gaps, duplicates and overruns.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        let start = self.progress.filled();
        self.progress.accept(offset, data)?;
        self.record[start..start + data.len()].copy_from_slice(data);
        Ok(self.progress.is_complete())
    }

    /// Checks everything, then decodes payload to page in one pass.
    ///
    /// # Errors
    /// `BAD_RECORD` with the reason; the slot is untouched then, unless the payload itself, whose
    /// checksum holds, is not one of its codec: what the slot holds is then of no use. `RECORD_UNOPENED` where it is not sealed
    /// as it should be.
    ///
    /// # Panics
    /// Never: a parsed header names a known codec.
    pub fn finish(mut self) -> Result<Header> {
        if !self.progress.is_complete() {
            return Err(Error::bad_record(format!(
                "{} of {} bytes arrived",
                self.progress.filled(),
                self.record.len()
            )));
        }
        let bytes = self.record.len() as u64;
        let mut header = record::check(&self.record, bytes, self.progress.checksum())?;
        let (outer, rest) = self.record.split_at_mut(HEADER_BYTES);
        let mut place = 0..rest.len();
        if let Some(keys) = &self.keys {
            (header, place) = keys.open(outer, rest)?;
        }
        check_identity(&self.wanted, &self.geometry, &header)?;
        let codec = Codec::from_id(header.codec).expect("a checked header has a known codec");
        // SAFETY: the slot holds the page (checked at opening) while `self.slot` lives; the record is our own memory.
        let decoded = unsafe { codec.decode(&self.geometry, &rest[place], self.slot.as_ptr()) };
        decoded.map_err(bad_scale)?;
        Ok(header)
    }
}

fn bad_scale(_: BadScale) -> Error {
    Error::bad_record("a scale is neither zero nor a positive normal number")
}

/// Whether a sound record is the one that was asked for, and of the engine's geometry.
fn check_identity(wanted: &Wanted, geometry: &Geometry, header: &Header) -> Result<()> {
    let (hash, place) = wanted.packed_key.split_at(HASH_BYTES);
    let place: [u8; 4] = place.try_into().expect("a packed key ends with four bytes");
    let [group_low, group_high, shard_low, shard_high] = place;
    let found = [
        ("namespace", header.namespace == wanted.namespace),
        ("block hash", header.block_hash == *hash),
        ("group", header.group == u16::from_le_bytes([group_low, group_high])),
        ("shard", header.shard == u16::from_le_bytes([shard_low, shard_high])),
        ("fidelity", header.fidelity == wanted.fidelity),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field));
    if let Some(field) = found {
        return Err(Error::bad_record(format!("its {field} is not the one asked for")));
    }
    match geometry.mismatch(header) {
        Some(field) => Err(Error::bad_record(format!("its {field} is not the engine's"))),
        None => Ok(()),
    }
}
