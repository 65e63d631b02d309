//! Owns the proof of which lanes bring what is fetched: as many as the client has processors for, the last ones.

use tierkv_core::codec::Codec;
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::limits::LANE_CHUNK_BYTES;

use super::IS_SECURE;
use super::sealed::{keys, sealing};
use super::stand::{ACCEPTED, Engine, Lanes, NAMESPACE, Shape, Vault, bytes_of, key, until};
use super::wires::{Wire, connect, hello, vault_by_hand};

const LANES: u16 = 4;

/// Items of the chunks that come on one lane, until `bytes` have.
fn chunks(wire: &mut Wire, request: u32, bytes: usize) -> Vec<u32> {
    let (mut items, mut got) = (Vec::new(), 0);
    while got < bytes {
        let (frame, body) = wire.next().expect("a chunk");
        assert_eq!((frame.kind, frame.request), (Kind::Chunk, request));
        items.push(frame.item);
        got += body.len();
    }
    assert_eq!(got, bytes);
    items
}

#[test]
fn a_fetch_comes_over_the_last_lanes_that_it_asks_for_and_in_need_order() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Large, 10);
    let records: Vec<_> = (1..=4).map(|number| engine.record(number, Codec::Raw)).collect();
    let bytes: usize = records.iter().map(|record| bytes_of(record).len()).sum();
    assert!(bytes > 4 * LANE_CHUNK_BYTES, "each has more than one chunk");
    assert_eq!(Lanes::open(&vault, 1).store(records), [ACCEPTED; 4]);
    let token = vault.token();
    let mut wires: Vec<Wire> = (0..u32::from(LANES))
        .map(|lane| {
            let mut wire = connect(&vault);
            wire.send(hello(lane, LANES), &token);
            assert_eq!(wire.next().unwrap().0.kind, Kind::Welcome);
            wire
        })
        .collect();
    let body: Vec<u8> = NAMESPACE.into_iter().chain((1..=4).flat_map(key)).collect();
    // Again and again: whichever lane is free would take a part of it.
    for request in 1..=20 {
        wires[2].send(Frame { code: 1, ..Frame::new(Kind::Fetch, request) }, &body);
        let items = chunks(&mut wires[3], request, bytes);
        assert!(items.is_sorted(), "{items:?}");
    }
    until(|| vault.server.status().requests == 0);
}

#[test]
fn what_is_for_a_lane_that_never_came_comes_over_those_that_did() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 8);
    let records: Vec<_> = (1..=2).map(|number| engine.record(number, Codec::Raw)).collect();
    let bytes = records.iter().map(|record| bytes_of(record).len()).sum();
    assert_eq!(Lanes::open(&vault, 1).store(records), [ACCEPTED; 2]);
    let mut wire = connect(&vault);
    wire.send(hello(0, 2), &vault.token());
    assert_eq!(wire.next().unwrap().0.kind, Kind::Welcome);
    let body: Vec<u8> = NAMESPACE.into_iter().chain((1..=2).flat_map(key)).collect();
    wire.send(Frame { code: 1, ..Frame::new(Kind::Fetch, 1) }, &body);
    chunks(&mut wire, 1, bytes);
    until(|| vault.server.status().requests == 0);
}

#[test]
fn a_client_asks_for_as_many_lanes_as_both_ends_have_processors() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let both = u16::try_from((processors / 2).clamp(1, usize::from(LANES))).unwrap();
    for engine in [Engine::new(Shape::Strided, 8), sealing(Shape::Strided, 8, &keys("a"))] {
        let (lanes, mut wires) = vault_by_hand(LANES);
        let (targets, _) = engine.targets(&[1, 2], Codec::Raw);
        let request = lanes.client.fetch(targets).unwrap();
        // The lanes that carry no stores have the requests, in turns.
        let (frame, _) = wires[2 + request as usize % 2].next().unwrap();
        assert_eq!((frame.kind, frame.request), (Kind::Fetch, request));
        let is_clear = !IS_SECURE && !engine.inbox.opens_records();
        assert_eq!(frame.code, if is_clear { both } else { 0 });
    }
}
