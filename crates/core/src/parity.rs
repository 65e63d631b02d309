//! Owns parity records: the records of a stripe combined by XOR, and how a member is rebuilt from the others.
//!
//! The byte layout is in docs/protocol.md, section 1.2.

use std::sync::Arc;

use crc_fast::CrcAlgorithm;

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::header::{CLASS_KV, HASH_BYTES, HEADER_BYTES, Hash, Header, LAYOUT_OPAQUE};
use crate::limits::PARITY_WIDTH_MAX;
use crate::pool::{Pool, PooledBuffer};
use crate::{crc32c, record};

/// Bit in the group of a key that marks a parity record; groups of engines are far below.
pub const PARITY_GROUP: u16 = 0x8000;

const MAGIC: [u8; 4] = *b"TKVP";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 8;
const MEMBER_BYTES: usize = HASH_BYTES + 16;

/// Fields of a parity record that do not follow from its members.
#[derive(Debug, Clone)]
pub struct Place {
    /// Fidelity of the members.
    pub fidelity: u8,
    /// Group of the members.
    pub group: u16,
    /// Shard of the members.
    pub shard: u16,
    /// Shard count of the members.
    pub shard_count: u16,
    /// Tokens of one member's block.
    pub tokens: u32,
    /// Prompt tokens up to and with the last member.
    pub end_tokens: u64,
    /// Digest of everything that makes bytes comparable.
    pub namespace: Hash,
    /// Hash of the last member.
    pub block_hash: Hash,
    /// Hash of the first block of the stripe.
    pub anchor: Hash,
}

/// A member as stored. Its checksum is a second one, kept apart, because the record's own checksum also holds for a XOR of sound records.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    hash: Hash,
    bytes: u64,
    checksum: u64,
}

impl Member {
    fn of(record: &[u8]) -> Result<Self> {
        let hash = record::parse(record)?.header.block_hash;
        Ok(Self { hash, bytes: record.len() as u64, checksum: checksum(record) })
    }
}

fn checksum(record: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, record)
}

/// Records of a stripe that are being combined as they are sent.
#[derive(Debug)]
pub struct Stripe {
    pool: Arc<Pool>,
    members: Vec<Option<Member>>,
    /// XOR of the members so far; as long as the longest.
    sum: Option<PooledBuffer>,
}

impl Stripe {
    /// Returns an empty stripe for `width` records.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for an impossible width.
    pub fn new(pool: &Arc<Pool>, width: usize) -> Result<Self> {
        if !(2..=PARITY_WIDTH_MAX).contains(&width) {
            let text = format!("a stripe of {width} records: 2 to {PARITY_WIDTH_MAX}");
            return Err(Error::bad_argument(text));
        }
        Ok(Self { pool: Arc::clone(pool), members: vec![None; width], sum: None })
    }

    /// Memory of the stripe, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sum.as_ref().map_or(0, |sum| sum.len())
    }

    /// Adds a record of any length as member number `place`.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a place that is taken or does not exist, `BAD_RECORD`, `NO_MEMORY` at the pool's limit.
    pub fn add(&mut self, place: usize, record: &[u8]) -> Result<()> {
        let member = Member::of(record)?;
        if self.members.get(place).is_none_or(Option::is_some) {
            let text = format!("place {place} of the stripe is taken, or there is none");
            return Err(Error::bad_argument(text));
        }
        if record.len() > self.bytes() {
            let mut longer = self.pool.take(record.len())?;
            longer.copy_from_slice(record);
            if let Some(sum) = self.sum.take() {
                add_to(&mut longer, &sum);
            }
            self.sum = Some(longer);
        } else if let Some(sum) = &mut self.sum {
            add_to(sum, record);
        }
        self.members[place] = Some(member);
        Ok(())
    }

    /// Returns the parity record, unsealed.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` while a member is missing.
    pub fn record(&self, place: &Place) -> Result<Vec<u8>> {
        let members: Option<Vec<&Member>> = self.members.iter().map(Option::as_ref).collect();
        let (Some(members), Some(sum)) = (members, &self.sum) else {
            return Err(Error::bad_argument("the stripe is not complete"));
        };
        let payload_bytes = HEAD_BYTES + members.len() * MEMBER_BYTES + sum.len();
        let mut payload = Vec::with_capacity(payload_bytes);
        payload.extend_from_slice(&MAGIC);
        payload.extend_from_slice(&VERSION.to_le_bytes());
        let width = u16::try_from(members.len()).unwrap_or_default();
        payload.extend_from_slice(&width.to_le_bytes());
        for Member { hash, bytes, checksum } in members {
            payload.extend_from_slice(hash);
            payload.extend_from_slice(&bytes.to_le_bytes());
            payload.extend_from_slice(&checksum.to_le_bytes());
        }
        payload.extend_from_slice(sum);
        let header = header_of(place, payload.len() as u64);
        let head = header.encode(crc32c::checksum(&payload));
        Ok([&head, payload.as_slice()].concat())
    }
}

fn header_of(place: &Place, payload_bytes: u64) -> Header {
    Header {
        codec: Codec::Raw.id(),
        record_class: CLASS_KV,
        fidelity: place.fidelity,
        layout: LAYOUT_OPAQUE,
        group: place.group | PARITY_GROUP,
        shard: place.shard,
        shard_count: place.shard_count,
        dtype: 0,
        parts: 0,
        tokens: place.tokens,
        layers: 1,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        end_tokens: place.end_tokens,
        payload_bytes,
        source_bytes: payload_bytes,
        namespace: place.namespace,
        block_hash: place.block_hash,
        parent_hash: place.anchor,
    }
}

/// XORs a record into `sum`, which is at least as long.
fn add_to(sum: &mut [u8], record: &[u8]) {
    for (to, from) in sum.iter_mut().zip(record) {
        *to ^= from;
    }
}

struct Parity<'a> {
    members: Vec<Member>,
    sum: &'a [u8],
}

fn parse(payload: &[u8]) -> Option<Parity<'_>> {
    let (head, rest) = payload.split_first_chunk::<HEAD_BYTES>()?;
    let width = usize::from(u16::from_le_bytes([head[6], head[7]]));
    let is_known = head[..4] == MAGIC && head[4..6] == VERSION.to_le_bytes();
    if !is_known || !(2..=PARITY_WIDTH_MAX).contains(&width) {
        return None;
    }
    let (members, sum) = rest.split_at_checked(width * MEMBER_BYTES)?;
    let (members, _) = members.as_chunks::<MEMBER_BYTES>();
    let member = |bytes: &[u8; MEMBER_BYTES]| {
        let number = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        Some(Member {
            hash: *bytes.first_chunk()?,
            bytes: number(HASH_BYTES)?,
            checksum: number(HASH_BYTES + 8)?,
        })
    };
    let members: Option<Vec<Member>> = members.iter().map(member).collect();
    members.map(|members| Parity { members, sum })
}

/// Rebuilds the member with the hash `wanted` from the payload of the parity record and all other members. The result is
/// exactly the stored record, or an error.
///
/// # Errors
/// `BAD_RECORD` where the parity record does not name it, or `others` are not its other members; `NO_MEMORY`.
pub fn rebuild(
    pool: &Arc<Pool>,
    payload: &[u8],
    others: &[&[u8]],
    wanted: &Hash,
) -> Result<PooledBuffer> {
    let bad = |what: &str| Error::bad_record(format!("a parity record: {what}"));
    let Parity { members, sum } = parse(payload).ok_or_else(|| bad("it is none"))?;
    let found = members.iter().find(|member| member.hash == *wanted);
    let member = found.ok_or_else(|| bad("the block is none of its members"))?;
    let bytes = usize::try_from(member.bytes).unwrap_or(usize::MAX);
    if bytes > sum.len() || bytes <= HEADER_BYTES || others.len() + 1 != members.len() {
        return Err(bad("its lengths contradict each other"));
    }
    if others.iter().any(|other| other.len() > sum.len()) {
        return Err(bad("another member is longer than all were"));
    }
    let mut whole = pool.take(sum.len())?;
    whole.copy_from_slice(sum);
    for other in others {
        add_to(&mut whole, other);
    }
    let is_clear = whole[bytes..].iter().all(|byte| *byte == 0);
    whole.shorten(bytes);
    if !is_clear || checksum(&whole) != member.checksum {
        return Err(bad("the other members are not those that it was made of"));
    }
    Ok(whole)
}
