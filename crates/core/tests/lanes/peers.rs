//! Owns the proof that a client survives its vault: late, silent, broken or lying, and no slot is the worse for it.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tierkv_core::codec::Codec;
use tierkv_core::error::Code;
use tierkv_core::lane::client::{Outcome, Targets};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::limits::{LANE_CHUNK_BYTES, LANE_KEYS_MAX, LANE_REQUESTS_MAX, LANES_STORING_MAX};

use super::stand::{
    ACCEPTED, Engine, INCOMPLETE, Lanes, MISSING, NAMESPACE, Shape, Vault, bytes_of, key, outgoing,
    until,
};
use super::wires::{Wire, vault_by_hand};

/// A fetch of records 1, 2, 3, as it reaches a vault by hand on the lane that carries it.
fn begin(engine: &Engine, lanes: &Lanes, wires: &mut [Wire]) -> (u32, Vec<Vec<u8>>) {
    let records = [1, 2, 3].map(|number| bytes_of(&engine.record(number, Codec::Raw)));
    let (targets, _) = engine.targets(&[1, 2, 3], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    let lane = request as usize % wires.len();
    let (frame, body) = wires[lane].next().unwrap();
    assert_eq!((frame.kind, frame.request), (Kind::Fetch, request));
    assert_eq!(body[..32], NAMESPACE);
    assert_eq!(body[32..68], key(1));
    (request, records.to_vec())
}

fn failed(outcome: Outcome) -> (Code, Vec<u8>) {
    match outcome {
        Outcome::Failed(error, statuses) => (error.code, statuses),
        other => panic!("{other:?}"),
    }
}

#[test]
fn chunks_may_come_in_any_order_over_any_lane() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(2);
    let (request, records) = begin(&engine, &lanes, &mut wires);
    let half = records[0].len() / 2 + 7;
    for (item, record) in [2_u32, 1, 0].into_iter().zip(records.iter().rev()) {
        wires[1].chunk(request, item, half, record, record.len() - half);
        wires[0].chunk(request, item, 100, record, half - 100);
        wires[1].chunk(request, item, 0, record, 100);
    }
    let bytes = records.iter().map(|record| record.len() as u64).sum();
    assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED; 3], bytes, None));
}

#[test]
fn what_came_before_a_broken_lane_counts_and_the_slots_of_the_rest_are_free() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(2);
    let (request, records) = begin(&engine, &lanes, &mut wires);
    wires[1].chunk(request, 0, 0, &records[0], records[0].len());
    until(|| lanes.client.progress(request) == Some(records[0].len() as u64));
    // In the middle of a frame.
    let frame = Frame {
        item: 1,
        record_bytes: records[1].len() as u64,
        ..Frame::new(Kind::Chunk, request)
    };
    wires[0].0.write_all(&frame.of(&records[1]).encode()).unwrap();
    wires[0].0.write_all(&records[1][..1000]).unwrap();
    wires[0].0.shutdown(Shutdown::Both).unwrap();
    let (code, statuses) = failed(lanes.outcome(request));
    assert_eq!((code, statuses), (Code::LaneFailed, vec![ACCEPTED, INCOMPLETE, INCOMPLETE]));
    lanes.down();
    assert!(lanes.is_quiet(), "each request has one outcome");
    wires[1].ended();
    engine.arena.slots().release_owner(1);
    until(|| engine.arena.status().free_slots == 8);
    until(|| engine.inbox.live() == (0, 0));
    assert!(lanes.client.look_up(&NAMESPACE, &[key(1)]).is_err());
}

#[test]
fn who_asks_does_not_wait_for_a_vault_that_does_not_read_and_frames_stay_whole() {
    let (lanes, mut wires) = vault_by_hand(1);
    // More than the connection takes without a reader.
    let keys: Vec<_> =
        (0..LANE_KEYS_MAX).map(|index| key(u8::try_from(index % 251).unwrap())).collect();
    let ask = |_| lanes.client.look_up(&NAMESPACE, &keys).unwrap();
    let requests: Vec<u32> = (0..LANE_REQUESTS_MAX).map(ask).collect();
    lanes.client.cancel(requests[0]);
    assert_eq!(failed(lanes.outcome(requests[0])).0, Code::Cancelled);
    let mut seen = Vec::new();
    while seen.len() < requests.len() + 1 {
        let (frame, body) = wires[0].next().unwrap();
        if frame.kind == Kind::Lookup {
            assert!(body[32..] == *keys.as_flattened(), "whole, and nobody else's");
            if frame.request != requests[0] {
                wires[0].send(Frame::new(Kind::Found, frame.request), &[0; LANE_KEYS_MAX / 8]);
            }
        }
        seen.push((frame.kind, frame.request));
    }
    let at = |kind| seen.iter().position(|frame| *frame == (kind, requests[0])).unwrap();
    assert!(at(Kind::Lookup) < at(Kind::Cancel), "a cancel does not overtake its request");
    for request in &requests[1..] {
        let outcome = Outcome::Found(vec![0; LANE_KEYS_MAX / 8]);
        assert_eq!(lanes.next().1, outcome, "{request}");
    }
}

#[test]
fn no_request_stands_behind_what_is_stored() {
    let (lanes, mut wires) = vault_by_hand(4);
    let mut asked = wires.split_off(LANES_STORING_MAX);
    // More than a connection takes without a reader.
    let bytes = 16 * LANE_CHUNK_BYTES;
    let records = (1..=4).map(|number| outgoing(number, vec![number; bytes])).collect();
    let request = lanes.client.store(&NAMESPACE, records).unwrap();
    assert_eq!(asked[request as usize % 2].next().unwrap().0.kind, Kind::Offer);
    asked[0].send(Frame::new(Kind::Wanted, request), &[0; 4]);
    until(|| lanes.client.progress(request).is_some_and(|bytes| bytes > 0));
    for _ in 0..4 {
        let question = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
        let wire = &mut asked[question as usize % 2];
        assert_eq!(wire.next().unwrap().0.kind, Kind::Lookup);
        wire.send(Frame::new(Kind::Found, question), &[1]);
        assert_eq!(lanes.outcome(question), Outcome::Found(vec![1]));
    }
    let stored = AtomicUsize::new(0);
    thread::scope(|scope| {
        for wire in &mut wires {
            let chunks = std::iter::from_fn(move || wire.next());
            let stored = &stored;
            scope.spawn(move || {
                for (_, body) in chunks {
                    stored.fetch_add(body.len(), Ordering::Relaxed);
                }
            });
        }
        until(|| stored.load(Ordering::Relaxed) == 4 * bytes);
        lanes.client.close();
    });
}

/// A lie of the vault, and what the client says when it ends the session.
type Lie = fn(&mut Wire, u32, &[u8]);

#[test]
fn a_vault_that_lies_ends_the_session() {
    let lies: [(Lie, &str); 7] = [
        (
            |wire, request, record| {
                wire.chunk(request, 0, 0, record, 1000);
                wire.chunk(request, 0, 999, record, 1000);
            },
            "came twice",
        ),
        (
            |wire, request, record| {
                wire.chunk(request, 0, 0, record, 1000);
                wire.chunk(request, 0, 0, &record[..2000], 1000);
            },
            "changed the length",
        ),
        (|wire, request, record| wire.chunk(request, 3, 0, record, 1000), "was not asked for"),
        (
            |wire, request, _| {
                wire.send(Frame { item: 3, ..Frame::new(Kind::Status, request) }, &[]);
            },
            "was not asked for",
        ),
        (|wire, request, _| wire.send(Frame::new(Kind::Found, request), &[0]), "another question"),
        (|wire, request, _| wire.send(Frame::new(Kind::Wanted, request), &[0]), "another question"),
        (
            |wire, request, _| wire.send(Frame::new(Kind::Cancel, request), &[]),
            "sent a Cancel frame",
        ),
    ];
    for (lie, text) in lies {
        let engine = Engine::new(Shape::Strided, 8);
        let (lanes, mut wires) = vault_by_hand(1);
        let (request, records) = begin(&engine, &lanes, &mut wires);
        lie(&mut wires[0], request, &records[0]);
        assert_eq!(failed(lanes.outcome(request)).1, [INCOMPLETE; 3], "{text}");
        let reason = lanes.down();
        assert!(reason.contains(text), "{reason}");
        wires[0].ended();
    }
}

#[test]
fn a_record_that_came_twice_as_a_whole_changes_nothing() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(1);
    let (request, records) = begin(&engine, &lanes, &mut wires);
    for _ in 0..2 {
        wires[0].chunk(request, 0, 0, &records[0], records[0].len());
        wires[0].chunk(request, 1, 0, &records[1], records[1].len());
    }
    wires[0].send(Frame { item: 2, code: 3, ..Frame::new(Kind::Status, request) }, &[]);
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED, ACCEPTED, MISSING]);
}

#[test]
fn a_cancelled_fetch_keeps_what_came_and_its_slots_from_others_until_nobody_writes_them() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(1);
    let (request, records) = begin(&engine, &lanes, &mut wires);
    wires[0].chunk(request, 0, 0, &records[0], records[0].len());
    let frame = Frame {
        item: 1,
        record_bytes: records[1].len() as u64,
        ..Frame::new(Kind::Chunk, request)
    };
    wires[0].0.write_all(&frame.of(&records[1]).encode()).unwrap();
    wires[0].0.write_all(&records[1][..1000]).unwrap();
    until(|| lanes.client.progress(request) == Some(records[0].len() as u64 + 1000));
    lanes.client.cancel(request);
    let (code, statuses) = failed(lanes.outcome(request));
    assert_eq!((code, statuses), (Code::Cancelled, vec![ACCEPTED, INCOMPLETE, INCOMPLETE]));
    assert_eq!(wires[0].next().unwrap().0.kind, Kind::Cancel);
    engine.arena.slots().release_owner(1);
    assert_eq!(engine.arena.status().free_slots, 7, "one is still being written");
    wires[0].0.write_all(&records[1][1000..]).unwrap();
    until(|| engine.arena.status().free_slots == 8);
    // The lane lives on; what was under way is dropped.
    wires[0].chunk(request, 2, 0, &records[2], records[2].len());
    let request = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    wires[0].next().unwrap();
    wires[0].send(Frame::new(Kind::Found, request), &[1]);
    assert_eq!(lanes.outcome(request), Outcome::Found(vec![1]));
}

#[test]
fn a_vault_that_is_silent_is_left_when_a_request_is_given_up() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(2);
    let (request, _) = begin(&engine, &lanes, &mut wires);
    lanes.client.cancel(request);
    assert_eq!(failed(lanes.outcome(request)).0, Code::Cancelled);
    assert!(lanes.is_quiet(), "too early to tell");
    let (request, _) = begin(&engine, &lanes, &mut wires);
    std::thread::sleep(Duration::from_millis(450));
    lanes.client.cancel(request);
    assert_eq!(failed(lanes.outcome(request)).0, Code::Cancelled);
    assert!(lanes.down().contains("silent"));
}

#[test]
fn a_store_ends_with_what_the_vault_said() {
    let (lanes, mut wires) = vault_by_hand(2);
    let records = (1..=3).map(|number| outgoing(number, vec![number; 5000])).collect();
    let request = lanes.client.store(&NAMESPACE, records).unwrap();
    let lane = request as usize % 2;
    assert_eq!(wires[lane].next().unwrap().0.kind, Kind::Offer);
    wires[1 - lane].send(Frame::new(Kind::Wanted, request), &[0, 2, 0]);
    let mut came = Vec::new();
    for wire in &mut wires {
        wire.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        came.extend(std::iter::from_fn(|| wire.next()).map(|(frame, body)| (frame.item, body)));
    }
    came.sort();
    assert_eq!(came, [(0, vec![1; 5000]), (2, vec![3; 5000])]);
    wires[0].send(Frame { item: 2, code: 1, ..Frame::new(Kind::Status, request) }, &[]);
    // On one lane frames are heard in order: the answer says that the status was heard, too.
    let question = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    wires[0].send(Frame::new(Kind::Found, question), &[1]);
    assert_eq!(lanes.outcome(question), Outcome::Found(vec![1]));
    assert_eq!(lanes.client.progress(request), Some(10_000));
    wires[1].0.shutdown(Shutdown::Both).unwrap();
    assert_eq!(failed(lanes.outcome(request)), (Code::LaneFailed, vec![INCOMPLETE, 2, 1]));
}

#[test]
fn lanes_that_are_refused_say_why() {
    let vault = Vault::open();
    let address = vault.address.clone();
    let refused = Lanes::dial(&address, [1; 32], 2, super::stand::timing());
    assert!(refused.down().contains("unknown, used or expired"));
    drop(vault);
    let refused = Lanes::dial(&address, [1; 32], 2, super::stand::timing());
    assert!(refused.down().contains("connecting to"));
    assert!(refused.is_quiet());
}

#[test]
fn what_a_vault_waited_for_is_no_part_of_the_links_rate() {
    const WAIT: Duration = Duration::from_secs(1);
    let engine = Engine::new(Shape::Large, 2);
    let (lanes, mut wires) = vault_by_hand(1);
    let bytes = bytes_of(&engine.record(1, Codec::Raw));
    let (targets, _) = engine.targets(&[1], Codec::Raw);
    lanes.down.begin(0.0, false);
    let request = lanes.client.fetch(targets).unwrap();
    wires[0].next().unwrap();
    thread::sleep(WAIT);
    let us = u64::try_from(WAIT.as_micros()).unwrap();
    wires[0].send(Frame { offset: us, ..Frame::new(Kind::Waited, 0) }, &[]);
    for (at, part) in (0..).step_by(LANE_CHUNK_BYTES).zip(bytes.chunks(LANE_CHUNK_BYTES)) {
        wires[0].chunk(request, 0, at, &bytes, part.len());
    }
    let length = bytes.len() as u64;
    assert_eq!(lanes.outcome(request), Outcome::Done(vec![ACCEPTED], length, None));
    lanes.down.end(false, false);
    let record = f64::from(u32::try_from(length).unwrap());
    let rate = lanes.down.rate(None).unwrap() / record;
    assert!(rate > 1.5 / WAIT.as_secs_f64(), "{rate} records a second");
}

#[test]
fn a_fetch_without_a_byte_ends_as_stalled_and_one_that_moves_goes_on() {
    const STALL: Duration = Duration::from_millis(400);
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut wires) = vault_by_hand(1);
    let bytes = bytes_of(&engine.record(1, Codec::Raw));
    let fetch = |number: u8, stall: Option<Duration>| {
        let (targets, _) = engine.targets(&[number], Codec::Raw);
        lanes.client.fetch(Targets { stall, ..targets }).unwrap()
    };
    let (moving, patient) = (fetch(1, Some(STALL)), fetch(2, None));
    let begun = Instant::now();
    // One byte at a time, for much longer than a fetch may be silent.
    let mut at = 0;
    while begun.elapsed() < 3 * STALL {
        wires[0].chunk(moving, 0, at, &bytes, 1);
        at += 1;
        thread::sleep(STALL / 20);
    }
    wires[0].chunk(moving, 0, at, &bytes, bytes.len() - at);
    let length = bytes.len() as u64;
    assert_eq!(lanes.outcome(moving), Outcome::Done(vec![ACCEPTED], length, None));
    let silent = fetch(3, Some(STALL));
    assert_eq!(failed(lanes.outcome(silent)), (Code::FetchStalled, vec![INCOMPLETE]));
    // It ends with the session, at latest here, because the vault is silent.
    lanes.client.close();
    assert_eq!(failed(lanes.outcome(patient)), (Code::LaneFailed, vec![INCOMPLETE]));
}

#[test]
fn the_most_patient_fetch_counts_for_all_because_an_archive_delays_what_is_behind_it() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, _wires) = vault_by_hand(1);
    let fetch = |number: u8, ms: u64| {
        let (targets, _) = engine.targets(&[number], Codec::Raw);
        let stall = Some(Duration::from_millis(ms));
        lanes.client.fetch(Targets { stall, ..targets }).unwrap()
    };
    let begun = Instant::now();
    let (near, far) = (fetch(1, 100), fetch(2, 900));
    assert_eq!(failed(lanes.outcome(near)).0, Code::FetchStalled);
    assert!(begun.elapsed() > Duration::from_millis(900));
    failed(lanes.outcome(far));
}
