//! Owns the key of a record, and the scope of a flush.

use std::hash;

use crate::error::{Error, Result};
use crate::header::{HASH_BYTES, Hash, Header, PACKED_KEY_BYTES};
use crate::tenant::salt_of;

/// Namespace, block hash, group and shard, none of them truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// Digest of everything that makes bytes comparable.
    pub namespace: Hash,
    /// Hash of the block.
    pub block_hash: Hash,
    /// KV-cache group.
    pub group: u16,
    /// Shard of the block.
    pub shard: u16,
}

/// Prefix of the namespaces of measuring commands; those of engines are digests.
pub const MEASURING_NAMESPACE: &[u8] = b"tierkv measuring";

impl RecordKey {
    /// Returns the key packed on the wire as block hash, group, shard.
    ///
    /// # Panics
    /// Never: the lengths are fixed.
    #[must_use]
    pub fn from_packed(namespace: Hash, packed: &[u8; PACKED_KEY_BYTES]) -> Self {
        let (block_hash, place) = packed.split_first_chunk::<HASH_BYTES>().expect("36 bytes");
        Self {
            namespace,
            block_hash: *block_hash,
            group: u16::from_le_bytes([place[0], place[1]]),
            shard: u16::from_le_bytes([place[2], place[3]]),
        }
    }

    /// Whether `header` names this key.
    #[must_use]
    pub fn is_of(&self, header: &Header) -> bool {
        self.namespace == header.namespace
            && self.block_hash == header.block_hash
            && self.group == header.group
            && self.shard == header.shard
    }
}

/// In one piece, because a look-up hashes thousands of keys, and each piece costs as much as eight bytes more.
impl hash::Hash for RecordKey {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        const GROUP: usize = 2 * HASH_BYTES;
        let mut bytes = [0; GROUP + 4];
        bytes[..HASH_BYTES].copy_from_slice(&self.namespace);
        bytes[HASH_BYTES..GROUP].copy_from_slice(&self.block_hash);
        bytes[GROUP..GROUP + 2].copy_from_slice(&self.group.to_le_bytes());
        bytes[GROUP + 2..].copy_from_slice(&self.shard.to_le_bytes());
        state.write(&bytes);
    }
}

/// Packs the keys of all shards of the blocks at `indexes` (`None`: of all blocks), from block hashes of 32 bytes each.
///
/// # Errors
/// `BAD_ARGUMENT` for a partial hash, or an index behind the last hash.
pub fn pack_all(
    hashes: &[u8],
    indexes: Option<&[u32]>,
    group: u16,
    shards: u16,
) -> Result<Vec<u8>> {
    let (hashes, rest) = hashes.as_chunks::<HASH_BYTES>();
    if !rest.is_empty() {
        let text = format!("hashes end with {} bytes: a multiple of {HASH_BYTES}", rest.len());
        return Err(Error::bad_argument(text));
    }
    let count = indexes.map_or(hashes.len(), <[u32]>::len);
    let mut packed = Vec::with_capacity(count * usize::from(shards) * PACKED_KEY_BYTES);
    let mut pack = |hash: &Hash| {
        for shard in 0..shards {
            packed.extend_from_slice(hash);
            packed.extend_from_slice(&group.to_le_bytes());
            packed.extend_from_slice(&shard.to_le_bytes());
        }
    };
    match indexes {
        None => hashes.iter().for_each(pack),
        Some(indexes) => {
            for index in indexes {
                let hash = hashes.get(*index as usize).ok_or_else(|| {
                    let text = format!("index {index}: there are {} hashes", hashes.len());
                    Error::bad_argument(text)
                })?;
                pack(hash);
            }
        }
    }
    Ok(packed)
}

/// Scope of a flush; `None` stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Scope {
    /// The namespace.
    pub namespace: Option<Hash>,
    /// The class: 1 kv, 2 ssm.
    pub record_class: Option<u8>,
    /// Salt of a tenant, in every account: see [`salt_of`]. An operator knows the salt, not the machines that stored under it.
    pub salt: Option<u32>,
}

impl Scope {
    /// Whether a record of a tenant is in the scope.
    #[must_use]
    pub fn takes(&self, namespace: &Hash, record_class: u8, tenant: u64) -> bool {
        self.namespace.is_none_or(|named| named == *namespace)
            && self.record_class.is_none_or(|class| class == record_class)
            && self.salt.is_none_or(|salt| salt == salt_of(tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_packed_by_block_then_shard() {
        let hashes: Vec<u8> = (0..3_u8).flat_map(|block| [block; HASH_BYTES]).collect();
        let keys_of = |blocks: &[u8]| {
            let mut keys = Vec::new();
            for block in blocks {
                for shard in 0..2_u16 {
                    keys.extend([*block; HASH_BYTES]);
                    keys.extend([7_u16.to_le_bytes(), shard.to_le_bytes()].concat());
                }
            }
            keys
        };
        assert_eq!(pack_all(&hashes, None, 7, 2).unwrap(), keys_of(&[0, 1, 2]));
        assert_eq!(pack_all(&hashes, Some(&[2, 0]), 7, 2).unwrap(), keys_of(&[2, 0]));
        assert_eq!(pack_all(&[], None, 7, 2).unwrap(), Vec::<u8>::new());
        assert!(pack_all(&hashes[1..], None, 7, 2).is_err());
        assert!(pack_all(&hashes, Some(&[3]), 7, 2).is_err());
    }

    #[test]
    fn packing_and_reading_are_inverse() {
        let hash = [9; HASH_BYTES];
        let packed = pack_all(&hash, None, 513, 3).unwrap();
        let namespace = [1; HASH_BYTES];
        let (keys, _) = packed.as_chunks::<PACKED_KEY_BYTES>();
        for (shard, key) in (0..3).zip(keys) {
            let wanted = RecordKey { namespace, block_hash: hash, group: 513, shard };
            assert_eq!(RecordKey::from_packed(namespace, key), wanted);
        }
    }
}
