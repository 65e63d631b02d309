//! Owns the proof that no bytes bring the reader down, and that what it takes is exactly what was written.

use proptest::prelude::*;
use tierkv_core::crc32c;
use tierkv_core::record::{self, HEADER_BYTES, Header, Parsed, Refusal};

/// Numbers near the edges, where arithmetic goes wrong.
fn edgy() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..5_u64,
        1 => any::<u64>(),
        1 => (0..64_u32, 0..3_u64).prop_map(|(bit, off)| (1_u64 << bit).wrapping_add(off).wrapping_sub(1)),
    ]
}

#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
fn header() -> impl Strategy<Value = Header> {
    (prop::array::uniform17(edgy()), any::<[u8; 32]>(), any::<bool>()).prop_map(
        |(numbers, hash, consistent)| {
            let [codec, class, fidelity, layout, group, shard, count, dtype, parts, ..] = numbers;
            let [.., tokens, layers, heads, dim_k, dim_v, end, payload, source] = numbers;
            let mut header = Header {
                codec: [0, 2, 1][(codec % 3) as usize],
                record_class: class as u8 % 4,
                fidelity: fidelity as u8,
                layout: layout as u8 % 3,
                group: group as u16,
                shard: shard as u16,
                shard_count: (count as u16).max(1),
                dtype: dtype as u8 % 5,
                parts: parts as u8 % 4,
                tokens: tokens as u32,
                layers: layers as u32,
                heads: heads as u32,
                dim_k: dim_k as u32,
                dim_v: dim_v as u32,
                end_tokens: end,
                payload_bytes: payload,
                source_bytes: source,
                namespace: hash,
                block_hash: hash,
                parent_hash: hash,
            };
            if consistent {
                header.source_bytes = header.canonical_bytes().unwrap_or(source);
                header.payload_bytes = header.source_bytes;
                if header.codec == 2 {
                    header.fidelity = 2;
                    let vectors =
                        [layers, heads, tokens, parts % 4].into_iter().fold(1, u64::saturating_mul);
                    let elements =
                        header.source_bytes / Header::element_bytes(header.dtype).unwrap_or(1);
                    header.payload_bytes = vectors.saturating_mul(2).saturating_add(elements);
                }
            }
            header
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_header_is_taken_as_written_or_refused(header in header(), checksum in any::<u32>()) {
        match record::parse(&header.encode(checksum)) {
            Ok(parsed) => prop_assert_eq!(parsed, Parsed { header, payload_checksum: checksum }),
            Err(refusal) => prop_assert!(matches!(
                refusal,
                Refusal::Codec | Refusal::Class | Refusal::Layout | Refusal::Dtype | Refusal::Fidelity | Refusal::Geometry
            )),
        }
    }

    #[test]
    fn any_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..400), sign in any::<bool>()) {
        if sign && bytes.len() >= HEADER_BYTES {
            bytes[..8].copy_from_slice(b"TKVR\x01\0\xc0\0");
            let checksum = crc32c::checksum(&bytes[..188]);
            bytes[188..192].copy_from_slice(&checksum.to_le_bytes());
        }
        prop_assert!(record::verify(&bytes).is_err());
    }
}
