//! Owns the figures of the durable tier: index, look-ups and reopening with a million records; cold reads against the disk; bytes written.
//!
//! `cargo run --release --example disk_tier [-- --json] [--quick] [--records N]`, from `crates/`; writes some gigabytes under `TMPDIR`.

#![expect(clippy::print_stdout, reason = "its output is a table for people")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

mod cold;
#[expect(dead_code, reason = "files are not looked at here")]
#[path = "../../tests/support/folder.rs"]
mod folder;
mod many;
#[path = "../../tests/support/random.rs"]
mod random;
#[path = "../../tests/support/records.rs"]
mod records;

use std::path::Path;
use std::sync::Arc;

use records::{key, put, record};
use tierkv_core::disk::{DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, Options, RecordKey, Store};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 32 << 30;

/// Prints lines of the result: median and range of the values.
struct Printer {
    as_json: bool,
}

impl Printer {
    fn print(&self, name: &str, unit: &str, values: &[f64]) {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        let median = values[values.len() / 2];
        if self.as_json {
            println!(
                "{{\"name\": \"{name}\", \"unit\": \"{unit}\", \"value\": {median:.4}, \
                 \"min\": {least:.4}, \"max\": {most:.4}, \"samples\": {}}}",
                values.len()
            );
        } else {
            println!("{name:<66} {median:>12.3} {unit} ({least:.3} - {most:.3})");
        }
    }
}

fn open(folder: &Path, ram: u64) -> Arc<Store> {
    let options = Options { max_bytes: ram, max_record_bytes: 16 * MIB, record_class: CLASS_ANY };
    Store::durable(options, folder, DiskOptions::new(DISK_BYTES, ram, Durability::Group)).unwrap()
}

/// Stores records and waits until all of them are durable; no segment is sealed for it.
fn fill(store: &Arc<Store>, numbers: std::ops::Range<u64>, bytes: usize) {
    for number in numbers.clone() {
        put(store, key(number), &record(&key(number), bytes));
        while number % 256 == 0 && store.disk_stats().queued_bytes > 32 * MIB {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let keys: Vec<RecordKey> = numbers.map(key).collect();
    while !store.wait_durable(&keys).iter().all(|is_durable| *is_durable) {}
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, folder, from, to] = arguments.as_slice()
        && flag == many::CHILD
    {
        many::child(Path::new(folder), from.parse().unwrap()..to.parse().unwrap());
    }
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let (printer, is_quick) = (Printer { as_json: has("--json") }, has("--quick"));
    let asked = arguments.iter().skip_while(|argument| *argument != "--records").nth(1);
    if let Some(records) = asked {
        // Runs this alone, because cold reads of so many records would tell nothing new.
        many::run(&printer, records.parse().unwrap());
        return;
    }
    many::run(&printer, if is_quick { 50_000 } else { 1_000_000 });
    let (count, rounds) = if is_quick { (400, 2) } else { (4_000, 7) };
    cold::run(&printer, count, rounds);
}
