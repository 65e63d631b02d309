//! Owns the proof that one flipped bit anywhere in 2 MiB is found at every listener: read whole, arriving in a slot, read from a disk.
//! `TIERKV_TEST_FLIPS` says how many at each, `TIERKV_TEST_SEED` which.
//! @module-tag nightly

#![expect(clippy::cast_possible_truncation, reason = "bits of 2 MiB fit")]

#[path = "support/random.rs"]
mod random;
#[expect(dead_code, reason = "nothing is put here")]
#[path = "support/records.rs"]
mod records;
#[path = "support/segments.rs"]
mod segments;

use std::sync::Arc;

use random::Random;
use segments::{Bytes, NAME, segment};
use tierkv_core::arena::{Arena, Options};
use tierkv_core::crc32c;
use tierkv_core::disk::format::{ENTRY_BYTES, Entry};
use tierkv_core::disk::walk::find;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::{Inbox, Wanted};
use tierkv_core::memory::pages::PAGE;
use tierkv_core::record::{self, CLASS_KV, HEADER_BYTES, LAYOUT_OPAQUE};

const PAGE_BYTES: usize = 2 << 20;
const RECORD_BYTES: usize = PAGE_BYTES + HEADER_BYTES;
/// In chunks, as lanes bring them.
const PIECE_BYTES: usize = 256 << 10;
/// Of every run; each costs a look at 2 MiB.
const FLIPS: usize = 4_000;

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Calls `find` with each bit, of `bits` ones, that is to be flipped.
fn each_flip(listener: u64, bits: usize, mut find: impl FnMut(usize)) {
    let seed = number("TIERKV_TEST_SEED", 2) as u64;
    let mut random = Random::new(seed.wrapping_mul(4).wrapping_add(listener));
    for _ in 0..number("TIERKV_TEST_FLIPS", FLIPS) {
        find(random.next() as usize % bits);
    }
}

/// A sound record whose payload is noise.
fn noisy() -> Vec<u8> {
    let mut random = Random::new(7);
    let payload: Vec<u8> = (0..PAGE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let head = records::header(&records::key(1), PAGE_BYTES).encode(crc32c::checksum(&payload));
    [&head, payload.as_slice()].concat()
}

#[test]
fn f9_a_bit_flipped_in_memory_is_found_when_the_record_is_read() {
    let mut bytes = noisy();
    assert!(record::verify(&bytes).is_ok());
    each_flip(0, RECORD_BYTES * 8, |bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(record::verify(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    });
}

#[test]
fn f9_a_bit_flipped_on_the_wire_is_found_before_a_slot_is_anyones() {
    let spec = Spec {
        group: 3,
        record_class: CLASS_KV,
        layout: LAYOUT_OPAQUE,
        dtype: 0,
        tokens: 16,
        layers: 1,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        layer_bytes: PAGE_BYTES as u64,
        key_offset: 0,
        value_offset: 0,
        head_stride: 0,
        token_stride: 0,
    };
    let geometry = Arc::new(Geometry::new(spec).unwrap());
    let slot_bytes = geometry.slot_bytes() as u64;
    let arena = Arc::new(
        Arena::create(&Options { slot_bytes, slot_count: 1, dir: None, label: 1 }).unwrap(),
    );
    arena.prefault().unwrap();
    while arena.status().touched_slots < 1 {
        std::thread::yield_now();
    }
    let inbox = Inbox::default();
    let key = records::key(1);
    let mut packed_key = [0; 36];
    packed_key[..32].copy_from_slice(&key.block_hash);
    packed_key[32..34].copy_from_slice(&key.group.to_le_bytes());
    let lease = arena.slots().lease(1, 1)[0];
    let receive = |bytes: &[u8]| {
        let wanted = Wanted { fidelity: 0, namespace: key.namespace, packed_key };
        let reassembly = inbox.begin(&arena, lease, &geometry, wanted, bytes.len() as u64).unwrap();
        Arc::new(reassembly).take(bytes, PIECE_BYTES).map_err(|error| error.to_string())
    };
    let mut bytes = noisy();
    receive(&bytes).unwrap();
    each_flip(1, RECORD_BYTES * 8, |bit| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let refused = receive(&bytes).unwrap_err();
        assert!(refused.starts_with("BAD_RECORD: "), "bit {bit}: {refused}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    });
}

#[test]
fn f9_a_bit_flipped_on_the_disk_costs_its_record_and_no_other() {
    let (mut bytes, entries) = segment(&[RECORD_BYTES, 500], true);
    let start = entries[0].page as usize * PAGE;
    let sound = |bytes: &[u8]| {
        let found = find(&Bytes(bytes), &NAME).unwrap().entries;
        let is_read = |entry: &&Entry| {
            let pages = &bytes[entry.page as usize * PAGE..];
            Entry::parse(pages, &NAME, entry.page).as_ref() == Some(entry)
                && entry.record(pages).is_some()
        };
        let read: Vec<Entry> = found.iter().filter(is_read).copied().collect();
        read
    };
    assert_eq!(sound(&bytes), entries);
    each_flip(2, (ENTRY_BYTES + RECORD_BYTES) * 8, |bit| {
        let at = start + bit / 8;
        bytes[at] ^= 1 << (bit % 8);
        assert_eq!(sound(&bytes), entries[1..], "bit {bit}");
        bytes[at] ^= 1 << (bit % 8);
    });
}
