//! Owns the proof that any member of a stripe comes back byte for byte from the others, whatever their lengths, and that nothing else ever does.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use proptest::prelude::*;
use tierkv_core::crc32c;
use tierkv_core::header::{CLASS_KV, HEADER_BYTES, Hash, Header, LAYOUT_OPAQUE};
use tierkv_core::limits::PARITY_WIDTH_MAX;
use tierkv_core::parity::{PARITY_GROUP, Place, Stripe, rebuild};
use tierkv_core::pool::Pool;
use tierkv_core::record;
use tierkv_core::store::position;

const GROUP: u16 = 3;
const TOKENS: u32 = 16;
const LAST: u64 = 31;

fn hash(of: u8) -> Hash {
    [of; 32]
}

fn record_of(block: u8, payload: &[u8]) -> Vec<u8> {
    let bytes = payload.len() as u64;
    let header = Header {
        codec: 0,
        record_class: CLASS_KV,
        fidelity: 0,
        layout: LAYOUT_OPAQUE,
        group: GROUP,
        shard: 0,
        shard_count: 1,
        dtype: 0,
        parts: 0,
        tokens: TOKENS,
        layers: 1,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        end_tokens: 16,
        payload_bytes: bytes,
        source_bytes: bytes,
        namespace: hash(200),
        block_hash: hash(block),
        parent_hash: hash(block.wrapping_sub(1)),
    };
    [&header.encode(crc32c::checksum(payload)), payload].concat()
}

fn pool() -> Arc<Pool> {
    Pool::new("parity", 1 << 24, 1 << 20)
}

fn place() -> Place {
    Place {
        fidelity: 0,
        group: GROUP,
        shard: 0,
        shard_count: 1,
        tokens: TOKENS,
        end_tokens: (LAST + 1) * u64::from(TOKENS),
        namespace: hash(200),
        block_hash: hash(99),
        anchor: hash(98),
    }
}

/// The parity record of them, taken in from the last to the first.
fn parity_of(records: &[Vec<u8>]) -> Vec<u8> {
    let mut stripe = Stripe::new(&pool(), records.len()).unwrap();
    for (at, record) in records.iter().enumerate().rev() {
        assert!(stripe.record(&place()).is_err(), "not complete");
        stripe.add(at, record).unwrap();
        assert!(stripe.add(at, record).is_err(), "a place is taken once");
    }
    stripe.record(&place()).unwrap()
}

fn without(records: &[Vec<u8>], at: usize) -> Vec<&[u8]> {
    let others = records.iter().enumerate().filter(|(other, _)| *other != at);
    others.map(|(_, record)| record.as_slice()).collect()
}

fn members() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let payload = prop::collection::vec(any::<u8>(), 1..300);
    prop::collection::vec(payload, 2..=PARITY_WIDTH_MAX).prop_map(|payloads| {
        let block =
            |(at, payload): (usize, &Vec<u8>)| record_of(u8::try_from(at).unwrap(), payload);
        payloads.iter().enumerate().map(block).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn each_member_comes_back_from_the_others(records in members()) {
        let parity = parity_of(&records);
        let header = record::verify(&parity).unwrap();
        prop_assert_eq!(header.group, GROUP | PARITY_GROUP);
        // How its place is found again when it moves.
        prop_assert_eq!(position(&header), (u32::try_from(LAST).unwrap(), hash(98)));
        for (at, record) in records.iter().enumerate() {
            let wanted = hash(u8::try_from(at).unwrap());
            let mut others = without(&records, at);
            others.reverse();
            let whole = rebuild(&pool(), &parity[HEADER_BYTES..], &others, &wanted).unwrap();
            prop_assert_eq!(&whole[..], &record[..]);
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_gives_no_record_or_the_same_one(
        records in members(), part in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0..8_u8,
    ) {
        let parity = parity_of(&records);
        let mut parts = vec![parity[HEADER_BYTES..].to_vec()];
        parts.extend(records[1..].iter().cloned());
        let flipped = part.get(&parts).len();
        let (part, at) = (part.index(parts.len()), at.index(flipped));
        parts[part][at] ^= 1 << bit;
        let others: Vec<&[u8]> = parts[1..].iter().map(Vec::as_slice).collect();
        // What it says of other members is not needed.
        if let Ok(whole) = rebuild(&pool(), &parts[0], &others, &hash(0)) {
            prop_assert_eq!(&whole[..], &records[0][..]);
            prop_assert_eq!(part, 0);
        }
    }
}

#[test]
fn a_sibling_that_was_stored_anew_with_other_bytes_gives_no_record() {
    let [one, two, again] =
        [(0, 7_u8), (1, 90), (1, 33)].map(|(block, fill)| record_of(block, &[fill; 500]));
    let parity = parity_of(&[one.clone(), two.clone()]);
    let sum: Vec<u8> =
        one.iter().zip(&two).zip(&again).map(|((one, two), again)| one ^ two ^ again).collect();
    // Both checksums of what XOR gives hold, because they are linear: they alone would let wrong bytes through.
    assert!(record::verify(&sum).is_ok() && sum != one);
    let payload = &parity[HEADER_BYTES..];
    let refused = rebuild(&pool(), payload, &[again.as_slice()], &hash(0)).unwrap_err();
    assert!(refused.to_string().contains("are not those that it was made of"), "{refused}");
    assert_eq!(&rebuild(&pool(), payload, &[two.as_slice()], &hash(0)).unwrap()[..], &one[..]);
}

#[test]
fn what_is_no_parity_record_or_not_the_right_one_gives_no_record() {
    let records: Vec<Vec<u8>> = (0..3).map(|block| record_of(block, &[block; 40])).collect();
    let parity = parity_of(&records);
    let payload = &parity[HEADER_BYTES..];
    let others = without(&records, 0);
    for cut in [0, 7, 8, 60, 100, payload.len() - 1] {
        assert!(rebuild(&pool(), &payload[..cut], &others, &hash(0)).is_err(), "{cut}");
    }
    assert!(rebuild(&pool(), payload, &others[..1], &hash(0)).is_err());
    assert!(rebuild(&pool(), payload, &[others[0]; 2], &hash(0)).is_err());
    assert!(rebuild(&pool(), payload, &others, &hash(50)).is_err());
    assert!(rebuild(&Pool::new("small", 10, 0), payload, &others, &hash(0)).is_err());
    assert!(Stripe::new(&pool(), 1).is_err() && Stripe::new(&pool(), 5).is_err());
}
