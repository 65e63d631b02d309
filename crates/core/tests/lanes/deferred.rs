//! Owns the proof that a record may be made by the lane that sends it: the same bytes, and nothing where it cannot be made any more.

use std::thread;
use std::time::Duration;

use tierkv_core::codec::Codec;
use tierkv_core::error::Code;
use tierkv_core::lane::client::{Content, Outcome};
use tierkv_core::lane::frame::{Frame, Kind};

use super::sealed::{keys, sealing};
use super::stand::{
    ACCEPTED, Engine, INCOMPLETE, Lanes, NAMESPACE, Shape, Vault, bytes_of, key, outgoing, until,
};
use super::wires::vault_by_hand;

/// A bf16 infinity in every element.
const INFINITE: [u8; 2] = [0x80, 0x7F];

#[test]
fn what_a_lane_makes_is_what_was_made_before() {
    for (shape, codec) in [
        (Shape::Opaque, Codec::Raw),
        (Shape::Opaque, Codec::Int8),
        (Shape::Strided, Codec::Int8),
        (Shape::Large, Codec::Int8),
        (Shape::Large, Codec::Int8MeanHad),
    ] {
        for engine in [Engine::new(shape, 10), sealing(shape, 10, &keys("a"))] {
            let (vault, clear) = (Vault::open(), Engine::new(shape, 2));
            let lanes = Lanes::open(&vault, 4);
            let numbers = [1, 2, 3, 4];
            let (deferred, leases): (Vec<_>, Vec<_>) =
                numbers.iter().map(|number| engine.defer(*number, codec)).unzip();
            let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
            let wire: usize =
                numbers.map(|n| bytes_of(&engine.record(n, codec)).len()).iter().sum();
            assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 4], wire as u64, None));
            until(|| engine.outbox.live() == (0, 0));
            for lease in leases {
                engine.arena.slots().release(lease).unwrap();
            }
            let (targets, leases) = engine.targets(&numbers, codec);
            let request = lanes.client.fetch(targets).unwrap();
            assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 4], wire as u64, None));
            for (number, lease) in numbers.iter().zip(leases) {
                let slot = engine.arena.peek(lease.slot).unwrap();
                assert!(slot == clear.page(&clear.record(*number, codec), codec), "{shape:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_made_ends_as_incomplete_and_the_rest_is_stored() {
    let (vault, engine) = (Vault::open(), Engine::new(Shape::Strided, 10));
    let lanes = Lanes::open(&vault, 2);
    let (good, _) = engine.defer(1, Codec::Int8);
    let (released, lease) = engine.defer(2, Codec::Int8);
    engine.arena.slots().release(lease).unwrap();
    let (infinite, lease) = engine.defer(3, Codec::Int8);
    let page = INFINITE.repeat(engine.geometry.page_bytes() / 2);
    engine.arena.poke(lease.slot, &page).unwrap();
    let (last, _) = engine.defer(4, Codec::Int8);
    let statuses = lanes.store(vec![released.clone(), good, infinite.clone(), last]);
    assert_eq!(statuses, [INCOMPLETE, ACCEPTED, INCOMPLETE, ACCEPTED]);
    // The vault keeps no room for what does not come, and the session goes on.
    assert_eq!(vault.store.stats().reserved_bytes, 0);
    assert_eq!(lanes.store(vec![released.clone(), infinite.clone()]), [INCOMPLETE; 2], "and alone");
    assert_eq!((vault.store.stats().reserved_bytes, vault.count("refused_incomplete")), (0, 4));
    let request = lanes.client.look_up(&NAMESPACE, &(1..=4).map(key).collect::<Vec<_>>()).unwrap();
    assert_eq!(lanes.outcome(request), Outcome::Found(vec![0b1001]));
    assert_eq!(engine.outbox.live(), (0, 0));

    // Whoever sends it otherwise gets it raw, and hears why he does not get the other.
    let Content::Deferred(infinite) = infinite.content else { panic!("a deferred record") };
    let record = infinite.make().unwrap();
    assert_ne!(record.len(), infinite.length());
    assert_eq!(lanes.store(vec![outgoing(3, record.to_vec())]), [ACCEPTED]);
    let Content::Deferred(released) = released.content else { panic!("a deferred record") };
    assert_eq!(released.make().unwrap_err().code, Code::BadArgument);
}

#[test]
fn nothing_is_made_before_the_vault_wants_it_nor_after_it_was_given_up() {
    let engine = Engine::new(Shape::Strided, 10);
    let (lanes, mut wires) = vault_by_hand(1);
    let (deferred, leases): (Vec<_>, Vec<_>) =
        (1..=3).map(|number| engine.defer(number, Codec::Raw)).unzip();
    let bytes = bytes_of(&deferred[1]).len();
    let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
    let (offer, _) = wires[0].next().unwrap();
    assert_eq!((offer.kind, offer.request), (Kind::Offer, request));
    assert_eq!(engine.outbox.live(), (0, 0));
    // Only the second is wanted.
    wires[0].send(Frame::new(Kind::Wanted, request), &[2, 0, 2]);
    let (chunk, body) = wires[0].next().unwrap();
    assert_eq!((chunk.kind, chunk.item, body.len()), (Kind::Chunk, 1, bytes));
    lanes.client.cancel(request);
    assert!(matches!(lanes.outcome(request), Outcome::Failed(..)));
    assert_eq!(wires[0].next().unwrap().0.kind, Kind::Cancel);
    until(|| engine.outbox.live() == (0, 0));
    let mut slots = engine.arena.slots();
    assert!(leases.into_iter().all(|lease| slots.release(lease).unwrap()));
}

#[test]
fn a_store_that_was_given_up_stops_in_the_middle_of_a_record() {
    let engine = Engine::new(Shape::Opaque, 24);
    let (lanes, mut wires) = vault_by_hand(1);
    let deferred: Vec<_> = (1..=20).map(|number| engine.defer(number, Codec::Raw).0).collect();
    let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
    wires[0].next().unwrap();
    wires[0].send(Frame::new(Kind::Wanted, request), &[0; 20]);
    // The lane is stuck in what nobody takes.
    let mut sent = 0;
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = lanes.client.progress(request).unwrap();
        if now > 0 && now == sent {
            break;
        }
        sent = now;
    }
    lanes.client.cancel(request);
    assert!(matches!(lanes.outcome(request), Outcome::Failed(..)));
    let mut whole = 0;
    loop {
        let (frame, _) = wires[0].next().unwrap();
        match frame.kind {
            Kind::Chunk => {
                whole += u64::from(frame.offset + u64::from(frame.bytes) == frame.record_bytes);
            }
            Kind::Cancel => break,
            kind => panic!("{kind:?}"),
        }
    }
    assert!(whole < 20);
    let asked = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    let behind = wires[0].next().unwrap().0;
    assert_eq!((behind.kind, behind.request), (Kind::Lookup, asked), "no chunk behind its cancel");
}

/// Whenever a store is given up, and whatever comes into its slots then: what the vault has of it is what it was.
#[test]
fn a_slot_that_is_filled_anew_after_a_store_was_given_up_spoils_nothing() {
    // Two lanes may still read a slot each while others are leased.
    let (vault, engine) = (Vault::open(), Engine::new(Shape::Large, 12));
    let (lanes, mut given_up, mut stored) = (Lanes::open(&vault, 4), 0, 0);
    for round in 0..24_u8 {
        let numbers: Vec<u8> = (0..4).map(|at| 1 + round * 4 + at).collect();
        let (deferred, leases): (Vec<_>, Vec<_>) =
            numbers.iter().map(|number| engine.defer(*number, Codec::Int8)).unzip();
        let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
        thread::sleep(Duration::from_micros(u64::from(round) * 400));
        lanes.client.cancel(request);
        let outcome = lanes.outcome(request);
        given_up += u32::from(matches!(outcome, Outcome::Failed(..)));
        for lease in leases {
            engine.arena.slots().release(lease).unwrap();
        }
        // As an engine would: the same slots, at once, other blocks.
        let others: Vec<_> = (200..204).map(|number| engine.defer(number, Codec::Int8).1).collect();
        let request =
            lanes.client.look_up(&NAMESPACE, &numbers.iter().map(|n| key(*n)).collect::<Vec<_>>());
        assert!(matches!(lanes.outcome(request.unwrap()), Outcome::Found(_)));
        let (targets, slots) = engine.targets(&numbers, Codec::Int8);
        let request = lanes.client.fetch(targets).unwrap();
        let Outcome::Done(statuses, _, None) = lanes.outcome(request) else { panic!("done") };
        for ((number, lease), status) in numbers.iter().zip(slots).zip(statuses) {
            if status == ACCEPTED {
                stored += 1;
                let slot = engine.arena.peek(lease.slot).unwrap();
                let clear = Engine::new(Shape::Large, 2);
                assert!(slot == clear.page(&clear.record(*number, Codec::Int8), Codec::Int8));
            }
            engine.arena.slots().release(lease).unwrap();
        }
        for lease in others {
            engine.arena.slots().release(lease).unwrap();
        }
    }
    assert!(given_up > 0 && stored > 0, "{given_up} given up, {stored} stored");
}
