//! Owns the places of fetched records, and the way of one record there: verified and decoded while it arrives.

use std::sync::Arc;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::inbox::{Reassembly, Wanted};
use tierkv_core::lane::client::{Kept, Target, Targets};
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::LANE_STEP_BYTES;
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use crate::store::{Call, PackedKey};

/// Where records go.
pub enum Goal {
    /// Slots of an arena, decoded.
    Slots(Targets),
    /// Memory, as records.
    Memory(Kept),
}

/// The bytes of a store's answer.
pub trait Source {
    /// Receives at least one byte.
    ///
    /// # Errors
    /// `LANE_FAILED` and `CANCELLED`; the source is then unusable.
    fn read(&mut self, buffer: &mut [u8], call: &Call) -> Result<usize>;
}

impl Goal {
    /// Namespace of all records.
    #[must_use]
    pub fn namespace(&self) -> &Hash {
        match self {
            Self::Slots(targets) => &targets.namespace,
            Self::Memory(kept) => &kept.namespace,
        }
    }

    /// Keys of the records, in the order needed.
    #[must_use]
    pub fn keys(&self) -> Vec<PackedKey> {
        match self {
            Self::Slots(targets) => targets.items.iter().map(|item| item.packed_key).collect(),
            Self::Memory(kept) => kept.keys.clone(),
        }
    }

    fn begin(&self, index: usize, bytes: u64) -> Result<Reassembly> {
        match self {
            Self::Slots(Targets { namespace, fidelity, arena, inbox, items, .. }) => {
                let Target { packed_key, lease, geometry } = &items[index];
                let wanted =
                    Wanted { fidelity: *fidelity, namespace: *namespace, packed_key: *packed_key };
                inbox.begin(arena, *lease, geometry, wanted, bytes)
            }
            // The caller that decodes the record checks its fidelity.
            Self::Memory(Kept { namespace, keys, inbox, .. }) => {
                let wanted = Wanted { fidelity: 0, namespace: *namespace, packed_key: keys[index] };
                inbox.keep(wanted, bytes)
            }
        }
    }

    /// Receives record `index`, which has `bytes` bytes and all of which are read, also those of a record that is of no use.
    ///
    /// # Errors
    /// Errors of the source.
    pub fn receive(
        &self,
        index: usize,
        bytes: u64,
        source: &mut dyn Source,
        call: &Call,
    ) -> Result<ItemStatus> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let begun = self.begin(index, bytes).map(Arc::new);
        let begun = begun.and_then(|reassembly| Ok((reassembly.chunk(0, length)?, reassembly)));
        let (mut chunk, reassembly) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                skip(length, source, call)?;
                return Ok(status_of(&error, call));
            }
        };
        while chunk.rest() > 0 {
            let count = source.read(chunk.spare(LANE_STEP_BYTES), call)?;
            chunk.advance(count);
            call.moved(count as u64);
        }
        // A caller that gave up does not wait for the record; the slot stays its own until here.
        call.tick()?;
        if let Err(error) = chunk.finish() {
            return Ok(status_of(&error, call));
        }
        if let (Self::Memory(kept), Some(record)) = (self, reassembly.whole()) {
            (kept.keep)(index, record);
        }
        Ok(ItemStatus::Accepted)
    }
}

/// Reads and drops `bytes` bytes.
///
/// # Errors
/// Errors of the source.
pub fn skip(bytes: usize, source: &mut dyn Source, call: &Call) -> Result<()> {
    let mut scratch = vec![0; bytes.min(LANE_STEP_BYTES)];
    let mut rest = bytes;
    while rest > 0 {
        let step = rest.min(scratch.len());
        rest -= source.read(&mut scratch[..step], call)?;
    }
    Ok(())
}

/// Status of a record that cannot be used.
fn status_of(error: &Error, call: &Call) -> ItemStatus {
    match error.code {
        Code::BadRecord => {
            call.refused(&error.text);
            ItemStatus::BadRecord
        }
        Code::NoMemory => ItemStatus::OverBudget,
        // The record is of no use to us, but may be sound.
        Code::RecordUnopened => ItemStatus::Missing,
        // The lease ended meanwhile, so that the record is no longer wanted.
        _ => ItemStatus::Incomplete,
    }
}
