//! Owns regions whose memory is written at random while members work on them, and the fuzz target region, which says where and what.

#[macro_use]
#[path = "delegated.rs"]
mod delegated;
#[expect(dead_code, reason = "others use the rest")]
#[path = "../../../core/tests/support/records.rs"]
mod records;

use std::fs::remove_file;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tierkv_core::crc32c;
use tierkv_core::error::Result;
use tierkv_core::key::RecordKey;
use tierkv_core::record;
use tierkv_shm::flushes::{Label, Scope};
use tierkv_shm::layout::Layout;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, map};
use tierkv_shm::region::{Offer, Pins, Region};
use tierkv_shm::visibility::{Fabric, LastOwner};

use self::records::header;
use super::options::OPTIONS;
use super::random::Random;

/// Of these records all operations are.
const KEYS: u64 = 12;
/// Bytes of an operation in the input: who and what, a number, and what is written where and when.
const STEP: usize = 13;
/// Operations of one input.
const STEPS_MAX: usize = 300;

/// Key of a record.
pub fn key(number: u64) -> RecordKey {
    let mut block_hash = [2; 32];
    block_hash[0] = (number % 3) as u8;
    block_hash[8..16].copy_from_slice(&number.to_le_bytes());
    RecordKey { namespace: [1; 32], block_hash, group: 3, shard: 0 }
}

/// The sound record of a number.
pub fn content(number: u64) -> Vec<u8> {
    let mut random = Random::new(number << 8);
    let mut payload = vec![0; 1 + random.below(3 * OPTIONS.chunk_bytes) as usize];
    for byte in &mut payload {
        *byte = random.below(256) as u8;
    }
    let header = header(&key(number), payload.len());
    [&header.encode(crc32c::checksum(&payload))[..], &payload].concat()
}

/// A word that is written at a place after so many accesses.
#[derive(Clone, Copy)]
struct Scribble {
    after: u64,
    at: u64,
    word: u64,
}

/// Memory that is written in the middle of a member's operation.
struct Scribbled {
    memory: Arc<Mapping>,
    /// The memories of all members, whose locks they would take at their next poll.
    all: Vec<Arc<Mapping>>,
    next: Arc<Mutex<Option<Scribble>>>,
}

impl Scribbled {
    fn access(&self) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *next {
            Some(Scribble { after: 0, at, word }) => {
                self.memory.store(*at, *word);
                *next = None;
            }
            Some(scribble) => scribble.after -= 1,
            None => {}
        }
    }
}

impl Fabric for Scribbled {
    delegated!();
    fn load(&self, at: u64) -> u64 {
        self.access();
        self.memory.load(at)
    }
    fn store(&self, at: u64, word: u64) {
        self.access();
        self.memory.store(at, word);
    }
    fn copy_in(&self, at: u64, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.memory.copy_in(at, first);
        self.access();
        self.memory.copy_in(at + first.len() as u64, second);
    }
    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        self.access();
        self.memory.copy_out(at, bytes);
    }
    fn lock(&self) -> Result<LastOwner> {
        // A word that names a living member which does not have the lock lasts until that member comes; all come all the time.
        for memory in self.all.iter().filter(|memory| memory.try_lock()) {
            memory.unlock();
        }
        self.memory.lock()
    }
    fn try_lock(&self) -> bool {
        self.memory.try_lock()
    }
    fn repaired(&self) {
        self.memory.repaired();
    }
    fn unlock(&self) {
        self.access();
        self.memory.unlock();
    }
}

/// The fuzz target region: members store, read, flush and leave, while the input's words are written wherever it says, also in the
/// middle of an operation. Nothing panics, and no byte that is read is wrong.
///
/// # Panics
/// When one is, or on what the target is there to find.
pub fn region(input: &[u8]) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(format!("/dev/shm/tierkv-scribbled-{}-{run}", std::process::id()));
    let options = Options { max_bytes: 32 * OPTIONS.chunk_bytes, ..OPTIONS };
    let opened = [(); 3].map(|()| map(&path, &options));
    let _ = remove_file(&path);
    let opened = opened.map(|opened| opened.expect("room for a small region"));
    let bytes = opened[0].1;
    let all = opened.map(|(memory, _)| Arc::new(memory)).to_vec();
    let next = Arc::new(Mutex::new(None));
    let join = |who: usize| {
        let (memory, all, next) = (Arc::clone(&all[who]), all.clone(), Arc::clone(&next));
        Region::join(Scribbled { memory, all, next }, bytes)
    };
    let mut regions = [0, 1, 2].map(|who| join(who).expect("it is whole"));
    let layout = *regions[0].layout();
    for step in input.as_chunks::<STEP>().0.iter().take(STEPS_MAX) {
        let [what, number, after, word @ .., _, _] = *step;
        let at = u16::from_le_bytes([step[11], step[12]]);
        let scribble = scribble_of(&layout, after, at, u64::from_le_bytes(word));
        *next.lock().unwrap_or_else(PoisonError::into_inner) = scribble;
        let who = usize::from(what >> 4) % regions.len();
        if what & 15 == 15 {
            // Whoever maps the region anew may find a damaged superblock.
            if let Ok(region) = join(who) {
                regions[who] = region;
            }
            continue;
        }
        operate(&regions[who], what & 15, u64::from(number) % KEYS);
    }
}

/// Where and what is written. Words of records are mixed, because the fuzzer would learn to forge their checksums, and whoever may
/// write the region may do that.
fn scribble_of(layout: &Layout, after: u8, at: u16, word: u64) -> Option<Scribble> {
    let words = layout.region_bytes / 8;
    let index_words = layout.payload_at / 8;
    // One in four anywhere; the index is small beside the records.
    let place = if at.is_multiple_of(4) { words } else { index_words };
    let at = u64::from(at) * 7919 % place * 8;
    let word = if at < layout.payload_at { word } else { Random::new(word).next() };
    (after < 200).then_some(Scribble { after: after.into(), at, word })
}

/// Does everything once with a region that is written at will.
pub fn operates<F: Fabric>(region: &Region<F>) {
    (0..15).for_each(|what| operate(region, what, u64::from(what) % 4));
}

fn operate<F: Fabric>(region: &Region<F>, what: u8, number: u64) {
    // An error is as good as a miss.
    match what {
        0..4 => store(region, number),
        4..8 => _ = read(region, number),
        8 => _ = region.remove(&key(number)),
        9 => _ = region.look_up(&[key(number), key(number + 1)]),
        10 => {
            let scope = Scope { tenant: (number > 2).then_some(number), ..Scope::default() };
            _ = region.flush(&scope);
        }
        11 => _ = region.news(number),
        12 => {
            _ = region.name(&[9; 32], &[8; 32]);
            _ = region.flush_model(&Scope::default(), &[8; 32]);
        }
        13 => {
            let pins = region.pin_each((0..KEYS).map(key));
            store(region, number);
            _ = pins.map(Pins::release);
        }
        _ => {
            _ = region.fill();
            _ = region.audit();
            _ = region.discard(&key(number));
            _ = region.look_up_now([key(number)].into_iter());
        }
    }
}

pub fn store<F: Fabric>(region: &Region<F>, number: u64) {
    let (bytes, label) = (content(number), Label { tenant: number, ..Label::default() });
    if let Ok(Offer::Wanted(reservation)) = region.reserve(&key(number), bytes.len() as u64, label)
    {
        reservation.write(0, &bytes).expect("it fits");
        _ = reservation.publish();
    }
}

/// Reads a record as all who use one: what was copied is checked.
fn read<F: Fabric>(region: &Region<F>, number: u64) -> bool {
    let Ok(Some(pinned)) = region.pin(&key(number)) else { return false };
    let mut bytes = vec![0; pinned.bytes() as usize];
    pinned.read(0, &mut bytes).expect("within the record");
    let sound = record::verify(&bytes).is_ok_and(|header| key(number).is_of(&header));
    assert!(!sound || bytes == content(number), "wrong bytes of {number}");
    sound
}
