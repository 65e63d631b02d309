//! Tests what a full region evicts for a record, how much of it a turn with the lock reads, and how long its probes are.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;

use std::fs::remove_file;

use counting::Counting;
use options::OPTIONS;
use random::Random;
use tierkv_core::key::RecordKey;
use tierkv_core::limits::SHM_EVICT_LOOKS_MAX;
use tierkv_shm::flushes::Label;
use tierkv_shm::opening::{Options, map};
use tierkv_shm::region::{Offer, Region};

const CHUNK: u64 = OPTIONS.chunk_bytes;

fn key(number: u64) -> RecordKey {
    let mut block_hash = [0; 32];
    block_hash[..8].copy_from_slice(&Random::new(number).below(u64::MAX).to_le_bytes());
    RecordKey { namespace: [7; 32], block_hash, group: 0, shard: 0 }
}

fn region(of: &str, max_bytes: u64) -> Region<Counting> {
    let path = format!("/dev/shm/tierkv-test-{of}-{}", std::process::id());
    let mapped = map(path.as_ref(), &Options { max_bytes, ..OPTIONS });
    let _ = remove_file(&path);
    let (memory, bytes) = mapped.unwrap();
    Region::join(Counting::of(memory), bytes).unwrap()
}

fn store(region: &Region<Counting>, number: u64, bytes: u64) {
    let Offer::Wanted(reservation) = region.reserve(&key(number), bytes, Label::default()).unwrap()
    else {
        panic!("others give way to {number}")
    };
    reservation.publish().unwrap();
}

/// Stores records until one was evicted; returns their number.
fn fill(region: &Region<Counting>, bytes: u64) -> u64 {
    let mut number = 0;
    while region.fill().unwrap().evicted == 0 {
        store(region, number, bytes);
        number += 1;
    }
    number
}

#[test]
fn f155_a_larger_record_evicts_twice_its_bytes_at_most() {
    for (small, large, asked) in
        [(16, 512, 0), (4, 256, 0), (16, 512, 1), (4, 256, 2), (3, 100, 3), (1, 64, 9)]
    {
        let region = region("larger", 32 << 20);
        let last = fill(&region, small * CHUNK);
        let mut random = Random::new(small);
        for round in 0..20 {
            // Of the records, as many tenths were requested.
            for number in (0..last).filter(|_| random.below(10) < asked) {
                region.look_up(&[key(number)]).unwrap();
            }
            let before = region.fill().unwrap();
            store(&region, 1 << 40 | round, large * CHUNK);
            let evicted = region.fill().unwrap().used_bytes;
            let bytes = before.used_bytes + large * CHUNK - evicted;
            assert!(
                bytes <= 2 * large * CHUNK,
                "{bytes} bytes for {large} chunks, where others have {small}, in round {round}"
            );
        }
        assert!(region.audit().unwrap().is_sound());
    }
}

#[test]
fn what_was_requested_is_evicted_after_what_was_not() {
    let region = region("requested", 8 << 20);
    let last = fill(&region, 4 * CHUNK);
    let wanted: Vec<_> = (last / 4..last / 2).map(key).collect();
    for number in last..last + last / 2 {
        region.look_up(&wanted).unwrap();
        store(&region, number, 4 * CHUNK);
    }
    assert!(region.look_up(&wanted).unwrap().iter().all(|is_there| *is_there));
    // The youngest are there, too, and in the order in which they came.
    let youngest: Vec<_> = (last + last / 4..last + last / 2).map(key).collect();
    assert!(region.look_up(&youngest).unwrap().iter().all(|is_there| *is_there));
    // Nobody requests them any more.
    (2 * last..5 * last).for_each(|number| store(&region, number, 4 * CHUNK));
    assert!(!region.look_up(&wanted).unwrap().contains(&true));
}

/// Stores a few records where all others were requested; returns how many of the few are gone.
fn lost(region: &Region<Counting>, others: u64, few: u64) -> usize {
    region.look_up(&(0..others).map(key).collect::<Vec<_>>()).unwrap();
    let names = 1 << 40..(1 << 40) + few;
    names.clone().for_each(|number| store(region, number, 4 * CHUNK));
    let there = region.look_up(&names.map(key).collect::<Vec<_>>()).unwrap();
    there.iter().filter(|is_there| !**is_there).count()
}

#[test]
fn f155_the_youngest_stay_where_all_others_were_requested() {
    let full = region("full", 8 << 20);
    let last = fill(&full, 4 * CHUNK);
    assert_eq!(lost(&full, last, last / 10), 0, "of a region that was full");
    let filling = region("filling", 8 << 20);
    let first = last - last / 20;
    (0..first).for_each(|number| store(&filling, number, 4 * CHUNK));
    assert_eq!(lost(&filling, first, last / 10), 0, "of a region that becomes full with them");
}

#[test]
fn f155_a_turn_with_the_lock_reads_a_bounded_part_of_a_large_region() {
    let region = region("turn", 160 << 20);
    let last = fill(&region, CHUNK);
    assert!(last > 4 * SHM_EVICT_LOOKS_MAX, "{last}");
    let all: Vec<_> = (0..last).map(key).collect();
    region.look_up(&all).unwrap();
    // Every record is read, so that none gives way; then none is, and all were requested.
    let pins = region.pin_each(all.iter().copied()).unwrap();
    let offer = |number| region.reserve(&key(number), 64 * CHUNK, Label::default()).unwrap();
    let turn = region.fabric().most_of_a_turn(|| assert!(matches!(offer(1 << 40), Offer::Full)));
    assert!(turn < 10 * SHM_EVICT_LOOKS_MAX, "{turn} words");
    pins.release().unwrap();
    region.look_up(&all).unwrap();
    let turn = region.fabric().most_of_a_turn(|| store(&region, 1 << 41, 64 * CHUNK));
    assert!(turn < 10 * SHM_EVICT_LOOKS_MAX, "{turn} words");
}

#[test]
fn a_full_table_answers_absent_keys_after_few_probes() {
    let region = region("absent", 32 << 20);
    let last = fill(&region, CHUNK);
    // As small as may be, and each place was taken several times: half of the index is in use.
    (last..8 * last).for_each(|number| store(&region, number, 1));
    let absent: Vec<_> = (0..1000).map(|number| key(1 << 50 | number)).collect();
    let words = region.fabric().most_of_a_turn(|| {
        assert!(region.look_up(&absent).unwrap().iter().all(|is_there| !*is_there));
    });
    // A probe reads the state, and of a used entry the first word of its key.
    assert!(words / absent.len() as u64 <= 20, "{} words a key", words / absent.len() as u64);
}
