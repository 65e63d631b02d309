//! Owns the time of one read where there are many segments: reads at random, each segment read once before.

use std::hint::black_box;
use std::time::Instant;

use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, Options, Store};

use super::folder::Folder;
use super::records::{key, put, record};
use super::{MIB, print};

const PAGES: u64 = 8;
const PAGE: u64 = 4096;
/// With its header it fills the pages of a segment beside the footer.
const RECORD_BYTES: usize = 20 << 10;
const READS: u64 = 4_000;

/// Prints the time of a read among each number of segments. It includes opening and closing files beyond those kept open.
pub fn run(counts: &[u64]) {
    for count in counts {
        let folder = Folder::new();
        let bytes = (count + 64) * PAGES * PAGE;
        let mut options = DiskOptions::new(bytes, 64 * MIB, Durability::None);
        options.segment_bytes = PAGES * PAGE;
        let ram = Options { max_bytes: 64 * MIB, max_record_bytes: MIB, record_class: CLASS_ANY };
        let store = Store::durable(ram, folder.path(), options).unwrap();
        let disk: &Disk = store.disk().unwrap();
        disk.wait_recovered();
        for number in 0..*count {
            put(&store, key(number), &record(&key(number), RECORD_BYTES));
            while store.disk_stats().queued > 256 {
                std::thread::yield_now();
            }
        }
        disk.drain();
        let segments = store.disk_stats().segments;
        assert!(segments * 10 > count * 9, "{segments} segments for {count} records");
        let places: Vec<_> = (0..READS)
            .filter_map(|read| {
                let key = key(read.wrapping_mul(7_919) % count);
                Some((key, disk.locate(&key)?))
            })
            .collect();
        for number in 0..*count {
            if let Some(place) = disk.locate(&key(number)) {
                black_box(disk.read_header(place).unwrap());
            }
        }
        let begun = Instant::now();
        for (_, place) in &places {
            black_box(disk.read_header(*place).unwrap());
        }
        let us = begun.elapsed().as_secs_f64() * 1e6 / places.len() as f64;
        print(&format!("read{count}"), "us", us);
    }
}
