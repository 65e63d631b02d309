//! Owns the figures of waits: a link with latency, slow tiers, the store's lock, many segments. Each mode prints lines of JSON.
//!
//! `waits link HOST:PORT TOKENS LANES` measures against `waits far HOST`; `waits tiers|disk|locks|segments [--quick]` stand alone.
//! `bench/waits.js` runs a build before a change and the present one in turns; both must have this program.

#![expect(clippy::print_stdout, reason = "its output is for the bench")]
#![expect(clippy::cast_precision_loss, reason = "ratios")]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

#[path = "../../tests/support/folder.rs"]
#[expect(dead_code, reason = "files are not looked at here")]
mod folder;
mod hand;
mod link;
mod locks;
#[path = "../../tests/support/records.rs"]
mod records;
mod segments;
mod tiers;

use std::time::Instant;

const MIB: u64 = 1 << 20;

/// Prints one figure.
fn print(name: &str, unit: &str, value: f64) {
    println!("{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"value\":{value:.6}}}");
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["far", host] => link::serve(host),
        ["link", address, first_token, lanes] => {
            link::run(address, first_token.parse().unwrap(), lanes.parse().unwrap());
        }
        ["tiers", ..] => tiers::run_archive(),
        ["disk", ..] => tiers::run_disk(if is_quick { 256 } else { 2048 }),
        ["locks", ..] => locks::run(if is_quick { 60_000 } else { 1_000_000 }),
        ["segments", ..] => {
            segments::run(if is_quick { &[200, 1_000] } else { &[200, 4_000, 16_000] });
        }
        other => panic!("{other:?} is no mode; see the first lines of main.rs"),
    }
}
