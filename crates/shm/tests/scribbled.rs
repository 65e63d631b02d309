//! Tests members of a region whose memory is written at random meanwhile: errors and misses, and never a panic or a wrong byte.
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;
#[path = "support/scribbled.rs"]
mod scribbled;

use std::fs::{read_dir, remove_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use options::OPTIONS;
use random::Random;
use tierkv_core::arena::{self, Arena};
use tierkv_core::codec::Codec;
use tierkv_core::error::Code;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::{Inbox, Wanted};
use tierkv_core::lane::client::{Content, Outgoing, Target, Targets};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};
use tierkv_core::slots::Lease;
use tierkv_core::store::ItemStatus;
use tierkv_shm::desk::{Answer, Desk, Outcome, Work};
use tierkv_shm::flushes::{Label, Scope};
use tierkv_shm::layout::{
    DIRTY_AT, ENTRY_BYTES, FLUSHES_AT, HAND_AT, LINE_BYTES, LOCK_AT, LOCK_BYTES, MEMBERS_AT,
};
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, map, open};
use tierkv_shm::region::{Offer, Region};
use tierkv_shm::visibility::Fabric;

fn is_long() -> bool {
    std::env::var_os("TIERKV_TEST_LONG").is_some()
}

fn seed() -> u64 {
    let named = std::env::var("TIERKV_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = named.unwrap_or_else(|| u64::from(std::process::id()));
    let text = format!("TIERKV_TEST_SEED={seed}\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    seed
}

#[test]
fn f154_words_written_in_the_middle_of_operations_cost_records_and_nothing_else() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/region");
    let mut files: Vec<_> = read_dir(corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "the fuzz target has a corpus");
    for file in &files {
        scribbled::region(&std::fs::read(file).unwrap());
    }
    let mut random = Random::new(seed());
    for _ in 0..if is_long() { 100_000 } else { 500 } {
        let words = (0..200).map(|_| random.next());
        scribbled::region(&words.flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    }
}

/// A file in memory, gone in the end.
struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        let _ = remove_file(&self.0);
    }
}

fn name(of: &str) -> Name {
    Name(format!("/dev/shm/tierkv-test-{of}-{}", std::process::id()).into())
}

fn is_there(region: &Region<Mapping>) -> bool {
    region.look_up(&[scribbled::key(1)]).unwrap()[0]
}

#[test]
fn f154_whatever_is_written_over_the_lock_leads_nobody_elsewhere() {
    let name = name("lock-word");
    let regions = [(); 2].map(|()| open(&name.0, &OPTIONS).unwrap());
    let (writer, _) = map(&name.0, &OPTIONS).unwrap();
    let bytes = scribbled::content(1);
    assert!(regions[0].put(&scribbled::key(1), &bytes).is_ok());
    let mut random = Random::new(seed());
    let owners = (0..70_u64).chain([u64::MAX, 1 << 31, 1 << 31 | 1, 1 << 40]);
    for word in owners.chain((0..200).map(|_| random.next()).collect::<Vec<_>>()) {
        for at in (LOCK_AT..LOCK_AT + LOCK_BYTES).step_by(8) {
            writer.store(at, word);
        }
        // A word that names a living member lasts until that member comes, as all do at each poll for flushes.
        for region in &regions {
            _ = region.look_up_now([scribbled::key(1)].into_iter());
        }
        assert!(regions.iter().all(is_there), "{word:x}");
    }
    // In the middle of a turn: the owner leaves it to the next one to look after the region.
    regions[0].fabric().lock().unwrap();
    writer.store(LOCK_AT, 0);
    regions[0].fabric().unlock();
    assert_eq!(regions[1].look_up_now([scribbled::key(1)].into_iter()), None, "it is in doubt");
    assert!(regions.iter().all(is_there));
}

#[test]
fn f154_no_value_of_any_word_of_an_entry_or_of_the_counters_ends_anybody() {
    let name = name("entries");
    let regions = [(); 2].map(|()| open(&name.0, &OPTIONS).unwrap());
    let (writer, _) = map(&name.0, &OPTIONS).unwrap();
    let layout = *regions[0].layout();
    let words = [0, 1, 2, 3, 4, 5, 63, 64, 200, layout.chunks, layout.entries, 1 << 40, 1 << 63];
    let words = words.into_iter().chain([layout.chunks - 1, u64::MAX, u64::MAX - 1]);
    let heads = (HAND_AT..FLUSHES_AT + 2 * LINE_BYTES).step_by(8).chain([MEMBERS_AT + 5 * 64]);
    let fields: Vec<_> = (0..ENTRY_BYTES).step_by(8).collect();
    let mut number = 100;
    for word in words {
        for at in fields.iter().copied().map(Err).chain(heads.clone().map(Ok)) {
            // Of an entry that is filled, of one that is read, and of one that is neither.
            let (length, label) = (5000, Label::default());
            // Others each time: one that a living member seems to read stays until that member leaves.
            number += 3;
            let Offer::Wanted(filling) =
                regions[0].reserve(&scribbled::key(number), length, label).unwrap()
            else {
                panic!("nothing is left of the entry before {word:x} at {at:?}")
            };
            scribbled::store(&regions[0], number + 1);
            scribbled::store(&regions[0], number + 2);
            let pinned = regions[1].pin(&scribbled::key(number + 1)).unwrap();
            let is_used = |index: &u64| writer.load(layout.entry_at(*index)) > 1;
            let write = |at| writer.store(at, word);
            regions.iter().for_each(scribbled::operates);
            match at {
                Ok(head) => write(head),
                Err(field) => (0..layout.entries)
                    .filter(is_used)
                    .for_each(|index| write(layout.entry_at(index) + field)),
            }
            regions.iter().for_each(scribbled::operates);
            // As after a death: the next owner repairs.
            writer.store(DIRTY_AT, 1);
            regions.iter().for_each(scribbled::operates);
            _ = filling.publish().unwrap();
            drop(pinned);
            writer.store(DIRTY_AT, 1);
            _ = regions[0].fill().unwrap();
            let audit = regions[0].audit().unwrap();
            assert!(audit.is_sound(), "{word:x} at {at:?}: {audit:?}");
            _ = regions[0].flush(&Scope::default()).unwrap();
        }
    }
    // What goes on in it is whole again.
    let bytes = scribbled::content(1);
    assert!(regions[0].put(&scribbled::key(1), &bytes).is_ok() && is_there(&regions[1]));
}

/// What a member of the tests works with: pages in an arena, and a desk.
struct Member {
    desk: Desk,
    outcomes: Receiver<Outcome>,
    arena: Arc<Arena>,
    inbox: Arc<Inbox>,
    outbox: Arc<Outbox>,
    geometry: Arc<Geometry>,
    slot: Lease,
}

const NAMESPACE: [u8; 32] = [7; 32];
const RECORDS: u64 = 16;
const CODECS: [Codec; 2] = [Codec::Raw, Codec::Int8];
const GEOMETRY: Spec = Spec {
    group: 1,
    record_class: CLASS_KV,
    layout: LAYOUT_CANONICAL,
    dtype: 1,
    tokens: 16,
    layers: 2,
    heads: 4,
    dim_k: 64,
    dim_v: 64,
    layer_bytes: 16384 + 512,
    key_offset: 0,
    value_offset: 8192,
    head_stride: 128,
    token_stride: 512,
};

fn packed(number: u64) -> [u8; 36] {
    let mut packed = [0; 36];
    packed[..8].copy_from_slice(&number.to_le_bytes());
    packed[32] = 1;
    packed
}

impl Member {
    fn new(path: &Path) -> Self {
        let (sink, outcomes) = channel();
        let tell = move |_, outcome| sink.send(outcome).unwrap();
        let desk = Desk::open(path, &OPTIONS_OF_DESKS, false, Arc::new(tell)).unwrap();
        let geometry = Arc::new(Geometry::new(GEOMETRY).unwrap());
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = arena::Options { slot_bytes, slot_count: 2, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).unwrap());
        arena.prefault().unwrap();
        while arena.status().touched_slots < 2 {
            std::thread::yield_now();
        }
        let slot = arena.slots().lease(1, 1)[0];
        let (inbox, outbox) = (Arc::default(), Arc::default());
        Self { desk, outcomes, arena, inbox, outbox, geometry, slot }
    }

    fn fidelity(codec: Codec) -> u8 {
        (0..=u8::MAX).find(|fidelity| codec.fits_fidelity(*fidelity)).unwrap()
    }

    /// Stores a record of the number's page.
    fn content(&self, number: u64, codec: Codec) -> Content {
        let mut random = Random::new(number << 16 | u64::from(codec.id()));
        // Ordinary numbers of bf16.
        let elements =
            (0..self.geometry.slot_bytes() / 2).map(|_| 0x3F00 | random.below(256) as u16);
        let page: Vec<u8> = elements.flat_map(u16::to_le_bytes).collect();
        self.arena.poke(self.slot.slot, &page).unwrap();
        let mut block_hash = [0; 32];
        block_hash[..8].copy_from_slice(&number.to_le_bytes());
        let (shard, shard_count, end_tokens) = (0, 1, 64);
        let (namespace, parent_hash) = (namespace_of(codec), [9; 32]);
        let identity =
            Identity { shard, shard_count, end_tokens, namespace, block_hash, parent_hash };
        let codec = (codec, Self::fidelity(codec));
        let deferred =
            self.outbox.defer(&self.arena, self.slot, &self.geometry, codec, identity).unwrap();
        Content::Deferred(Arc::new(deferred))
    }

    fn erased(&self) {
        self.arena.poke(self.slot.slot, &vec![0xEE; self.geometry.slot_bytes()]).unwrap();
    }

    /// The slot after an undisturbed restore of the number's record.
    fn expected(&self, number: u64, codec: Codec) -> Vec<u8> {
        let record = self.content(number, codec).make().unwrap();
        self.erased();
        let (fidelity, namespace) = (Self::fidelity(codec), namespace_of(codec));
        let wanted = Wanted { fidelity, namespace, packed_key: packed(number) };
        let (arena, bytes) = (&self.arena, record.bytes());
        let begun = self.inbox.begin(arena, self.slot, &self.geometry, wanted, bytes.len() as u64);
        Arc::new(begun.unwrap()).take(bytes, 4096).unwrap();
        self.arena.peek(self.slot.slot).unwrap()
    }

    fn run(&self, work: Work) -> Option<Vec<u8>> {
        self.desk.begin(work).unwrap();
        match self.outcomes.recv_timeout(Duration::from_secs(60)).expect("it is answered") {
            Ok((Answer::Done(statuses, ..), _)) => Some(statuses),
            Ok(_) => None,
            Err(error) => {
                assert_eq!(error.code, Code::ArenaFailed, "{}", error.text);
                assert!(!error.text.contains("damaged"), "a panic: {}", error.text);
                None
            }
        }
    }

    fn store(&self, number: u64, codec: Codec) -> bool {
        let record = Outgoing { packed_key: packed(number), content: self.content(number, codec) };
        let work = Work::Store(Label::default(), namespace_of(codec), vec![record]);
        self.run(work) == Some(vec![ItemStatus::Accepted as u8])
    }

    /// Whether the record was restored; the slot's bytes are then right.
    fn restores(&self, number: u64, codec: Codec, expected: &[u8]) -> bool {
        self.erased();
        let (arena, inbox) = (Arc::clone(&self.arena), Arc::clone(&self.inbox));
        let geometry = Arc::clone(&self.geometry);
        let items = vec![Target { packed_key: packed(number), lease: self.slot, geometry }];
        let (fidelity, namespace) = (Self::fidelity(codec), namespace_of(codec));
        let targets =
            Targets { namespace, fidelity, arena, inbox, items, trace: None, stall: None };
        let is_there = self.run(Work::Fetch(targets)) == Some(vec![ItemStatus::Accepted as u8]);
        let slot = self.arena.peek(self.slot.slot).unwrap();
        assert!(!is_there || slot == expected, "wrong bytes of {number}, {codec:?}");
        is_there
    }

    /// As all members do all the time.
    fn polls(&self) {
        self.run(Work::News(0));
    }
}

const OPTIONS_OF_DESKS: Options = Options { max_bytes: 1 << 20, ..OPTIONS };

/// Readers tell a namespace's codecs by length.
fn namespace_of(codec: Codec) -> [u8; 32] {
    let mut namespace = NAMESPACE;
    namespace[0] = codec.id();
    namespace
}

/// Writes words of all the region, of records more than of the index, and takes every other one back at once.
fn scribbles(memory: &Mapping, bytes: u64, seed: u64, ends: &AtomicBool) {
    let mut random = Random::new(seed);
    while !ends.load(Ordering::Relaxed) {
        for _ in 0..20 {
            let at = random.below(bytes / 8) * 8;
            let (before, word) = (memory.load(at), random.next());
            memory.store(at, if random.below(2) == 0 { word } else { random.below(64) });
            if random.below(2) == 0 {
                std::hint::spin_loop();
                memory.store(at, before);
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(300)));
    }
}

#[test]
fn f154_a_desk_restores_right_bytes_or_none_from_a_region_that_is_written_at_random() {
    let name = name("scribbled");
    let member = Member::new(&name.0);
    let other = open(&name.0, &OPTIONS_OF_DESKS).unwrap();
    let bytes = other.layout().region_bytes;
    let all = (0..RECORDS).flat_map(|number| CODECS.map(|codec| (number, codec)));
    let all: Vec<_> =
        all.map(|(number, codec)| (number, codec, member.expected(number, codec))).collect();
    let (ends, seed) = (AtomicBool::new(false), seed());
    let (mut restored, mut missed) = (0, 0);
    std::thread::scope(|scope| {
        let (memory, _) = map(&name.0, &OPTIONS_OF_DESKS).unwrap();
        scope.spawn(|| scribbles(&{ memory }, bytes, seed, &ends));
        // The other member polls, so that a lock that names it is given up.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = other.news(0);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..if is_long() { 2000 } else { 20 } {
                for (number, codec, expected) in &all {
                    member.store(*number, *codec);
                    let is_restored = member.restores(*number, *codec, expected);
                    (restored, missed) =
                        if is_restored { (restored + 1, missed) } else { (restored, missed + 1) };
                }
                member.polls();
            }
        }));
        ends.store(true, Ordering::Relaxed);
        work.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let text = format!("{restored} restored, {missed} missed\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    assert!(restored > 0, "some are whole");
    assert!(missed > 0, "some are not");
}
