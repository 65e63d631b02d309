//! Owns the proof of the frame parser: what was sent is read, and nothing else is taken for a frame.

use std::io::Write;

use proptest::prelude::*;
use tierkv_core::crc32c;
use tierkv_core::lane::frame::{FRAME_BYTES, Frame, Kind};

use super::random::Random;
use super::stand::{ACCEPTED, Engine, Lanes, Shape, Vault};
use super::wires::client_by_hand;
use tierkv_core::codec::Codec;

fn chunk() -> Frame {
    Frame {
        code: 7,
        item: 0x0102_0304,
        offset: 1 << 33,
        record_bytes: 1 << 40,
        bytes: 1 << 20,
        ..Frame::new(Kind::Chunk, 0xFFFF_FFFF)
    }
}

/// The header with `bytes` at `at`, its checksum made right again.
fn forged(at: usize, bytes: &[u8]) -> [u8; FRAME_BYTES] {
    let mut header = chunk().encode();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::checksum(&header[..36]);
    header[36..].copy_from_slice(&checksum.to_le_bytes());
    header
}

#[test]
fn a_header_stands_as_documented() {
    let header = chunk().encode();
    assert_eq!(&header[..8], b"TKVL\x02\x06\x07\x00");
    assert_eq!(header[8..16], [0xFF, 0xFF, 0xFF, 0xFF, 4, 3, 2, 1]);
    assert_eq!(header[16..24], (1_u64 << 33).to_le_bytes());
    assert_eq!(header[24..32], (1_u64 << 40).to_le_bytes());
    assert_eq!(header[32..36], (1_u32 << 20).to_le_bytes());
    assert_eq!(header[36..], crc32c::checksum(&header[..36]).to_le_bytes());
    assert_eq!(Frame::parse(&header).unwrap(), chunk());
}

#[test]
fn f9_any_flipped_bit_is_noticed() {
    for bit in 0..FRAME_BYTES * 8 {
        let mut header = chunk().encode();
        header[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::parse(&header).is_err(), "bit {bit}");
    }
}

#[test]
fn f10_what_no_peer_may_send_is_refused_before_a_byte_of_it_is_received() {
    for (at, bytes, text) in [
        (4, &[1_u8][..], "version 1"),
        (5, &[0], "unknown kind 0"),
        (5, &[17], "unknown kind 17"),
        (32, &[1, 0, 16, 0], "a body of 1048577 bytes"),
        (32, &[0, 0, 0, 0], "a body of 0 bytes"),
        (16, &[0xFF; 8], "brings 1048576 bytes"),
        (24, &[0; 8], "of a record of 0"),
        (5, &[Kind::Hello as u8], "of kind Hello has a body"),
        (5, &[Kind::Cancel as u8], "of kind Cancel has a body"),
        (5, &[Kind::Fetch as u8], "of kind Fetch has a body"),
        (5, &[Kind::Offer as u8], "of kind Offer has a body"),
        (5, &[Kind::Error as u8], "of kind Error has a body"),
        (5, &[Kind::Probe as u8], "of kind Probe has a body"),
        (5, &[Kind::Waited as u8], "of kind Waited has a body"),
        (5, &[Kind::Standing as u8], "of kind Standing has a body"),
        (5, &[Kind::Read as u8], "of kind Read has a body"),
    ] {
        let error = Frame::parse(&forged(at, bytes)).unwrap_err().text;
        assert!(error.contains(text), "{error}");
    }
}

proptest! {
    #[test]
    fn noise_is_never_a_frame_and_never_a_panic(noise in any::<[u8; FRAME_BYTES]>()) {
        prop_assert!(Frame::parse(&noise).is_err());
        let mut forged = noise;
        forged[..5].copy_from_slice(b"TKVL\x02");
        let checksum = crc32c::checksum(&forged[..36]);
        forged[36..].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(frame) = Frame::parse(&forged) {
            prop_assert!(frame.bytes <= 1 << 20);
            prop_assert_eq!(frame.encode(), forged);
        }
    }
}

/// Frames that are sound by themselves, in any order, with any numbers and any body.
fn nonsense(random: &mut Random) -> Vec<u8> {
    let pick = |random: &mut Random, of: u64| random.next() % of;
    let kind = [
        Kind::Hello,
        Kind::Lookup,
        Kind::Fetch,
        Kind::Chunk,
        Kind::Status,
        Kind::Cancel,
        Kind::Offer,
        Kind::Wanted,
        Kind::Error,
        Kind::Standing,
        Kind::Read,
    ][usize::try_from(pick(random, 11)).unwrap()];
    let items = usize::try_from(pick(random, 5)).unwrap();
    let bytes = match kind {
        Kind::Hello => 32,
        Kind::Lookup | Kind::Fetch => 32 + items * 36,
        Kind::Offer => 32 + items * 44,
        Kind::Chunk => 1 + items * 100,
        Kind::Standing => 20 + items * 20,
        Kind::Wanted | Kind::Error => items,
        _ => 0,
    };
    let body: Vec<u8> = (0..bytes).map(|_| u8::try_from(pick(random, 3)).unwrap()).collect();
    let frame = Frame {
        code: u16::try_from(pick(random, 12)).unwrap(),
        item: u32::try_from(pick(random, 4)).unwrap(),
        record_bytes: bytes as u64 + pick(random, 1000),
        ..Frame::new(kind, u32::try_from(pick(random, 4)).unwrap())
    };
    [&frame.of(&body).encode(), body.as_slice()].concat()
}

#[test]
fn a_vault_outlives_any_client_and_keeps_nothing_of_it() {
    let vault = Vault::open();
    let mut random = Random::new(11);
    for round in 0..300 {
        let mut wire = client_by_hand(&vault);
        let sent: Vec<u8> = if round % 3 == 0 {
            (0..2000).map(|_| u8::try_from(random.next() % 256).unwrap()).collect()
        } else {
            (0..=round % 20).flat_map(|_| nonsense(&mut random)).collect()
        };
        // It may have seen enough before it has read all.
        let _ = wire.0.write_all(&sent);
    }
    super::stand::until(|| vault.server.status().lanes == 0);
    let stats = vault.store.stats();
    assert_eq!((stats.records, stats.used_bytes, stats.reserved_bytes), (0, 0, 0));
    let engine = Engine::new(Shape::Strided, 2);
    assert_eq!(Lanes::open(&vault, 2).store(vec![engine.record(1, Codec::Raw)]), [ACCEPTED]);
}
