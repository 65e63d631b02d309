//! Owns the proof that sealed records travel: a vault keeps what it cannot read, and only who has the key gets pages of it.

use std::sync::Arc;

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outcome;
use tierkv_core::record;
use tierkv_core::seal::RecordKeys;

use super::stand::{ACCEPTED, BAD, Engine, Lanes, MISSING, Shape, Vault, bytes_of, outgoing};
use super::wires::vault_by_hand;

pub fn keys(digit: &str) -> Arc<RecordKeys> {
    Arc::new(RecordKeys::parse(digit.repeat(64).as_bytes()).unwrap())
}

pub fn sealing(shape: Shape, slots: u32, keys: &Arc<RecordKeys>) -> Engine {
    let engine = Engine::new(shape, slots);
    assert!(engine.outbox.seal_with(keys) && engine.inbox.open_with(keys));
    engine
}

#[test]
fn sealed_pages_of_every_shape_and_codec_come_back() {
    let keys = keys("a");
    for (shape, codec) in [
        (Shape::Opaque, Codec::Raw),
        (Shape::Strided, Codec::Raw),
        (Shape::Strided, Codec::Int8),
        (Shape::Large, Codec::Int8),
    ] {
        let (vault, clear) = (Vault::open(), Engine::new(shape, 4));
        let (engine, lanes) = (sealing(shape, 10, &keys), Lanes::open(&vault, 2));
        let records: Vec<_> = (1..=3).map(|number| engine.record(number, codec)).collect();
        assert_eq!(lanes.store(records.clone()), [ACCEPTED; 3]);
        assert!(records.iter().all(|record| record::verify(&bytes_of(record)).is_ok()));
        let (targets, leases) = engine.targets(&[1, 2, 3], codec);
        let request = lanes.client.fetch(targets).unwrap();
        let wire: usize = records.iter().map(|record| bytes_of(record).len()).sum();
        assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 3], wire as u64, None));
        for (number, lease) in (1..=3).zip(leases) {
            let slot = engine.arena.peek(lease.slot).unwrap();
            assert!(slot == clear.page(&clear.record(number, codec), codec), "{shape:?} {codec:?}");
            let in_pieces = engine.page(&records[usize::from(number) - 1], codec);
            assert!(slot == in_pieces, "{shape:?} {codec:?}: as gRPC brings it");
        }
        assert_eq!((engine.inbox.live(), keys.unopened()), ((0, 0), 0));
    }
}

#[test]
fn parts_of_a_sealed_record_may_come_in_any_order_over_any_lane() {
    let keys = keys("a");
    let engine = sealing(Shape::Strided, 8, &keys);
    let (lanes, mut wires) = vault_by_hand(2);
    let record = bytes_of(&engine.record(1, Codec::Int8));
    let (targets, leases) = engine.targets(&[1], Codec::Int8);
    let request = lanes.client.fetch(targets).unwrap();
    let half = record.len() / 2 + 7;
    wires[1].chunk(request, 0, half, &record, record.len() - half);
    wires[0].chunk(request, 0, 100, &record, half - 100);
    wires[1].chunk(request, 0, 0, &record, 100);
    let outcome = Outcome::Done(vec![ACCEPTED], record.len() as u64, None);
    assert_eq!(lanes.outcome(request), outcome);
    let page = engine.page(&outgoing(1, record), Codec::Int8);
    assert!(engine.arena.peek(leases[0].slot).unwrap() == page);
}

#[test]
fn another_key_is_a_miss_and_no_page_is_written() {
    let (ours, theirs) = (keys("a"), keys("b"));
    let vault = Vault::open();
    let (engine, other) = (sealing(Shape::Strided, 8, &ours), sealing(Shape::Strided, 8, &theirs));
    let lanes = Lanes::open(&vault, 2);
    let record = engine.record(1, Codec::Int8);
    lanes.store(vec![record.clone()]);
    let (targets, leases) = other.targets(&[1], Codec::Int8);
    let request = lanes.client.fetch(targets).unwrap();
    let Outcome::Done(statuses, _, None) = lanes.outcome(request) else { panic!("done") };
    assert_eq!((statuses, theirs.unopened()), (vec![MISSING], 1));
    let untouched = vec![0xEE; other.geometry.slot_bytes()];
    assert!(other.arena.peek(leases[0].slot).unwrap() == untouched);
    assert_eq!(other.inbox.live(), (0, 0));
}

#[test]
fn a_clear_record_is_none_for_who_seals_and_a_sealed_one_none_for_who_does_not() {
    let keys = keys("a");
    let vault = Vault::open();
    let (clear, sealed) = (Engine::new(Shape::Strided, 8), sealing(Shape::Strided, 8, &keys));
    let lanes = Lanes::open(&vault, 2);
    lanes.store(vec![clear.record(1, Codec::Int8), sealed.record(2, Codec::Int8)]);
    for (engine, number) in [(&sealed, 1), (&clear, 2)] {
        let (targets, leases) = engine.targets(&[number], Codec::Int8);
        let request = lanes.client.fetch(targets).unwrap();
        let Outcome::Done(statuses, _, _) = lanes.outcome(request) else { panic!("done") };
        // By its length it may be a lossless one; then opening it, or its header, tells.
        assert!(matches!(statuses[..], [MISSING | BAD]), "{statuses:?}");
        let untouched = vec![0xEE; engine.geometry.slot_bytes()];
        assert!(engine.arena.peek(leases[0].slot).unwrap() == untouched);
    }
}
