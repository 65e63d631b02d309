//! Owns the proof of int8 records: made of slots, checked, decoded into slots; and raw where it must be.

use std::sync::Arc;

use tierkv_core::arena::{Arena, Options};
use tierkv_core::codec::Codec;
use tierkv_core::crc32c;
use tierkv_core::error::{Code, Error};
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::{Inbox, Wanted};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{self, CLASS_SSM, HEADER_BYTES, Header, LAYOUT_OPAQUE, Refusal};
use tierkv_core::slots::Lease;

use super::trip::plain;

const INT8: (Codec, u8) = (Codec::Int8, 2);

struct Bench {
    arena: Arc<Arena>,
    geometry: Arc<Geometry>,
    lease: Lease,
}

impl Bench {
    /// A slot that holds `page`.
    fn new(geometry: Geometry, page: &[u8]) -> Self {
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = Options { slot_bytes, slot_count: 1, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).expect("an arena"));
        arena.prefault().expect("a thread");
        while arena.status().touched_slots < 1 {
            std::thread::yield_now();
        }
        let lease = arena.slots().lease(1, 1)[0];
        let mut slot = vec![0; geometry.slot_bytes()];
        slot[..page.len()].copy_from_slice(page);
        arena.poke(lease.slot, &slot).expect("as long as the slot");
        Self { arena, geometry: Arc::new(geometry), lease }
    }

    fn encode(&self, codec: (Codec, u8)) -> Result<Vec<u8>, Error> {
        let identity = Identity {
            shard: 0,
            shard_count: 1,
            end_tokens: 8,
            namespace: [1; 32],
            block_hash: [2; 32],
            parent_hash: [3; 32],
        };
        let outbox = Outbox::default();
        let record = outbox.encode(&self.arena, self.lease, &self.geometry, codec, &identity)?;
        Ok(record.to_vec())
    }

    /// Takes `record` into the slot, in a namespace of fidelity 2.
    fn receive(&self, record: &[u8]) -> Result<Header, Error> {
        let mut packed_key = [2; 36];
        packed_key[32..].fill(0);
        let wanted = Wanted { fidelity: 2, namespace: [1; 32], packed_key };
        let bytes = record.len() as u64;
        let inbox = Inbox::default();
        let reassembly = inbox.begin(&self.arena, self.lease, &self.geometry, wanted, bytes)?;
        Arc::new(reassembly).take(record, record.len())
    }

    fn slot(&self) -> Vec<u8> {
        self.arena.peek(self.lease.slot).expect("a slot")
    }
}

/// float32 numbers whose scale is a power of two: they come back as they were.
fn exact_page() -> Vec<u8> {
    let numbers = (0..16_u8).map(|at| if at % 4 == 0 { 127.0 } else { -f32::from(at) });
    numbers.flat_map(f32::to_le_bytes).collect()
}

#[test]
fn a_slot_becomes_an_int8_record_and_a_slot_again() {
    let bench = Bench::new(plain(3, 4, 4), &exact_page());
    let record = bench.encode(INT8).expect("an int8 record");
    let header = record::verify(&record).expect("a sound record");
    assert_eq!((header.codec, header.fidelity, header.payload_bytes), (2, 2, 4 * (2 + 4)));
    assert_eq!(header.source_bytes, 64);
    assert_eq!(
        record[HEADER_BYTES..HEADER_BYTES + 8],
        [0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f]
    );
    assert_eq!(record[HEADER_BYTES + 8..][..4], [127, 255, 254, 253]);

    bench.arena.poke(bench.lease.slot, &vec![0xEE; bench.slot().len()]).expect("a slot");
    assert_eq!(bench.receive(&record), Ok(header));
    assert_eq!(bench.slot()[..64], exact_page());
}

#[test]
fn an_inf_or_nan_makes_the_record_raw_and_comes_back_as_it_was() {
    for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut page = exact_page();
        page[40..44].copy_from_slice(&odd.to_le_bytes());
        let bench = Bench::new(plain(3, 4, 4), &page);
        let record = bench.encode(INT8).expect("a raw record");
        let header = record::verify(&record).expect("a sound record");
        assert_eq!((header.codec, header.fidelity, header.payload_bytes), (0, 2, 64));
        bench.arena.poke(bench.lease.slot, &vec![0xEE; bench.slot().len()]).expect("a slot");
        assert_eq!(bench.receive(&record), Ok(header));
        assert_eq!(bench.slot()[..64], page);
    }
}

#[test]
fn opaque_pages_and_states_become_raw_records() {
    let spec = plain(3, 4, 4).spec().clone();
    let opaque = Spec { layout: LAYOUT_OPAQUE, heads: 0, dim_k: 0, ..spec.clone() };
    let state = Spec { record_class: CLASS_SSM, ..spec };
    for spec in [opaque, state] {
        let geometry = Geometry::new(spec).expect("a sound shape");
        let page: Vec<u8> = (0_u8..=255).cycle().take(geometry.page_bytes()).collect();
        let bench = Bench::new(geometry, &page);
        let record = bench.encode(INT8).expect("a raw record");
        let header = record::verify(&record).expect("a sound record");
        assert_eq!((header.codec, header.fidelity), (0, 2));
        bench.arena.poke(bench.lease.slot, &vec![0xEE; bench.slot().len()]).expect("a slot");
        assert_eq!(bench.receive(&record), Ok(header));
        assert_eq!(bench.slot()[..page.len()], page);
    }
}

#[test]
fn int8_is_refused_in_a_namespace_of_another_fidelity() {
    for fidelity in [0, 1, 3] {
        let geometry = plain(3, 4, 4);
        let page = vec![0; geometry.page_bytes()];
        let refusal =
            Bench::new(geometry, &page).encode((Codec::Int8, fidelity)).expect_err("refused");
        assert_eq!(refusal.code, Code::BadArgument);
        assert!(refusal.text.contains(&format!("fidelity {fidelity} is not its own")), "{refusal}");
    }
}

#[test]
fn a_record_with_an_impossible_scale_is_refused() {
    let bench = Bench::new(plain(3, 4, 4), &exact_page());
    let record = bench.encode(INT8).expect("an int8 record");
    let header = record::verify(&record).expect("a sound record");
    for scale in [0x0001_u16, 0x7f80, 0xffc0, 0xbf80] {
        let mut payload = record[HEADER_BYTES..].to_vec();
        payload[4..6].copy_from_slice(&scale.to_le_bytes());
        let forged = [&header.encode(crc32c::checksum(&payload))[..], &payload].concat();
        let refusal = bench.receive(&forged).expect_err("refused");
        assert_eq!(refusal.code, Code::BadRecord);
        assert_eq!(refusal.text, "a scale is neither zero nor one that its codec writes");
    }
}

#[test]
fn an_exact_reader_refuses_int8() {
    let bench = Bench::new(plain(3, 4, 4), &exact_page());
    let record = bench.encode(INT8).expect("an int8 record");
    let header = record::verify(&record).expect("a sound record");
    let exact = Header { fidelity: 0, ..header };
    let payload = &record[HEADER_BYTES..];
    let forged = [&exact.encode(crc32c::checksum(payload))[..], payload].concat();
    assert_eq!(record::verify(&forged), Err(Refusal::Fidelity));
}

/// With a dim of 1 a scale is as long as an element: the longest record is not the raw one.
#[test]
fn the_longest_record_is_known_for_every_dim() {
    let payload = |dim| {
        let geometry = plain(1, dim, 4);
        let lengths = Codec::ALL.map(|codec| geometry.payload_bytes(codec.form(false)));
        let first = geometry.payload_bytes(Codec::Int8MeanHad.form(true));
        (lengths, first, geometry.record_bytes_max() - HEADER_BYTES)
    };
    // Codec 4 takes only blocks that it shortens.
    assert_eq!(payload(1), ([Some(8), Some(7), Some(12), None], None, 12));
    assert_eq!(payload(2), ([Some(16), Some(15), Some(16), None], None, 16));
    let (mean, exact) = (64 + 2, 128);
    let turned = 264 + mean;
    assert_eq!(
        payload(64),
        ([Some(512), Some(511), Some(264), Some(turned)], Some(turned + exact), 512)
    );
}
