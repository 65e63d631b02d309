//! Owns the proof of the way out and in: slot to record to slot, bounded, and nothing wrong ever decoded.

#![expect(clippy::cast_possible_truncation, clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tierkv_core::arena::{Arena, Options};
use tierkv_core::codec::Codec;
use tierkv_core::crc32c;
use tierkv_core::error::Code;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::{Inbox, Reassembly, Wanted};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::pool::Pool;
use tierkv_core::record::{self, CLASS_KV, HEADER_BYTES, Header, LAYOUT_CANONICAL};
use tierkv_core::slots::Lease;

const NAMESPACE: [u8; 32] = [7; 32];
const HASH: [u8; 32] = [8; 32];

fn spec() -> Spec {
    Spec {
        group: 0x0102,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens: 16,
        layers: 2,
        heads: 2,
        dim_k: 64,
        dim_v: 64,
        layer_bytes: 8192 + 512,
        key_offset: 0,
        value_offset: 4096,
        head_stride: 128,
        token_stride: 256,
    }
}

/// Instead of the length of chunks.
const STANDING: usize = 0;

fn fidelity_of(codec: Codec) -> u8 {
    (0..=u8::MAX).find(|fidelity| codec.fits_fidelity(*fidelity)).unwrap()
}

struct Bench {
    arena: Arc<Arena>,
    geometry: Arc<Geometry>,
    outbox: Outbox,
    inbox: Inbox,
}

impl Bench {
    fn new() -> Self {
        let geometry = Arc::new(Geometry::new(spec()).unwrap());
        let slot_bytes = geometry.slot_bytes() as u64;
        let arena =
            Arena::create(&Options { slot_bytes, slot_count: 4, dir: None, label: 1 }).unwrap();
        let arena = Arc::new(arena);
        arena.prefault().unwrap();
        while arena.status().touched_slots < 4 {
            std::thread::yield_now();
        }
        Self { arena, geometry, outbox: Outbox::default(), inbox: Inbox::default() }
    }

    fn lease(&self) -> Lease {
        self.arena.slots().lease(1, 1)[0]
    }

    fn identity() -> Identity {
        Identity {
            shard: 1,
            shard_count: 2,
            end_tokens: 1 << 33,
            namespace: NAMESPACE,
            block_hash: HASH,
            parent_hash: [9; 32],
        }
    }

    fn wanted() -> Wanted {
        let mut packed_key = [8; 36];
        packed_key[32..].copy_from_slice(&[0x02, 0x01, 1, 0]);
        Wanted { fidelity: 0, namespace: NAMESPACE, packed_key }
    }

    /// A slot full of noise, and the record of its page.
    fn record(&self) -> (Lease, Vec<u8>) {
        self.record_of(Codec::Raw)
    }

    fn record_of(&self, codec: Codec) -> (Lease, Vec<u8>) {
        let lease = self.lease();
        let noise = (0..self.geometry.slot_bytes()).map(|at| (at * 7 % 251) as u8);
        self.arena.poke(lease.slot, &noise.collect::<Vec<_>>()).unwrap();
        let codec = (codec, fidelity_of(codec));
        let record =
            self.outbox.encode(&self.arena, lease, &self.geometry, codec, &Self::identity());
        (lease, record.unwrap().to_vec())
    }

    fn begin(&self, lease: Lease, wanted: Wanted, bytes: usize) -> Arc<Reassembly> {
        let geometry = &self.geometry;
        Arc::new(self.inbox.begin(&self.arena, lease, geometry, wanted, bytes as u64).unwrap())
    }

    /// What the receiver says to `record`, arriving in chunks of `step`, or where it stands; and the slot afterwards.
    fn receive(
        &self,
        record: &[u8],
        wanted: Wanted,
        step: usize,
    ) -> (Result<Header, String>, Vec<u8>) {
        let lease = self.lease();
        self.arena.poke(lease.slot, &vec![0xEE; self.geometry.slot_bytes()]).unwrap();
        let reassembly = self.begin(lease, wanted, record.len());
        let outcome = match step {
            STANDING => reassembly.take_standing(record),
            step => reassembly.take(record, step),
        };
        let outcome = outcome.map_err(|error| error.to_string());
        drop(reassembly);
        let slot = self.arena.peek(lease.slot).unwrap();
        self.arena.slots().release(lease).unwrap();
        (outcome, slot)
    }
}

#[test]
fn a_page_travels_and_comes_back() {
    let bench = Bench::new();
    let (lease, record) = bench.record();
    let header = record::verify(&record).unwrap();
    assert_eq!(header.end_tokens, 1 << 33);
    assert_eq!((header.group, header.shard, header.shard_count), (0x0102, 1, 2));
    let sent = bench.arena.peek(lease.slot).unwrap();
    for step in [1, 191, 193, 1000, record.len(), STANDING] {
        let (outcome, slot) = bench.receive(&record, Bench::wanted(), step);
        assert_eq!(outcome.unwrap(), header);
        for layer in [0, spec().layer_bytes as usize] {
            assert_eq!(slot[layer..layer + 8192], sent[layer..layer + 8192]);
            assert_eq!(slot[layer + 8192..layer + 8704], [0xEE; 512], "padding is left alone");
        }
    }
    assert_eq!(bench.inbox.live(), (0, 0));
    assert_eq!(bench.outbox.live(), (0, 0));
}

/// Writes bytes of a payload and takes them back, over and over.
fn flips(record: &[AtomicU8], ends: &AtomicBool) {
    let mut at = HEADER_BYTES;
    while !ends.load(Ordering::Relaxed) {
        at = HEADER_BYTES + (at * 7919 + 13) % (record.len() - HEADER_BYTES);
        let before = record[at].fetch_xor(0x55, Ordering::Relaxed);
        (0..at % 2000).for_each(|_| std::hint::spin_loop());
        record[at].store(before, Ordering::Relaxed);
        (0..at % 5000).for_each(|_| std::hint::spin_loop());
    }
}

#[test]
fn f154_a_standing_record_that_is_written_meanwhile_is_refused_or_right() {
    let bench = Bench::new();
    for codec in Codec::ALL {
        let (lease, record) = bench.record_of(codec);
        bench.arena.slots().release(lease).unwrap();
        let wanted = Wanted { fidelity: fidelity_of(codec), ..Bench::wanted() };
        let (_, expected) = bench.receive(&record, wanted.clone(), STANDING);
        let shared: Vec<AtomicU8> = record.iter().map(|byte| AtomicU8::new(*byte)).collect();
        // SAFETY: of that length; others write it meanwhile, as they may a shared region.
        let standing = unsafe { std::slice::from_raw_parts(shared.as_ptr().cast(), shared.len()) };
        let (mut sound, mut refused) = (0, 0);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| flips(&shared, &ends));
            let (mut wrong, mut rounds) = (false, 0);
            // As often as needed to see both outcomes, on a busy machine, too.
            while !wrong && rounds < 200_000 && (rounds < 2000 || sound == 0 || refused == 0) {
                let (outcome, slot) = bench.receive(standing, wanted.clone(), STANDING);
                let is_sound = outcome.is_ok();
                (sound, refused) = (sound + u32::from(is_sound), refused + u32::from(!is_sound));
                wrong = is_sound && slot != expected;
                rounds += 1;
            }
            ends.store(true, Ordering::Relaxed);
            assert!(!wrong, "{codec:?}: a wrong page with a right checksum");
        });
        assert!(sound > 0 && refused > 0, "{codec:?}: {sound} sound, {refused} refused");
    }
}

#[test]
fn a_record_that_stands_becomes_the_page_that_its_pieces_make() {
    let bench = Bench::new();
    for codec in Codec::ALL {
        let (lease, record) = bench.record_of(codec);
        let wanted = Wanted { fidelity: fidelity_of(codec), ..Bench::wanted() };
        let (header, slot) = bench.receive(&record, wanted.clone(), STANDING);
        assert_eq!(header.unwrap(), record::verify(&record).unwrap());
        assert!(slot == bench.receive(&record, wanted.clone(), 1000).1, "{codec:?}");
        for at in [0, 188, HEADER_BYTES, record.len() / 2, record.len() - 1] {
            let mut bytes = record.clone();
            bytes[at] ^= 0x10;
            let outcome = |step| bench.receive(&bytes, wanted.clone(), step).0;
            assert!(outcome(STANDING).unwrap_err().starts_with("BAD_RECORD: "), "{codec:?}");
            assert_eq!(outcome(STANDING), outcome(4096), "{codec:?}");
        }
        bench.arena.slots().release(lease).unwrap();
    }
}

#[test]
fn a_slot_that_another_had_shows_nothing_of_it() {
    let bench = Bench::new();
    let (lease, record) = bench.record();
    bench.arena.slots().release(lease).unwrap();
    // Whatever stood where heads stand is gone when a page is announced; what lies between is no tenant's.
    let restored = |before: u8| {
        let lease = bench.lease();
        let layer = [&[before; 8192][..], &[0; 512]].concat();
        bench.arena.poke(lease.slot, &[&layer[..], &layer].concat()).unwrap();
        bench.begin(lease, Bench::wanted(), record.len()).take(&record, record.len()).unwrap();
        let slot = bench.arena.peek(lease.slot).unwrap();
        bench.arena.slots().release(lease).unwrap();
        slot
    };
    assert!(restored(0x5E) == restored(0), "of another tenant");
    // Nor does an arena of one before it: each is memory of its own.
    drop(bench);
    let fresh = Bench::new();
    for slot in 0..4 {
        assert!(fresh.arena.peek(slot).unwrap().iter().all(|byte| *byte == 0), "slot {slot}");
    }
}

#[test]
fn what_was_not_asked_for_is_refused() {
    let bench = Bench::new();
    let (_, record) = bench.record();
    let wanted = Bench::wanted();
    let other_key = |at: usize| {
        let mut packed_key = wanted.packed_key;
        packed_key[at] ^= 1;
        Wanted { packed_key, ..wanted.clone() }
    };
    let cases = [
        ("namespace", Wanted { namespace: [0; 32], ..wanted.clone() }),
        ("fidelity", Wanted { fidelity: 2, ..wanted.clone() }),
        ("block hash", other_key(0)),
        ("block hash", other_key(31)),
        ("group", other_key(32)),
        ("group", other_key(33)),
        ("shard", other_key(34)),
        ("shard", other_key(35)),
    ];
    for (field, asked) in cases {
        let (outcome, _) = bench.receive(&record, asked, 4096);
        assert_eq!(outcome, Err(format!("BAD_RECORD: its {field} is not the one asked for")));
    }
}

#[test]
fn what_does_not_verify_is_refused() {
    let bench = Bench::new();
    let (_, record) = bench.record();
    for at in [0, 5, 100, 188, HEADER_BYTES, 9000, record.len() - 1] {
        let mut bytes = record.clone();
        bytes[at] ^= 0x10;
        let (outcome, _) = bench.receive(&bytes, Bench::wanted(), 4096);
        assert!(outcome.unwrap_err().starts_with("BAD_RECORD: "));
    }
}

/// Sound records of another engine's shape, under the very key that was asked for.
#[test]
fn another_geometry_is_refused() {
    let bench = Bench::new();
    let (_, record) = bench.record();
    let header = record::verify(&record).unwrap();
    let of = |edit: &dyn Fn(&mut Header)| {
        let mut header = header.clone();
        edit(&mut header);
        [&header.encode(crc32c::checksum(&record[HEADER_BYTES..])), &record[HEADER_BYTES..]]
            .concat()
    };
    let cases = [
        ("class", of(&|header| header.record_class = 2)),
        (
            "layout",
            of(&|header| {
                (header.layout, header.parts, header.heads) = (1, 0, 0);
                (header.dim_k, header.dim_v) = (0, 0);
            }),
        ),
        ("dtype", of(&|header| header.dtype = 2)),
        ("parts", of(&|header| (header.parts, header.dim_k, header.dim_v) = (1, 128, 0))),
        ("tokens", of(&|header| (header.tokens, header.heads) = (8, 4))),
        ("layers", of(&|header| (header.layers, header.heads) = (1, 4))),
        ("heads", of(&|header| (header.heads, header.dim_k, header.dim_v) = (4, 32, 32))),
        ("K dim", of(&|header| (header.dim_k, header.dim_v) = (32, 96))),
    ];
    for (field, record) in cases {
        assert!(record::verify(&record).is_ok(), "{field}: sound by itself");
        let (outcome, _) = bench.receive(&record, Bench::wanted(), 4096);
        assert_eq!(outcome, Err(format!("BAD_RECORD: its {field} is not the engine's")));
    }
}

#[test]
fn no_piece_comes_twice_or_runs_over() {
    let bench = Bench::new();
    let (_, record) = bench.record();
    let reassembly = bench.begin(bench.lease(), Bench::wanted(), record.len());
    drop(reassembly.chunk(100, 100).unwrap());
    for (offset, bytes) in [(100, 100), (150, 10), (0, 101), (record.len() as u64, 1), (0, 0)] {
        assert_eq!(reassembly.chunk(offset, bytes).unwrap_err().code, Code::BadRecord);
    }
    assert!(reassembly.chunk(0, record.len() + 1).is_err());
    for bytes in [&record[..], &record[1..], &[]] {
        assert_eq!(reassembly.take_standing(bytes).unwrap_err().code, Code::BadRecord);
    }
}

#[test]
fn only_lengths_and_slots_that_can_be_are_opened() {
    let bench = Bench::new();
    let lease = bench.lease();
    let open = |lease, geometry: &Arc<Geometry>, bytes| {
        bench.inbox.begin(&bench.arena, lease, geometry, Bench::wanted(), bytes).unwrap_err()
    };
    let longest = bench.geometry.record_bytes_max() as u64;
    for bytes in [0, 191, longest + 1, u64::MAX] {
        assert_eq!(open(lease, &bench.geometry, bytes).code, Code::BadRecord);
    }
    let stale = Lease { generation: lease.generation + 1, ..lease };
    assert_eq!(open(stale, &bench.geometry, longest).code, Code::BadArgument);
    let large = Spec { layers: 3, ..spec() };
    let large = Arc::new(Geometry::new(large).unwrap());
    let error = open(lease, &large, large.record_bytes_max() as u64);
    assert!(error.text.contains("does not fit the arena's slots"), "{error}");

    let codec = (Codec::Raw, 0);
    let encode = |lease, geometry: &Geometry, identity: &Identity| {
        bench.outbox.encode(&bench.arena, lease, geometry, codec, identity).unwrap_err().code
    };
    let identity = Bench::identity();
    assert_eq!(encode(stale, &bench.geometry, &identity), Code::BadArgument);
    assert_eq!(encode(lease, &large, &identity), Code::BadArgument);
    let beyond = Identity { shard: 2, ..identity };
    assert_eq!(encode(lease, &bench.geometry, &beyond), Code::BadArgument);
}

#[test]
fn a_pool_is_bounded_and_reuses() {
    let pool = Pool::new("test", 1000, 500);
    let first = pool.take(400).unwrap();
    let second = pool.take(400).unwrap();
    let error = pool.take(201).unwrap_err();
    assert_eq!(error.code, Code::NoMemory);
    assert_eq!(error.text, "201 bytes for the test: 800 of 1000 are in use");
    assert_eq!(pool.live(), (2, 800));

    let address = first.as_ptr();
    drop(first);
    assert_eq!(pool.take(400).unwrap().as_ptr(), address, "the same memory again");
    drop(second);
    assert_eq!(pool.live(), (0, 0));
}

#[test]
fn a_pool_keeps_the_length_in_use_and_lets_others_go() {
    const LARGE: usize = 256 << 10;
    let pool = Pool::new("test", 16 * LARGE, 2 * LARGE);
    let old = pool.take(LARGE / 2).unwrap();
    let mut large: Vec<_> = (0..4).map(|_| pool.take(LARGE).unwrap()).collect();
    for buffer in &mut large {
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
    }
    drop((old, large));
    let again: Vec<_> = (0..3).map(|_| pool.take(LARGE).unwrap()).collect();
    let kept = again.iter().filter(|buffer| buffer[0] == 7).count();
    assert_eq!(kept, 2, "as many as may be idle are there again, the third is new");
    assert!(pool.take(LARGE / 2).unwrap().iter().all(|byte| *byte == 0));
}
