//! Owns the proof that records travel: stored and fetched over lanes, every byte where it belongs.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outcome;
use tierkv_core::lane::frame::{FRAME_BYTES, Frame, Kind};
use tierkv_core::limits::{LANE_CHUNK_BYTES, LANE_PROBE_CHUNKS_MAX};

use super::IS_SECURE;
use super::stand::{
    ACCEPTED, BAD, Engine, Lanes, MISSING, NAMESPACE, PRESENT, Shape, Vault, bytes_of, key,
    new_store, outgoing, until,
};
use super::wires::hello;

fn travels(vault: &Vault, lanes: u16, shape: Shape, codec: Codec) {
    let engine = Engine::new(shape, 10);
    let lanes = Lanes::open(vault, lanes);
    let records: Vec<_> = (1..=4).map(|number| engine.record(number, codec)).collect();
    assert_eq!(lanes.store(records.clone()), [ACCEPTED; 4]);
    assert_eq!(lanes.store(records.clone()), [PRESENT; 4], "put-if-absent");

    let (targets, leases) = engine.targets(&[1, 2, 3, 4], codec);
    let request = lanes.client.fetch(targets).unwrap();
    let wire: usize = records.iter().map(|record| bytes_of(record).len()).sum();
    assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 4], wire as u64, None));
    for (record, lease) in records.iter().zip(leases) {
        let slot = engine.arena.peek(lease.slot).unwrap();
        assert!(slot == engine.page(record, codec), "{shape:?} {codec:?}");
    }
    assert_eq!(engine.inbox.live(), (0, 0));
}

#[test]
fn pages_of_every_shape_and_codec_come_back() {
    for (shape, codec) in [
        (Shape::Opaque, Codec::Raw),
        (Shape::Strided, Codec::Raw),
        (Shape::Strided, Codec::Int8),
        (Shape::Strided, Codec::Int8MeanHad),
        (Shape::Large, Codec::Raw),
        (Shape::Large, Codec::Int8),
        (Shape::Large, Codec::Int8MeanHad),
    ] {
        for lanes in [1, 2, 5] {
            travels(&Vault::open(), lanes, shape, codec);
        }
    }
}

#[test]
fn a_unix_socket_carries_lanes_too() {
    let dir = std::env::temp_dir().join(format!("tierkv-lanes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let address = format!("unix:{}", dir.join("vault.sock").display());
    travels(&Vault::at(&address, new_store(), |_| {}), 2, Shape::Strided, Codec::Int8);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_lane_sends_until_its_client_has_read_what_it_took() {
    // A client by hand speaks in clear; and a Unix socket holds far less than the records, whatever the system's limits.
    if IS_SECURE {
        return;
    }
    let dir = std::env::temp_dir().join(format!("tierkv-sending-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("vault.sock");
    let vault = Vault::at(&format!("unix:{}", path.display()), new_store(), |_| {});
    let engine = Engine::new(Shape::Strided, 8);
    let numbers = [1, 2, 3, 4, 5];
    let records = numbers.map(|number| engine.record(number, Codec::Raw));
    let bytes: usize = records.iter().map(|record| bytes_of(record).len()).sum();
    assert!(bytes < LANE_CHUNK_BYTES / 2, "a lane takes all at once");
    let lanes = Lanes::open(&vault, 1);
    lanes.store(records.to_vec());
    drop(lanes);
    until(|| vault.server.status().lanes == 0);
    let mut socket = UnixStream::connect(&path).unwrap();
    let mut send = |frame: Frame, body: &[u8]| {
        socket.write_all(&[&frame.of(body).encode(), body].concat()).unwrap();
    };
    send(hello(0, 1), &vault.token());
    let keys: Vec<u8> = numbers.iter().flat_map(|number| key(*number)).collect();
    send(Frame::new(Kind::Fetch, 1), &[&NAMESPACE[..], &keys].concat());
    until(|| vault.count("fetched_bytes") == bytes as u64 && vault.server.status().requests == 0);
    assert_eq!(vault.server.status().sending, 1, "nobody has read it");
    let mut all = vec![0; FRAME_BYTES + numbers.len() * FRAME_BYTES + bytes];
    socket.read_exact(&mut all).unwrap();
    until(|| vault.server.status().sending == 0);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_look_up_says_what_is_there() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 4);
    let lanes = Lanes::open(&vault, 2);
    lanes.store(vec![engine.record(1, Codec::Raw), engine.record(3, Codec::Raw)]);
    let keys: Vec<_> = (0..12).map(key).collect();
    let request = lanes.client.look_up(&NAMESPACE, &keys).unwrap();
    assert_eq!(lanes.outcome(request), Outcome::Found(vec![0b1010, 0]));
    assert_eq!((vault.count("lookup_keys"), vault.count("lookup_hits")), (12, 2));
    let request = lanes.client.look_up_in(&NAMESPACE, &keys, false, None).unwrap();
    assert_eq!(lanes.outcome(request), Outcome::Found(vec![0b1010, 0]));
    let counted = ["lookups", "lookup_keys", "lookup_hits"].map(|name| vault.count(name));
    assert_eq!(counted, [1, 12, 2], "what no request asks is left out");
}

#[test]
fn what_is_missing_is_said_and_the_rest_comes() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 8);
    let lanes = Lanes::open(&vault, 2);
    let records = [1, 3].map(|number| engine.record(number, Codec::Raw));
    lanes.store(records.to_vec());
    let (targets, leases) = engine.targets(&[1, 2, 3], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED, MISSING, ACCEPTED]);
    let slot = engine.arena.peek(leases[2].slot).unwrap();
    assert!(slot == engine.page(&records[1], Codec::Raw));
    assert_eq!(vault.count("fetch_missing"), 1);
}

#[test]
fn a_record_that_does_not_verify_is_refused_where_it_arrives() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 8);
    let lanes = Lanes::open(&vault, 2);
    let good = engine.record(1, Codec::Int8);
    let mut bytes = bytes_of(&good);
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(
        lanes.store(vec![outgoing(1, bytes), engine.record(2, Codec::Int8)]),
        [BAD, ACCEPTED]
    );
    assert_eq!(lanes.store(vec![good]), [ACCEPTED], "it is not held against the key");

    // One that goes bad in the vault, one of another fidelity, and a slot that nobody leases any more.
    let at = tierkv_core::store::RecordKey::from_packed(NAMESPACE, &key(1));
    assert!(vault.store.corrupt(&at, 5000));
    let (targets, _) = engine.targets(&[1, 2], Codec::Int8);
    let request = lanes.client.fetch(targets).unwrap();
    let Outcome::Done(statuses, _, Some(reason)) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [BAD, ACCEPTED]);
    assert!(reason.contains("payload checksum"), "{reason}");

    let (targets, _) = engine.targets(&[2], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    let Outcome::Done(statuses, _, Some(reason)) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [BAD]);
    assert!(reason.contains("fidelity"), "{reason}");
    assert_eq!(engine.inbox.live(), (0, 0));
}

#[test]
fn many_requests_share_the_lanes() {
    let vault = Vault::open();
    let engine = Arc::new(Engine::new(Shape::Strided, 64));
    let lanes = Lanes::open(&vault, 2);
    let records: Vec<_> = (1..=20).map(|number| engine.record(number, Codec::Raw)).collect();
    let mut open: Vec<u32> = Vec::new();
    for record in &records {
        open.push(lanes.client.store(&NAMESPACE, vec![record.clone()]).unwrap());
    }
    for _ in 0..open.len() {
        let (request, outcome) = lanes.next();
        open.retain(|other| *other != request);
        assert!(matches!(outcome, Outcome::Done(statuses, ..) if statuses == [ACCEPTED]));
    }
    let mut fetches: Vec<_> = (1..=20)
        .map(|number| {
            let (targets, leases) = engine.targets(&[number], Codec::Raw);
            (lanes.client.fetch(targets).unwrap(), number, leases[0])
        })
        .collect();
    while !fetches.is_empty() {
        let (request, outcome) = lanes.next();
        assert!(matches!(outcome, Outcome::Done(statuses, ..) if statuses == [ACCEPTED]));
        let at = fetches.iter().position(|(open, ..)| *open == request).unwrap();
        let (_, number, lease) = fetches.swap_remove(at);
        let slot = engine.arena.peek(lease.slot).unwrap();
        assert!(slot == engine.page(&records[usize::from(number) - 1], Codec::Raw));
    }
}

#[test]
fn a_probe_moves_bytes_both_ways_and_leaves_nothing() {
    let vault = Vault::open();
    let lanes = Lanes::open(&vault, 2);
    let bytes = 24 * LANE_CHUNK_BYTES as u64;
    let request = lanes.client.probe(24, false).unwrap();
    assert_eq!(lanes.outcome(request), Outcome::Done(Vec::new(), bytes, None));
    let request = lanes.client.probe(24, true).unwrap();
    assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 24], bytes, None));
    assert_eq!((vault.count("probes"), vault.count("probed_bytes")), (2, 2 * bytes));
    assert_eq!((vault.count("stored"), vault.count("fetched_bytes")), (0, 0));
    assert_eq!(vault.server.status().requests, 0);
    let stats = vault.store.stats();
    assert_eq!((stats.used_bytes, stats.reserved_bytes), (0, 0));
    for chunks in [0, LANE_PROBE_CHUNKS_MAX + 1] {
        assert!(lanes.client.probe(chunks, false).is_err());
    }
}

#[test]
fn every_request_is_told_of_once_however_much_it_moves() {
    let vault = Vault::open();
    let lanes = Lanes::open(&vault, 2);
    let request = lanes.client.probe(LANE_PROBE_CHUNKS_MAX, false).unwrap();
    lanes.outcome(request);
    let engine = Engine::new(Shape::Large, 8);
    lanes.store((1..=4).map(|number| engine.record(number, Codec::Raw)).collect());
    let (targets, _) = engine.targets(&[1, 2, 3, 4], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    lanes.outcome(request);
    assert!(lanes.is_quiet(), "a second word");
}
