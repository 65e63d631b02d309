//! Owns the proof that a real S3 server may refuse, tear, stop, die and lose objects under load without a wrong byte or a wait beyond the deadline.
//! @module-tag alone

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use support::bench::{Bench, MISSING, SOON};
use support::bucket::vars;
use support::gateway::Gateway;
use support::load::{Load, wanted};
use support::proxy::{Fault, Proxy};
use tierkv_cold::s3::S3;

/// What S3 says of too many requests, old credentials, and a clock that differs by more than a quarter of an hour.
const REFUSALS: [(u16, &str, &str); 3] = [
    (503, "SlowDown", "slow_down"),
    (400, "ExpiredToken", "expired"),
    (403, "RequestTimeTooSkewed", "clock_skew"),
];

fn refused(load: &Load, name: &str) -> u64 {
    let all = load.bench.desk.refusals();
    all.into_iter().find_map(|(of, count)| (of == name).then_some(count)).unwrap()
}

fn is_refused(proxy: &Proxy, load: &mut Load) {
    for (status, code, name) in REFUSALS {
        let before = refused(load, name);
        proxy.fails_with(Fault::Refuses(status, code));
        load.read(3);
        assert!(refused(load, name) > before, "{code} is not counted");
        load.save_during(|| {});
        proxy.fails_with(Fault::None);
        load.heals("requests to be taken again");
    }
}

fn is_torn(proxy: &Proxy, load: &mut Load) {
    let before = proxy.acted();
    proxy.fails_with(Fault::Tears);
    load.read(3);
    assert!(proxy.acted() > before, "no body was torn");
    proxy.fails_with(Fault::None);
    load.heals("whole bodies to come again");
}

fn is_frozen(gateway: &Gateway, load: &mut Load) {
    load.read_during(|| gateway.freeze(true));
    load.read(2);
    gateway.freeze(false);
    load.heals("a frozen server to be back");
}

fn is_killed(gateway: &mut Gateway, load: &mut Load) {
    load.read_during(|| gateway.kill());
    load.read(3);
    gateway.restart();
    load.heals("a killed server to be back");
    load.save_during(|| gateway.kill());
    gateway.restart();
    load.heals("a server killed in a save to be back");
}

/// As a lifecycle rule, or somebody with the bucket's keys, removes objects.
fn loses_objects(gateway: &Gateway, load: &mut Load) {
    load.read_during(|| gateway.remove_all());
    let fetched = load.bench.fetch(&load.blocks, SOON).unwrap();
    assert!(fetched.contains(&MISSING), "{fetched:?}");
    load.read(2);
    load.heals("objects to be written again");
}

#[test]
fn f195_faulted_reads_of_a_real_bucket_bring_no_wrong_record() {
    let Some(mut gateway) = Gateway::start() else { return };
    let proxy = Proxy::before(gateway.port);
    let store = S3::open("s3://bucket/here", vars(proxy.port)).unwrap();
    let mut load = Load::of(Bench::of(Arc::new(store)));
    load.heals("all blocks to be stored");
    while load.reads < wanted() {
        is_refused(&proxy, &mut load);
        is_torn(&proxy, &mut load);
        is_frozen(&gateway, &mut load);
        is_killed(&mut gateway, &mut load);
        loses_objects(&gateway, &mut load);
    }
    load.ends();
}
