//! Owns the proof that the store's count of bytes is the process's real memory. A process of its own: nothing else may allocate.
//! @module-tag nightly
#![cfg(target_os = "linux")]
#![expect(clippy::cast_precision_loss, reason = "percentages")]

#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;

use std::process::Command;
use std::sync::Arc;

use random::Random;
use records::{key, put, record, write_record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ItemStatus, Options, Store};

const MAX: u64 = 96 << 20;
/// Where lengths differ, a hole is as large as a record: among 200 records the holes of a moment are a tenth, among more they level out.
const MIXED_MAX: u64 = 256 << 20;
const MIXED: &str = "16 KiB to 1 MB";
/// Models change, and connections have a thread each: what an allocator keeps between lengths grows with every filling.
const CHANGING: &str = "37 KiB to 3 MB by four threads, other lengths each filling";
const THREADS: u64 = 4;
const FILLINGS: u64 = 12;
const CASE: &str = "TIERKV_TEST_CASE";

/// Resident memory of this process.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kib << 10
}

/// Puts twice what the store holds, and compares.
fn fill(max_bytes: u64, bytes: &mut dyn FnMut(u64) -> usize) -> f64 {
    let options = Options { max_bytes, max_record_bytes: 8 << 20, record_class: CLASS_KV };
    let before = rss();
    let store = Arc::new(Store::new(options).expect("options"));
    let mut put_bytes = 0;
    for number in 0.. {
        if put_bytes > 2 * max_bytes {
            break;
        }
        let record = record(&key(number), bytes(number));
        put_bytes += record.len() as u64;
        assert_eq!(put(&store, key(number), &record), ItemStatus::Accepted);
        assert!(store.stats().used_bytes <= max_bytes);
    }
    let used = store.stats().used_bytes;
    assert!(used > max_bytes / 10 * 9, "it is full");
    (rss() - before) as f64 / used as f64
}

/// Fills a store again and again, by several threads at once.
fn refill(max_bytes: u64) -> f64 {
    const TYPICAL: [u64; 5] = [37 << 10, 290 << 10, 1 << 20, 2 << 20, 5 << 19];
    let options = Options { max_bytes, max_record_bytes: 8 << 20, record_class: CLASS_KV };
    // Records are made where memory was before, because what their makers leave with the allocator is not the store's.
    let buffers = vec![vec![1; 4 << 20]; usize::try_from(THREADS).expect("small")];
    let before = rss();
    let store = Arc::new(Store::new(options).expect("options"));
    let fillers = (1..).zip(buffers).map(|(thread, mut buffer)| {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            let mut random = Random::new(thread);
            for filling in 0..FILLINGS {
                let mut bytes = 0;
                while bytes < max_bytes / THREADS {
                    let dice = random.next();
                    let of = if dice.is_multiple_of(4) { dice >> 8 } else { filling + (dice & 1) };
                    let typical = TYPICAL[usize::try_from(of % 5).expect("small")];
                    let length = typical + (dice >> 32) % (typical / 6);
                    let key = key(dice);
                    let record = &mut buffer[..usize::try_from(length).expect("small")];
                    write_record(&key, record);
                    assert_eq!(put(&store, key, record), ItemStatus::Accepted);
                    bytes += length;
                }
            }
            buffer
        })
    });
    let fillers: Vec<_> = fillers.collect();
    let _buffers: Vec<_> = fillers.into_iter().map(|filler| filler.join().expect("done")).collect();
    let used = store.stats().used_bytes;
    assert!(used > max_bytes / 10 * 9, "it is full");
    (rss() - before) as f64 / used as f64
}

/// The length of record `number` in each case.
fn lengths(case: &str) -> Box<dyn FnMut(u64) -> usize> {
    let mut random = Random::new(7);
    match case {
        "1 MiB" => Box::new(|_| 1 << 20),
        "200 kB" => Box::new(|_| 200_000),
        "8 KiB" => Box::new(|_| 8192),
        "1 KiB" => Box::new(|_| 1024),
        _ => Box::new(move |_| 16_384 + usize::try_from(random.next() % 1_000_000).expect("small")),
    }
}

/// Memory that one case has used and freed would serve the next one unseen: each has a process of its own.
#[test]
fn counted_bytes_are_real_bytes() {
    if let Ok(case) = std::env::var(CASE) {
        let max_bytes = if case == MIXED { MIXED_MAX } else { MAX };
        let ratio =
            if case == CHANGING { refill(MIXED_MAX) } else { fill(max_bytes, &mut lengths(&case)) };
        assert!(
            (0.9..1.1).contains(&ratio),
            "{case}: real memory is {ratio:.3} of what is counted"
        );
        return;
    }
    let program = std::env::current_exe().expect("this test's own program");
    for case in ["1 MiB", "200 kB", "8 KiB", "1 KiB", MIXED, CHANGING] {
        let run = Command::new(&program).env(CASE, case).output().expect("it starts");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    }
}
