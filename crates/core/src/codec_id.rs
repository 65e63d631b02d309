//! Owns which codecs there are: the id of each as it stands in a record, and how long its payload is.

use crate::header::{CLASS_KV, Header};

/// bf16, as in the record header.
const DTYPE_BF16: u8 = 1;

/// Length of an INT8 scale, a bf16 number.
pub const SCALE_BYTES: usize = 2;

/// The codecs this version reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The block's elements as they are.
    Raw,
    /// The block's bf16 elements, their exponents in three bits where they can be.
    Lossless,
    /// A code of eight bits for each element, a scale for each head vector.
    Int8,
    /// The same after a Hadamard transform of K.
    Int8Had,
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
    pub const ALL: [Self; 4] = [Self::Raw, Self::Lossless, Self::Int8, Self::Int8Had];

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
            Self::Lossless => 1,
            Self::Int8 => 2,
            Self::Int8Had => 3,
        }
    }

    /// Whether its records may stand in a namespace of this fidelity: only exact ones in an exact one. Exact ones
    /// stand in any: raw ones are what a lossy codec has no codes for, and on a fast link none is worth an error.
    #[must_use]
    pub fn fits_fidelity(self, fidelity: u8) -> bool {
        match self {
            Self::Raw | Self::Lossless => true,
            Self::Int8 | Self::Int8Had => fidelity == self.id(),
        }
    }

    /// Whether the length of a payload depends on what the block holds, too.
    #[must_use]
    pub fn is_variable(self) -> bool {
        self == Self::Lossless
    }

    /// Length of the payload, of the longest one where they differ; `None` where the codec does not take such a block.
    #[must_use]
    pub fn payload_bytes(self, block: &Block) -> Option<u64> {
        let is_vectors = block.record_class == CLASS_KV && block.vectors > 0;
        match self {
            Self::Raw => Some(block.source_bytes),
            // One that saves nothing is a raw one.
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

    /// Which codec makes payloads of this length of such a block in a namespace of this fidelity. Where two could, the one
    /// whose payloads have one length: the other makes none of it there.
    #[must_use]
    pub fn of_length(block: &Block, fidelity: u8, bytes: u64) -> Option<Self> {
        let fits =
            |codec: &Self| codec.fits_fidelity(fidelity) && codec.has_payload_of(block, bytes);
        let (variable, fixed): (Vec<_>, Vec<_>) =
            Self::ALL.into_iter().filter(fits).partition(|codec| codec.is_variable());
        fixed.into_iter().chain(variable).next()
    }

    /// Whether a payload of this block can be so long.
    #[must_use]
    pub fn has_payload_of(self, block: &Block, bytes: u64) -> bool {
        self.payload_bytes(block).is_some_and(|longest| {
            bytes == longest || (self.is_variable() && (1..longest).contains(&bytes))
        })
    }
}
