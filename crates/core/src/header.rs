//! Owns the layout of the record header, version 1: its fields, its constants and its bytes (docs/protocol.md, section 1).

use crate::crc32c;

/// First bytes of every record.
pub const MAGIC: [u8; 4] = *b"TKVR";
/// Version of the header described here.
pub const VERSION: u16 = 1;
/// Length of the header.
pub const HEADER_BYTES: usize = 192;
/// Length of a namespace, a block hash and a parent hash.
pub const HASH_BYTES: usize = 32;
/// Length of a packed key: block hash, group, shard.
pub const PACKED_KEY_BYTES: usize = HASH_BYTES + 4;

/// Attention KV.
pub const CLASS_KV: u8 = 1;
/// Recurrent state.
pub const CLASS_SSM: u8 = 2;
/// Canonical attention layout.
pub const LAYOUT_CANONICAL: u8 = 0;
/// The page in the engine's own layout.
pub const LAYOUT_OPAQUE: u8 = 1;

pub(crate) const RESERVED: std::ops::Range<usize> = 160..184;
pub(crate) const PAYLOAD_CHECKSUM_AT: usize = 184;
pub(crate) const HEADER_CHECKSUM_AT: usize = 188;

/// A namespace, a block hash or a parent hash: 32 bytes, never truncated.
pub type Hash = [u8; HASH_BYTES];

/// Whether the block whose parent has this hash begins its sequence.
#[must_use]
pub fn is_first(parent_hash: &Hash) -> bool {
    *parent_hash == [0; HASH_BYTES]
}

/// The fields of a header, in the order of its bytes, without the checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Codec id.
    pub codec: u8,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// 0 exact, otherwise the id of the namespace's lossy codec.
    pub fidelity: u8,
    /// 0 canonical, 1 opaque.
    pub layout: u8,
    /// KV-cache group.
    pub group: u16,
    /// Shard, 0-based.
    pub shard: u16,
    /// Shards of the block.
    pub shard_count: u16,
    /// 0 opaque bytes, 1 bf16, 2 fp16, 3 float32.
    pub dtype: u8,
    /// Canonical: 1 (latent) or 2 (K and V); opaque: 0.
    pub parts: u8,
    /// Tokens in the block.
    pub tokens: u32,
    /// Layers in the block.
    pub layers: u32,
    /// KV heads of this shard.
    pub heads: u32,
    /// Elements of a K head vector.
    pub dim_k: u32,
    /// Elements of a V head vector.
    pub dim_v: u32,
    /// Prompt tokens up to and with this block.
    pub end_tokens: u64,
    /// Length of the payload.
    pub payload_bytes: u64,
    /// Length of the decoded block.
    pub source_bytes: u64,
    /// Digest of everything that makes bytes comparable.
    pub namespace: Hash,
    /// Hash of this block.
    pub block_hash: Hash,
    /// Hash of the block before.
    pub parent_hash: Hash,
}

impl Header {
    /// Returns the header's 192 bytes with both checksums.
    #[must_use]
    pub fn encode(&self, payload_checksum: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&192_u16.to_le_bytes());
        bytes[8] = self.codec;
        bytes[9] = self.record_class;
        bytes[10] = self.fidelity;
        bytes[11] = self.layout;
        bytes[12..14].copy_from_slice(&self.group.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.shard.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.shard_count.to_le_bytes());
        bytes[18] = self.dtype;
        bytes[19] = self.parts;
        bytes[20..24].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.layers.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.heads.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.dim_k.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.dim_v.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.end_tokens.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.source_bytes.to_le_bytes());
        bytes[64..96].copy_from_slice(&self.namespace);
        bytes[96..128].copy_from_slice(&self.block_hash);
        bytes[128..160].copy_from_slice(&self.parent_hash);
        bytes[PAYLOAD_CHECKSUM_AT..HEADER_CHECKSUM_AT]
            .copy_from_slice(&payload_checksum.to_le_bytes());
        let checksum = crc32c::checksum(&bytes[..HEADER_CHECKSUM_AT]);
        bytes[HEADER_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Whether the block begins its sequence: no block is before it.
    #[must_use]
    pub fn is_first(&self) -> bool {
        is_first(&self.parent_hash)
    }

    /// Bytes of one element of a source dtype: 1 for opaque bytes, `None` for an unknown dtype.
    #[must_use]
    pub fn element_bytes(dtype: u8) -> Option<u64> {
        match dtype {
            0 => Some(1),
            1 | 2 => Some(2),
            3 => Some(4),
            _ => None,
        }
    }

    /// Bytes of a canonical block with these counts; `None` on overflow of 64 bits.
    #[must_use]
    pub fn canonical_bytes(&self) -> Option<u64> {
        u64::from(self.layers)
            .checked_mul(u64::from(self.heads))?
            .checked_mul(u64::from(self.tokens))?
            .checked_mul(u64::from(self.dim_k) + u64::from(self.dim_v))?
            .checked_mul(Self::element_bytes(self.dtype)?)
    }
}
