//! Owns the validity of a record: the checks of its header, the refusals and the checksum rules (docs/protocol.md, section 1).

mod progress;
mod refusal;

pub use progress::Progress;
pub use refusal::Refusal;

use crate::codec_id::{Block, Codec};
use crate::crc32c;
pub use crate::header::{
    CLASS_KV, CLASS_SSM, HASH_BYTES, HEADER_BYTES, Hash, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE,
    MAGIC, PACKED_KEY_BYTES, VERSION,
};
use crate::header::{HEADER_CHECKSUM_AT, PAYLOAD_CHECKSUM_AT, RESERVED};

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

/// A header with a valid checksum, and the checksum its payload must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The fields.
    pub header: Header,
    /// CRC32C that the payload must have.
    pub payload_checksum: u32,
}

/// Parses and checks the header at the start of `bytes`.
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

fn has_possible_geometry(header: &Header, codec: Codec) -> bool {
    let counted = header.shard < header.shard_count && header.tokens >= 1 && header.layers >= 1;
    let shaped = match (header.layout, header.parts) {
        (LAYOUT_CANONICAL, 1) => header.dim_k >= 1 && header.dim_v == 0,
        (LAYOUT_CANONICAL, 2) => header.dim_k >= 1 && header.dim_v >= 1,
        (LAYOUT_OPAQUE, 0) => header.heads == 0 && header.dim_k == 0 && header.dim_v == 0,
        _ => false,
    };
    let sized = if header.layout == LAYOUT_CANONICAL {
        let canonical_bytes = header.canonical_bytes();
        header.dtype != 0 && header.heads >= 1 && canonical_bytes == Some(header.source_bytes)
    } else {
        header.source_bytes >= 1 && header.source_bytes.is_multiple_of(u64::from(header.layers))
    };
    let form = codec.form(header.is_first());
    let has_length = form.has_payload_of(&block_of(header), header.payload_bytes);
    counted && shaped && sized && has_length
}

fn block_of(header: &Header) -> Block {
    Block {
        record_class: header.record_class,
        dtype: header.dtype,
        source_bytes: header.source_bytes,
        heads: u64::from(header.layers) * u64::from(header.heads),
        parts: u64::from(header.parts),
        tokens: u64::from(header.tokens),
        dim_k: u64::from(header.dim_k),
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
    if has_possible_geometry(header, codec) { Ok(()) } else { Err(Refusal::Geometry) }
}

/// Checks a record of `record_bytes` bytes whose payload has CRC32C `checksum`.
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
