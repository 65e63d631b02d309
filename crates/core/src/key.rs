//! Owns the key of a record, and the scope of a flush.

use crate::header::{HASH_BYTES, Hash, Header, PACKED_KEY_BYTES};
use crate::tenant::salt_of;

/// Namespace, block hash, group and shard, none of them truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
