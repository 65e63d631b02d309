//! Owns the proof that a vault bounds its clients: who comes in, how much they hold, how slow they may be.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outcome;
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::lane::server::Right;
use tierkv_core::limits::{LANE_KEYS_MAX, LANE_PROBE_CHUNKS_MAX};
use tierkv_core::store::{ItemStatus, MADE_NOW, tenant_of};

use super::stand::{
    ACCEPTED, Engine, Lanes, MIB, NAMESPACE, Shape, Vault, bytes_of, key, outgoing, timing, until,
};
use super::wires::{client_by_hand, connect, connect_in_clear, hello};

const SHORT: Duration = Duration::from_millis(200);

/// A vault that is soon at the end of its patience.
fn impatient() -> Vault {
    Vault::with(|options| {
        let timing = &mut options.timing;
        (timing.hello, timing.stall, timing.store_idle) = (SHORT, SHORT, SHORT);
    })
}

fn fetch_body(numbers: &[u8]) -> Vec<u8> {
    let keys = numbers.iter().flat_map(|number| key(*number));
    NAMESPACE.into_iter().chain(keys).collect()
}

fn offer_body(number: u8, bytes: u64) -> Vec<u8> {
    [&NAMESPACE[..], &key(number), &bytes.to_le_bytes()].concat()
}

#[test]
fn a_token_opens_each_lane_of_one_session_once() {
    let vault = Vault::open();
    let token = vault.token();
    let mut first = connect(&vault);
    first.send(hello(0, 2), &token);
    assert_eq!(first.next().unwrap().0.kind, Kind::Welcome);
    for (lane, lanes, text) in
        [(0, 2, "has come before"), (1, 3, "lane 1 of 3"), (2, 2, "lane 2 of 2"), (0, 9, "0 of 9")]
    {
        let mut again = connect(&vault);
        again.send(hello(lane, lanes), &token);
        let refusal = again.refusal();
        assert!(refusal.contains(text), "{refusal}");
    }
    let mut second = connect(&vault);
    second.send(hello(1, 2), &token);
    assert_eq!(second.next().unwrap().0.kind, Kind::Welcome);
    assert_eq!(vault.server.status().sessions, 1);
    for (lane, token) in [(1, token), (0, token), (0, [0xAA; 32])] {
        let mut late = connect(&vault);
        late.send(hello(lane, 2), &token);
        assert!(late.refusal().contains("unknown, used or expired"));
    }
    assert_eq!(vault.count("lanes_refused"), 7);
}

#[test]
fn an_account_that_is_expelled_loses_its_lanes_and_its_tokens_and_nobody_else_does() {
    let vault = Vault::open();
    let admit = |token: u8, account| {
        vault.server.admit([token; 32], Right { may_store: true, account });
        Lanes::dial(&vault.address, [token; 32], 2, timing())
    };
    let all = [admit(1, 1), admit(2, 2), admit(3, 0)];
    for lanes in &all {
        assert_eq!(lanes.next(), (0, Outcome::Up));
    }
    vault.server.admit([4; 32], Right { may_store: true, account: 1 });
    vault.server.expel(1);
    assert!(matches!(all[0].next(), (0, Outcome::Down(_))));
    let mut late = connect(&vault);
    late.send(hello(0, 1), &[4; 32]);
    assert!(late.refusal().contains("unknown, used or expired"));
    for lanes in &all[1..] {
        let request = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
        assert_eq!(lanes.outcome(request), Outcome::Found(vec![0]));
    }
}

#[test]
fn what_a_lane_stores_is_on_its_credentials_account() {
    let vault = Vault::open();
    vault.store.limit_tenants(1 << 20, &[]);
    vault.server.admit([6; 32], Right { may_store: true, account: 7 });
    let engine = Engine::new(Shape::Strided, 2);
    let lanes = Lanes::dial(&vault.address, [6; 32], 1, timing());
    assert_eq!(lanes.next(), (0, Outcome::Up));
    let records = vec![engine.record(1, Codec::Raw)];
    let request = lanes.client.store_for(5, MADE_NOW, &NAMESPACE, records, None).unwrap();
    assert!(matches!(lanes.outcome(request), Outcome::Done(..)));
    assert!(vault.store.used_by(tenant_of(7, 5)) > 0);
    assert_eq!(vault.store.used_by(5), 0);
}

#[test]
fn a_reader_stores_nothing() {
    let vault = Vault::open();
    vault.server.admit([5; 32], Right { may_store: false, account: 0 });
    let engine = Engine::new(Shape::Strided, 2);
    let reader = Lanes::dial(&vault.address, [5; 32], 1, timing());
    assert_eq!(reader.next(), (0, Outcome::Up));
    let request = reader.client.store(&NAMESPACE, vec![engine.record(1, Codec::Raw)]).unwrap();
    let Outcome::Failed(error, _) = reader.outcome(request) else { panic!("refused") };
    assert!(error.text.contains("does not store"), "{}", error.text);
    let request = reader.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    assert_eq!(reader.outcome(request), Outcome::Found(vec![0]));
}

#[test]
fn a_token_expires() {
    let vault = Vault::with(|options| options.timing.token = Duration::ZERO);
    let lanes = Lanes::dial(&vault.address, vault.token(), 2, timing());
    assert!(lanes.down().contains("expired"));
}

#[test]
fn who_says_nothing_or_something_else_first_is_sent_away() {
    let vault = impatient();
    assert!(connect(&vault).refusal().contains("no hello came in time"));
    let mut wire = connect(&vault);
    wire.send(Frame::new(Kind::Cancel, 1), &[]);
    assert!(wire.refusal().contains("not Hello"));
}

#[test]
fn no_more_lanes_than_its_limit_are_open() {
    let vault = Vault::with(|options| options.connections_max = 2);
    let lanes = Lanes::open(&vault, 2);
    assert!(connect_in_clear(&vault).refusal().contains("too many lanes"));
    drop(lanes);
    until(|| vault.server.status().lanes == 0);
    Lanes::open(&vault, 2);
}

#[test]
fn f36_a_frame_that_trickles_ends_the_session() {
    let vault = impatient();
    let mut wire = client_by_hand(&vault);
    let frame = Frame { record_bytes: 1 << 20, ..Frame::new(Kind::Chunk, 1) };
    wire.0.write_all(&frame.of(&vec![0; 1 << 20]).encode()).unwrap();
    let started = Instant::now();
    // Never silent for long, and never done.
    while wire.0.write_all(&[0; 64]).is_ok() && vault.server.status().lanes > 0 {
        std::thread::sleep(Duration::from_millis(20));
        assert!(started.elapsed() < super::stand::SOON);
    }
    until(|| vault.server.status().lanes == 0);
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let vault = impatient();
    let engine = Engine::new(Shape::Large, 8);
    let lanes = Lanes::open(&vault, 1);
    let numbers: Vec<u8> = (1..=6).collect();
    lanes.store(numbers.iter().map(|number| engine.record(*number, Codec::Raw)).collect());
    drop(lanes);
    until(|| vault.server.status().lanes == 0);
    let mut wire = client_by_hand(&vault);
    for request in 1..=8 {
        wire.send(Frame::new(Kind::Fetch, request), &fetch_body(&numbers));
    }
    until(|| vault.server.status().lanes == 0);
    assert!(vault.count("fetches_ended_early") > 0);
}

#[test]
fn who_keeps_all_there_is_for_requests_keeps_nobody_from_asking_for_a_little() {
    let whole = vec![key(1); LANE_KEYS_MAX].concat();
    let vault = Vault::with(|options| options.max_kept_bytes = 3 * whole.len() + 1000);
    let engine = Engine::new(Shape::Large, 8);
    Lanes::open(&vault, 1).store(vec![engine.record(1, Codec::Raw)]);
    let ask = [&NAMESPACE[..], &whole].concat();
    let mut hog = client_by_hand(&vault);
    // Of its own it has too little for any of them.
    for request in 1..=8 {
        hog.send(Frame::new(Kind::Fetch, request), &ask);
    }
    until(|| vault.count("fetches") == 3);
    let mut modest = client_by_hand(&vault);
    modest.send(Frame::new(Kind::Fetch, 1), &ask);
    let (error, text) = modest.next().unwrap();
    assert_eq!((error.kind, error.request), (Kind::Error, 1));
    assert!(String::from_utf8(text).unwrap().contains("ask for fewer keys"));
    let lanes = Lanes::open(&vault, 1);
    let (targets, landed) = engine.targets(&[1], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    assert!(matches!(lanes.outcome(request), Outcome::Done(..)));
    drop(landed);
    assert_eq!(vault.server.status().requests, 3);
    // What it kept is free with its end.
    drop(hog);
    until(|| vault.server.status().requests == 0);
    modest.send(Frame::new(Kind::Fetch, 2), &ask);
    assert_eq!(modest.next().unwrap().0.kind, Kind::Chunk);
}

#[test]
fn an_offer_that_brings_nothing_gives_its_room_back() {
    let vault = impatient();
    let mut wire = client_by_hand(&vault);
    wire.send(Frame::new(Kind::Offer, 1), &offer_body(1, MIB as u64));
    let (wanted, statuses) = wire.next().unwrap();
    assert_eq!((wanted.kind, wanted.request, statuses), (Kind::Wanted, 1, vec![0]));
    assert!(vault.store.stats().reserved_bytes >= MIB as u64);
    let (error, text) = wire.next().unwrap();
    assert_eq!((error.kind, error.request), (Kind::Error, 1));
    assert!(String::from_utf8(text).unwrap().contains("no byte of the offered records"));
    assert_eq!(vault.store.stats().reserved_bytes, 0);
    assert_eq!(vault.count("stores_ended_early"), 1);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_record_leaves_nothing() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 2);
    let record = bytes_of(&engine.record(1, Codec::Raw));
    let mut wire = client_by_hand(&vault);
    wire.send(Frame::new(Kind::Offer, 1), &offer_body(1, record.len() as u64));
    wire.next().unwrap();
    wire.chunk(1, 0, 0, &record, 1000);
    let frame =
        Frame { offset: 1000, record_bytes: record.len() as u64, ..Frame::new(Kind::Chunk, 1) };
    wire.0.write_all(&frame.of(&record[1000..]).encode()).unwrap();
    wire.0.write_all(&record[1000..2000]).unwrap();
    wire.0.shutdown(Shutdown::Both).unwrap();
    until(|| vault.server.status().lanes == 0);
    assert_eq!(vault.store.stats().used_bytes, 0);
    assert_eq!(vault.count("stores_ended_early"), 1);
}

#[test]
fn a_cancelled_fetch_stops_within_a_chunk() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Large, 8);
    let numbers: Vec<u8> = (1..=6).collect();
    let records: Vec<_> = numbers.iter().map(|number| engine.record(*number, Codec::Raw)).collect();
    let total: usize = records.iter().map(|record| bytes_of(record).len()).sum();
    Lanes::open(&vault, 2).store(records);
    let mut wire = client_by_hand(&vault);
    wire.send(Frame::new(Kind::Fetch, 1), &fetch_body(&numbers));
    wire.next().unwrap();
    wire.send(Frame::new(Kind::Cancel, 1), &[]);
    wire.send(Frame::new(Kind::Lookup, 2), &fetch_body(&numbers));
    let mut bytes = 0;
    loop {
        let (frame, body) = wire.next().unwrap();
        if frame.kind == Kind::Found {
            assert_eq!(body, [0b11_1111]);
            break;
        }
        bytes += body.len();
    }
    assert!(bytes < total, "{bytes} of {total} came");
    until(|| vault.count("fetches_ended_early") == 1);
    until(|| vault.server.status().requests == 0);
    // Nothing of it comes after the answer to a later question but the chunk that was under way.
    wire.send(Frame::new(Kind::Lookup, 3), &fetch_body(&[]));
    let rest = std::iter::from_fn(|| wire.next()).take_while(|(frame, _)| frame.request != 3);
    assert!(rest.count() <= 1);
}

#[test]
fn records_that_come_in_pieces_out_of_place_are_refused_one_by_one() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 4);
    let record = bytes_of(&engine.record(1, Codec::Raw));
    let other = bytes_of(&engine.record(2, Codec::Raw));
    let body = [
        &NAMESPACE[..],
        &key(1),
        &(record.len() as u64).to_le_bytes(),
        &key(2),
        &(other.len() as u64).to_le_bytes(),
    ]
    .concat();
    let mut wire = client_by_hand(&vault);
    wire.send(Frame::new(Kind::Offer, 1), &body);
    wire.next().unwrap();
    wire.chunk(1, 0, 0, &record, 1000);
    wire.chunk(1, 0, 500, &record, 1000);
    let (status, _) = wire.next().unwrap();
    assert_eq!(
        (status.kind, status.item, status.code),
        (Kind::Status, 0, ItemStatus::BadRecord as u16)
    );
    wire.chunk(1, 0, 1500, &record, 1000);
    wire.chunk(1, 1, 0, &other, other.len());
    let (status, _) = wire.next().unwrap();
    assert_eq!((status.item, status.code), (1, ItemStatus::Accepted as u16));
    until(|| vault.server.status().requests == 0);
    assert_eq!(vault.store.stats().reserved_bytes, 0);
}

#[test]
fn a_draining_vault_ends_what_it_has_and_begins_nothing() {
    let vault = Vault::open();
    let lanes = Lanes::open(&vault, 2);
    let engine = Engine::new(Shape::Strided, 4);
    let record = engine.record(1, Codec::Raw);
    assert_eq!(lanes.store(vec![record.clone()]), [ACCEPTED]);
    vault.server.drain();
    let request = lanes.client.store(&NAMESPACE, vec![outgoing(2, bytes_of(&record))]).unwrap();
    let Outcome::Failed(error, _) = lanes.outcome(request) else { panic!("refused") };
    assert!(error.text.contains("the vault stops"), "{}", error.text);
    vault.server.close();
    lanes.down();
}

#[test]
fn a_probe_of_more_than_its_limit_ends_the_session() {
    let vault = Vault::open();
    let mut wire = client_by_hand(&vault);
    wire.send(Frame { item: LANE_PROBE_CHUNKS_MAX + 1, ..Frame::new(Kind::Probe, 1) }, &[]);
    wire.ended();
    until(|| vault.server.status().lanes == 0);
    assert_eq!(vault.count("probes"), 0);
}
