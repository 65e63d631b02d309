//! Owns the list of codecs: the id of each in a record, and the length of its payload.

use crate::header::{CLASS_KV, Header};

/// bf16, as in the record header.
const DTYPE_BF16: u8 = 1;

/// Length of an INT8 scale, a bf16 number.
pub const SCALE_BYTES: usize = 2;

/// Tokens of a block that share one mean of K in `Int8MeanHad`.
pub const MEAN_TOKENS: usize = 16;

/// The codecs this version reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The block's elements, unchanged.
    Raw,
    /// The block's bf16 elements, with exponents of three bits where possible.
    Lossless,
    /// A code of eight bits per element and a scale per head vector.
    Int8,
    /// Like `Int8`, after a Hadamard transform, of K less its mean; the first token of a sequence is exact.
    Int8MeanHad,
}

/// A codec, with the fact about a block on which its payload depends beside the block's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    codec: Codec,
    is_first: bool,
}

impl From<Codec> for Form {
    /// The form of a block within a sequence.
    fn from(codec: Codec) -> Self {
        codec.form(false)
    }
}

/// The properties of a block's shape that determine the length of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// As in the record header.
    pub dtype: u8,
    /// Length of the decoded block.
    pub source_bytes: u64,
    /// Heads in all layers: layers * heads; 0 in an opaque block.
    pub heads: u64,
    /// K, or K and V; 0 in an opaque block.
    pub parts: u64,
    /// Tokens.
    pub tokens: u64,
    /// Elements of a K head vector.
    pub dim_k: u64,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Lossless, Self::Int8, Self::Int8MeanHad];

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
            Self::Int8MeanHad => 4,
        }
    }

    /// The form of a block; `is_first`: its sequence begins with it.
    #[must_use]
    pub fn form(self, is_first: bool) -> Form {
        Form { codec: self, is_first: is_first && self == Self::Int8MeanHad }
    }

    /// Whether its records may be in a namespace of this fidelity. Exact codecs may be in any, because raw replaces a lossy
    /// codec where that has no codes, or where a fast link makes errors not worth it.
    #[must_use]
    pub fn fits_fidelity(self, fidelity: u8) -> bool {
        match self {
            Self::Raw | Self::Lossless => true,
            Self::Int8 | Self::Int8MeanHad => fidelity == self.id(),
        }
    }

    /// Whether the payload's length depends on the block's contents, too.
    #[must_use]
    pub fn is_variable(self) -> bool {
        self == Self::Lossless
    }
}

impl Form {
    /// The codec.
    #[must_use]
    pub fn codec(self) -> Codec {
        self.codec
    }

    /// Whether the block's first token is kept exact.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.is_first
    }

    /// Length of the payload, the longest where lengths vary; `None` where the codec does not take such a block.
    #[must_use]
    pub fn payload_bytes(self, block: &Block) -> Option<u64> {
        let vectors = block.heads.checked_mul(block.parts)?.checked_mul(block.tokens)?;
        let is_vectors = block.record_class == CLASS_KV && vectors > 0;
        match self.codec {
            Codec::Raw => Some(block.source_bytes),
            // A payload that saves nothing is stored as raw.
            Codec::Lossless if is_vectors && block.dtype == DTYPE_BF16 => {
                block.source_bytes.checked_sub(1).filter(|bytes| *bytes > 0)
            }
            Codec::Int8 | Codec::Int8MeanHad if is_vectors => {
                let codes = block.source_bytes / Header::element_bytes(block.dtype)?;
                let bytes = vectors.checked_mul(SCALE_BYTES as u64)?.checked_add(codes)?;
                if self.codec == Codec::Int8 {
                    return Some(bytes);
                }
                let mean = block.dim_k.checked_add(SCALE_BYTES as u64)?;
                let means = block.tokens.div_ceil(MEAN_TOKENS as u64);
                let exact = if self.is_first { block.source_bytes / block.tokens } else { 0 };
                let means = block.heads.checked_mul(means)?.checked_mul(mean)?;
                // Blocks of few tokens and elements would become longer.
                let bytes = bytes.checked_add(means)?.checked_add(exact)?;
                Some(bytes).filter(|bytes| *bytes < block.source_bytes)
            }
            Codec::Lossless | Codec::Int8 | Codec::Int8MeanHad => None,
        }
    }

    /// The form whose payloads of such a block have this length, in a namespace of this fidelity. A codec of fixed length
    /// goes first, because one of variable length never makes a payload of that length there.
    #[must_use]
    pub fn of_length(block: &Block, fidelity: u8, bytes: u64) -> Option<Self> {
        let all = Codec::ALL.into_iter().map(Self::from).chain([Codec::Int8MeanHad.form(true)]);
        let fits =
            |form: &Self| form.codec.fits_fidelity(fidelity) && form.has_payload_of(block, bytes);
        let (variable, fixed): (Vec<_>, Vec<_>) =
            all.filter(fits).partition(|form| form.codec.is_variable());
        fixed.into_iter().chain(variable).next()
    }

    /// Whether a payload of this block can have this length.
    #[must_use]
    pub fn has_payload_of(self, block: &Block, bytes: u64) -> bool {
        self.payload_bytes(block).is_some_and(|longest| {
            bytes == longest || (self.codec.is_variable() && (1..longest).contains(&bytes))
        })
    }
}
