//! Owns the list of codecs: the id of each in a record, and the length of its payload.

use crate::header::{CLASS_KV, Header};

/// bf16, as in the record header.
const DTYPE_BF16: u8 = 1;

/// Length of an INT8 scale, a bf16 number.
pub const SCALE_BYTES: usize = 2;

/// The codecs this version reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The block's elements, unchanged.
    Raw,
    /// The block's bf16 elements, with exponents of three bits where possible.
    Lossless,
    /// A code of eight bits per element and a scale per head vector.
    Int8,
    /// Like `Int8`, after a Hadamard transform of K.
    Int8Had,
}

/// The properties of a block that determine the length of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// As in the record header.
    pub dtype: u8,
    /// Length of the decoded block.
    pub source_bytes: u64,
    /// Head vectors: layers * parts * heads * tokens; 0 in an opaque block.
    pub vectors: u64,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Lossless, Self::Int8, Self::Int8Had];

    /// The codec with an id, if this version knows it.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// The codec's id in a record.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lossless => 1,
            Self::Int8 => 2,
            Self::Int8Had => 3,
        }
    }

    /// Whether its records may be in a namespace of this fidelity. Exact codecs may be in any, because raw replaces a lossy
    /// codec where that has no codes, or where a fast link makes errors not worth it.
    #[must_use]
    pub fn fits_fidelity(self, fidelity: u8) -> bool {
        match self {
            Self::Raw | Self::Lossless => true,
            Self::Int8 | Self::Int8Had => fidelity == self.id(),
        }
    }

    /// Whether the payload's length depends on the block's contents, too.
    #[must_use]
    pub fn is_variable(self) -> bool {
        self == Self::Lossless
    }

    /// Length of the payload, the longest where lengths vary; `None` where the codec does not take such a block.
    #[must_use]
    pub fn payload_bytes(self, block: &Block) -> Option<u64> {
        let is_vectors = block.record_class == CLASS_KV && block.vectors > 0;
        match self {
            Self::Raw => Some(block.source_bytes),
            // A payload that saves nothing is stored as raw.
            Self::Lossless if is_vectors && block.dtype == DTYPE_BF16 => {
                block.source_bytes.checked_sub(1).filter(|bytes| *bytes > 0)
            }
            Self::Int8 | Self::Int8Had if is_vectors => {
                let codes = block.source_bytes / Header::element_bytes(block.dtype)?;
                block.vectors.checked_mul(SCALE_BYTES as u64)?.checked_add(codes)
            }
            Self::Lossless | Self::Int8 | Self::Int8Had => None,
        }
    }

    /// The codec whose payloads of such a block have this length, in a namespace of this fidelity. A codec of fixed length
    /// goes first, because one of variable length never makes a payload of that length there.
    #[must_use]
    pub fn of_length(block: &Block, fidelity: u8, bytes: u64) -> Option<Self> {
        let fits =
            |codec: &Self| codec.fits_fidelity(fidelity) && codec.has_payload_of(block, bytes);
        let (variable, fixed): (Vec<_>, Vec<_>) =
            Self::ALL.into_iter().filter(fits).partition(|codec| codec.is_variable());
        fixed.into_iter().chain(variable).next()
    }

    /// Whether a payload of this block can have this length.
    #[must_use]
    pub fn has_payload_of(self, block: &Block, bytes: u64) -> bool {
        self.payload_bytes(block).is_some_and(|longest| {
            bytes == longest || (self.is_variable() && (1..longest).contains(&bytes))
        })
    }
}
