//! Owns the receiving side: chunks of a record arrive, are checked as a whole, and become a page in a slot.

mod chunk;
mod reassembly;

use std::sync::{Arc, OnceLock};

pub use chunk::Chunk;
pub use reassembly::Reassembly;

use crate::codec::BadPayload;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::limits::{INBOX_BYTES_MAX, POOL_IDLE_BYTES_MAX};
use crate::pool::Pool;
use crate::record::{HASH_BYTES, Hash, Header, PACKED_KEY_BYTES};
use crate::seal::{RecordKeys, SEALED_EXTRA_BYTES};

/// Identity of the record that the receiver requested.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The fidelity of the namespace.
    pub fidelity: u8,
    /// The namespace.
    pub namespace: Hash,
    /// Block hash, group, shard, as on the wire.
    pub packed_key: [u8; PACKED_KEY_BYTES],
}

/// Receives records; limits the memory of incomplete ones.
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
    /// From now on accepts only records sealed with `keys`; false if other keys are set already.
    pub fn open_with(&self, keys: &Arc<RecordKeys>) -> bool {
        Arc::ptr_eq(self.keys.get_or_init(|| Arc::clone(keys)), keys)
    }

    /// Whether only sealed records are accepted.
    #[must_use]
    pub fn opens_records(&self) -> bool {
        self.keys.get().is_some()
    }

    /// Bytes that a sealed record has more than the record inside it; 0 without keys.
    fn extra_bytes(&self) -> usize {
        self.keys.get().map_or(0, |_| SEALED_EXTRA_BYTES)
    }

    /// (records, bytes) that are still arriving.
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        self.pool.live()
    }
}

pub(crate) fn refused(why: BadPayload) -> Error {
    Error::bad_record(why.to_string())
}

/// Checks that a sound record has the requested key.
fn check_key(wanted: &Wanted, header: &Header) -> Result<()> {
    let (hash, place) = wanted.packed_key.split_at(HASH_BYTES);
    let place: [u8; 4] = place.try_into().expect("a packed key ends with four bytes");
    let [group_low, group_high, shard_low, shard_high] = place;
    let found = [
        ("namespace", header.namespace == wanted.namespace),
        ("block hash", header.block_hash == *hash),
        ("group", header.group == u16::from_le_bytes([group_low, group_high])),
        ("shard", header.shard == u16::from_le_bytes([shard_low, shard_high])),
    ]
    .into_iter()
    .find_map(|(field, same)| (!same).then_some(field));
    match found {
        Some(field) => Err(Error::bad_record(format!("its {field} is not the one asked for"))),
        None => Ok(()),
    }
}

/// Checks the key, the fidelity, and that the record has the engine's geometry.
pub(crate) fn check_identity(wanted: &Wanted, geometry: &Geometry, header: &Header) -> Result<()> {
    check_key(wanted, header)?;
    if header.fidelity != wanted.fidelity {
        return Err(Error::bad_record("its fidelity is not the one asked for"));
    }
    match geometry.mismatch(header) {
        Some(field) => Err(Error::bad_record(format!("its {field} is not the engine's"))),
        None => Ok(()),
    }
}
