//! Owns the record header, version 1: its bytes, its refusals and its checksum rules (docs/protocol.md, section 1).

mod progress;
mod refusal;

pub use progress::Progress;
pub use refusal::Refusal;

use crate::codec::{Block, Codec};
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

/// Attention KV, in class-checked places.
pub const CLASS_KV: u8 = 1;
/// Recurrent state.
pub const CLASS_SSM: u8 = 2;
/// Canonical attention layout.
pub const LAYOUT_CANONICAL: u8 = 0;
/// The page as the engine holds it.
pub const LAYOUT_OPAQUE: u8 = 1;

const RESERVED: std::ops::Range<usize> = 160..184;
const PAYLOAD_CHECKSUM_AT: usize = 184;
const HEADER_CHECKSUM_AT: usize = 188;

/// A namespace, a block hash or a parent hash: 32 bytes, never truncated.
pub type Hash = [u8; HASH_BYTES];

/// The fields of a header, in the order of its bytes; the checksums are not among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Codec id.
    pub codec: u8,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// 0 exact, else the id of the lossy codec whose namespace this is.
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
    /// The header's 192 bytes, both checksums included.
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

    /// Bytes of one element of the source dtype; `None` where it is unknown, 1 for opaque bytes.
    #[must_use]
    pub fn element_bytes(dtype: u8) -> Option<u64> {
        match dtype {
            0 => Some(1),
            1 | 2 => Some(2),
            3 => Some(4),
            _ => None,
        }
    }

    /// Bytes of a canonical block with these counts; `None` when no 64-bit number holds them.
    #[must_use]
    pub fn canonical_bytes(&self) -> Option<u64> {
        u64::from(self.layers)
            .checked_mul(u64::from(self.heads))?
            .checked_mul(u64::from(self.tokens))?
            .checked_mul(u64::from(self.dim_k) + u64::from(self.dim_v))?
            .checked_mul(Self::element_bytes(self.dtype)?)
    }

    fn has_possible_geometry(&self, codec: Codec) -> bool {
        let counted = self.shard < self.shard_count && self.tokens >= 1 && self.layers >= 1;
        let shaped = match (self.layout, self.parts) {
            (LAYOUT_CANONICAL, 1) => self.dim_k >= 1 && self.dim_v == 0,
            (LAYOUT_CANONICAL, 2) => self.dim_k >= 1 && self.dim_v >= 1,
            (LAYOUT_OPAQUE, 0) => self.heads == 0 && self.dim_k == 0 && self.dim_v == 0,
            _ => false,
        };
        let sized = if self.layout == LAYOUT_CANONICAL {
            self.dtype != 0 && self.heads >= 1 && self.canonical_bytes() == Some(self.source_bytes)
        } else {
            self.source_bytes >= 1 && self.source_bytes.is_multiple_of(u64::from(self.layers))
        };
        let payload_bytes = codec.payload_bytes(&self.block());
        counted && shaped && sized && payload_bytes == Some(self.payload_bytes)
    }

    fn block(&self) -> Block {
        let counts = [self.layers, u32::from(self.parts), self.heads, self.tokens];
        Block {
            record_class: self.record_class,
            dtype: self.dtype,
            source_bytes: self.source_bytes,
            // Where this saturates, the source bytes cannot follow from the counts either.
            vectors: counts.into_iter().map(u64::from).fold(1, u64::saturating_mul),
        }
    }
}

/// Little-endian fields, read one after another.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("a header holds all its fields");
        self.0 = rest;
        *field
    }
    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// A header whose own checksum holds, with the checksum its payload must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The fields.
    pub header: Header,
    /// What the payload's CRC32C must be.
    pub payload_checksum: u32,
}

/// Reads and checks the header that `bytes` starts with.
///
/// # Errors
/// The first refusal, in the order of docs/protocol.md.
pub fn parse(bytes: &[u8]) -> Result<Parsed, Refusal> {
    let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Refusal::Short)?;
    let mut fields = Fields(bytes);
    if fields.take() != MAGIC {
        return Err(Refusal::Magic);
    }
    if fields.u16() != VERSION {
        return Err(Refusal::Version);
    }
    if usize::from(fields.u16()) != HEADER_BYTES {
        return Err(Refusal::HeaderBytes);
    }
    let mut checksums = Fields(&bytes[PAYLOAD_CHECKSUM_AT..]);
    let payload_checksum = checksums.u32();
    if crc32c::checksum(&bytes[..HEADER_CHECKSUM_AT]) != checksums.u32() {
        return Err(Refusal::HeaderChecksum);
    }
    let header = read_fields(&mut fields);
    check_fields(&header)?;
    if bytes[RESERVED].iter().any(|byte| *byte != 0) {
        return Err(Refusal::Reserved);
    }
    Ok(Parsed { header, payload_checksum })
}

fn read_fields(fields: &mut Fields<'_>) -> Header {
    Header {
        codec: fields.u8(),
        record_class: fields.u8(),
        fidelity: fields.u8(),
        layout: fields.u8(),
        group: fields.u16(),
        shard: fields.u16(),
        shard_count: fields.u16(),
        dtype: fields.u8(),
        parts: fields.u8(),
        tokens: fields.u32(),
        layers: fields.u32(),
        heads: fields.u32(),
        dim_k: fields.u32(),
        dim_v: fields.u32(),
        end_tokens: fields.u64(),
        payload_bytes: fields.u64(),
        source_bytes: fields.u64(),
        namespace: fields.take(),
        block_hash: fields.take(),
        parent_hash: fields.take(),
    }
}

fn check_fields(header: &Header) -> Result<(), Refusal> {
    let codec = Codec::from_id(header.codec).ok_or(Refusal::Codec)?;
    if !matches!(header.record_class, CLASS_KV | CLASS_SSM) {
        return Err(Refusal::Class);
    }
    if !matches!(header.layout, LAYOUT_CANONICAL | LAYOUT_OPAQUE) {
        return Err(Refusal::Layout);
    }
    Header::element_bytes(header.dtype).ok_or(Refusal::Dtype)?;
    if !codec.fits_fidelity(header.fidelity) {
        return Err(Refusal::Fidelity);
    }
    if header.has_possible_geometry(codec) { Ok(()) } else { Err(Refusal::Geometry) }
}

/// Checks a record of `record_bytes` bytes whose payload's CRC32C is already known.
///
/// # Errors
/// The first refusal, in the order of docs/protocol.md.
pub fn check(header: &[u8], record_bytes: u64, checksum: u32) -> Result<Header, Refusal> {
    let parsed = parse(header)?;
    if record_bytes.checked_sub(HEADER_BYTES as u64) != Some(parsed.header.payload_bytes) {
        return Err(Refusal::Length);
    }
    if parsed.payload_checksum != checksum {
        return Err(Refusal::PayloadChecksum);
    }
    Ok(parsed.header)
}

/// Checks a whole record.
///
/// # Errors
/// The first refusal, in the order of docs/protocol.md.
pub fn verify(bytes: &[u8]) -> Result<Header, Refusal> {
    let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
    check(bytes, bytes.len() as u64, crc32c::checksum(payload))
}
