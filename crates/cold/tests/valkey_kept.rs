//! Owns the proof of what a client keeps between requests: connections, as a new one begins slowly, and the names of models.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use redis::InfoDict;
use support::bench::{ACCEPTED, Bench, NAMESPACE, SOON, statuses};
use support::fake::Fake;
use support::server::{Server, program, until};
use tierkv_cold::desk::Work;
use tierkv_cold::store::Scope;
use tierkv_cold::valkey::{Options, Valkey};
use tierkv_core::limits::COLD_FETCH_THREADS;

fn bench(address: &str) -> Bench {
    let options = Options { class: 1, ..Options::default() };
    Bench::of(Arc::new(Valkey::open(address, options).unwrap()))
}

/// Connections of this machine to a port, as the kernel has them.
fn established(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next().is_some_and(|to| to.ends_with(&remote)) && words.next() == Some("01")
    };
    table.lines().filter(is_one).count()
}

#[test]
fn what_all_requests_use_at_once_stays_open_for_the_next() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &[]);
    let bench = bench(&server.address());
    let blocks: Vec<u32> = (0..16).collect();
    assert_eq!(bench.store(&blocks).unwrap(), vec![ACCEPTED; 16]);
    let mut client = server.client();
    let mut made = || -> usize {
        let info: InfoDict = redis::cmd("INFO").arg("stats").query(&mut client).unwrap();
        info.get("total_connections_received").unwrap()
    };
    let before = made();
    let most = COLD_FETCH_THREADS;
    for _ in 0..3 {
        // So that no request ends before all have begun.
        server.freeze(true);
        let fetch = || {
            let (goal, leases) = bench.targets(&blocks);
            (bench.desk.begin(Work::Fetch(goal), SOON, bench.asker).unwrap(), leases)
        };
        let begun: Vec<_> = (0..COLD_FETCH_THREADS).map(|_| fetch()).collect();
        until("all connections", || established(server.port) >= most);
        server.freeze(false);
        for (request, leases) in begun {
            let done = statuses(bench.outcome(request).unwrap());
            bench.check(&blocks, &leases, &done);
            assert_eq!(done, vec![ACCEPTED; 16]);
        }
    }
    let anew = made() - before;
    assert!(anew <= most, "{anew} connections, where {most} are used at once");
}

#[test]
fn the_names_of_models_are_told_again_to_a_server_that_has_lost_them() {
    let fake = Fake::start();
    let one = bench(&fake.address());
    one.desk.learn_model(&NAMESPACE, "ours");
    one.run(Work::Name(NAMESPACE, "ours".to_owned()), SOON).unwrap();
    one.store(&[1]).unwrap();
    fake.loses_hashes();
    one.found(&[1]).unwrap();
    let scope = Scope { model: Some("ours".to_owned()), ..Scope::default() };
    let flushed = bench(&fake.address()).flushed(scope).unwrap();
    assert_eq!((flushed.is_unknown, flushed.models), (false, vec!["ours".to_owned()]));
}

#[test]
fn a_cluster_that_is_made_after_the_first_request_is_used() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &["--cluster-enabled", "yes"]);
    let bench = bench(&server.address());
    let refused = bench.found(&[1]).unwrap_err().text;
    assert!(refused.contains("no node serves the slots"), "{refused}");
    let mut client = server.client();
    redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).exec(&mut client).unwrap();
    until("the cluster to be used", || bench.store(&[1]).is_ok_and(|done| done == [ACCEPTED]));
    assert_eq!(bench.found(&[1]).unwrap(), [true]);
}
