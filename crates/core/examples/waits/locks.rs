//! Owns the slowest wait for the store's lock while the disk catches up with records that its queue had no room for.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, Options, Store};

use super::folder::Folder;
use super::records::{key, put, record};
use super::{MIB, ms, print};

const RECORD_BYTES: usize = 700;
/// Pins beside the catching up.
const FOR: Duration = Duration::from_secs(10);

pub fn run(count: u64) {
    let folder = Folder::new();
    let ram = Options { max_bytes: 4096 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
    let mut options = DiskOptions::new(16_384 * MIB, 4096 * MIB, Durability::None);
    options.queue_bytes = 32 * MIB;
    let store = Store::durable(ram, folder.path(), options).unwrap();
    store.disk().unwrap().wait_recovered();
    for number in 0..count {
        put(&store, key(number), &record(&key(number), RECORD_BYTES));
    }
    let (idle, _) = slowest_ms(&store, count, Duration::from_millis(1), |_| true);
    let skipped = store.disk_stats().skipped;
    let (slowest, slowest_wake) = slowest_ms(&store, count, FOR, |store| {
        let stats = store.disk_stats();
        stats.queued == 0 && stats.records >= count
    });
    print("records", "", count as f64);
    print("skipped", "", skipped as f64);
    print("idlePin", "ms", idle);
    print("slowestPin", "ms", slowest);
    print("slowestWake", "ms", slowest_wake);
    print("onDisk", "", store.disk_stats().records as f64);
}

/// How long each pause between pins should take.
const PAUSE: Duration = Duration::from_micros(100);

/// Pins one record after another until the time is over or `is_over`. Returns the slowest pin, and by how much the slowest
/// pause was late: a thread that no lock holds up waits so long for a core.
fn slowest_ms(
    store: &Arc<Store>,
    count: u64,
    time: Duration,
    is_over: impl Fn(&Store) -> bool,
) -> (f64, f64) {
    let (begun, mut number) = (Instant::now(), 0_u64);
    let (mut slowest, mut slowest_wake) = (0.0_f64, 0.0_f64);
    while begun.elapsed() < time && !(number.is_multiple_of(1024) && number > 0 && is_over(store)) {
        let key = key(number.wrapping_mul(7919) % count);
        let pinned = Instant::now();
        drop(store.pin_resident(&key));
        slowest = slowest.max(ms(pinned));
        number += 1;
        let paused = Instant::now();
        thread::sleep(PAUSE);
        slowest_wake = slowest_wake.max(ms(paused) - PAUSE.as_secs_f64() * 1e3);
    }
    (slowest, slowest_wake)
}
