//! Owns which codecs there are: the id of each as it stands in a record, and how long its payload is.

use crate::header::{CLASS_KV, Header};

/// Length of an INT8 scale, a bf16 number.
pub const SCALE_BYTES: usize = 2;

/// The codecs this version reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The block's elements as they are.
    Raw,
    /// A code of eight bits for each element, a scale for each head vector.
    Int8,
}

/// What of a block the length of its payload follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// As in the record header.
    pub dtype: u8,
    /// Length of the decoded block.
    pub source_bytes: u64,
    /// Head vectors: layers * parts * heads * tokens; 0 where it is opaque.
    pub vectors: u64,
}

impl Codec {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Raw, Self::Int8];

    /// The codec of an id as it stands in a record, if this version knows it.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// The id as it stands in a record.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Int8 => 2,
        }
    }

    /// Whether its records may stand in a namespace of this fidelity: only exact ones in an exact one.
    #[must_use]
    pub fn fits_fidelity(self, fidelity: u8) -> bool {
        match self {
            Self::Raw => true,
            Self::Int8 => fidelity == self.id(),
        }
    }

    /// Length of the payload; `None` where the codec does not take such a block.
    #[must_use]
    pub fn payload_bytes(self, block: &Block) -> Option<u64> {
        match self {
            Self::Raw => Some(block.source_bytes),
            Self::Int8 if block.record_class != CLASS_KV || block.vectors == 0 => None,
            Self::Int8 => {
                let codes = block.source_bytes / Header::element_bytes(block.dtype)?;
                block.vectors.checked_mul(SCALE_BYTES as u64)?.checked_add(codes)
            }
        }
    }
}
