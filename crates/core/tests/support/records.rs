//! Owns sound records by number, for the tests and benches of the store.

use std::sync::Arc;

use tierkv_core::crc32c;
use tierkv_core::record::{CLASS_KV, HEADER_BYTES, Header, LAYOUT_OPAQUE};
use tierkv_core::store::{ItemStatus, Offer, RecordKey, Store};

/// The key of record `number`.
pub fn key(number: u64) -> RecordKey {
    let mut block_hash = [2; 32];
    block_hash[..8].copy_from_slice(&number.to_le_bytes());
    RecordKey { namespace: [1; 32], block_hash, group: 3, shard: 0 }
}

/// The header of a sound record of `key` with `payload_bytes` bytes of payload.
pub fn header(key: &RecordKey, payload_bytes: usize) -> Header {
    Header {
        codec: 0,
        record_class: CLASS_KV,
        fidelity: 0,
        layout: LAYOUT_OPAQUE,
        group: key.group,
        shard: key.shard,
        shard_count: 1,
        dtype: 0,
        parts: 0,
        tokens: 16,
        layers: 1,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        end_tokens: 16,
        payload_bytes: payload_bytes as u64,
        source_bytes: payload_bytes as u64,
        namespace: key.namespace,
        block_hash: key.block_hash,
        parent_hash: [0; 32],
    }
}

/// A sound record of `key`, `record_bytes` long.
pub fn record(key: &RecordKey, record_bytes: usize) -> Vec<u8> {
    let mut record = vec![0; record_bytes];
    write_record(key, &mut record);
    record
}

/// Makes all of `record` a sound record of `key`.
pub fn write_record(key: &RecordKey, record: &mut [u8]) {
    let (head, payload) = record.split_at_mut(HEADER_BYTES);
    payload.fill(key.block_hash[0]);
    head.copy_from_slice(&header(key, payload.len()).encode(crc32c::checksum(payload)));
}

/// Offers, writes and commits a record.
pub fn put(store: &Arc<Store>, key: RecordKey, record: &[u8]) -> ItemStatus {
    match store.reserve(key, record.len() as u64) {
        Offer::Refused(status) => status,
        Offer::Wanted(mut reservation) => {
            assert!(reservation.write(0, record).expect("it fits"), "one piece is all");
            reservation.commit()
        }
    }
}
