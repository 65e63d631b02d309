//! Owns the proof that a real cluster of three primaries and three replicas may lose nodes, memory and slots under load without a wrong byte.
//! @module-tag alone

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use support::bench::Bench;
use support::load::{Load, wanted};
use support::places::{all_agree, primary, role};
use support::server::{Server, cluster_with_replicas, move_slots, program};
use tierkv_cold::valkey::{Options, Valkey};

fn load_of(servers: &[Server]) -> Load {
    let hosts: Vec<_> = servers.iter().map(|server| server.address()[9..].to_owned()).collect();
    let address = format!("valkey://{}", hosts.join(","));
    let options = Options { class: 1, reads_replicas: true, ..Options::default() };
    Load::of(Bench::of(Arc::new(Valkey::open(&address, options).unwrap())))
}

fn set(server: &Server, name: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut server.client()).unwrap();
}

/// A primary dies while a restore is under way.
fn dies_in_a_restore(servers: &mut [Server], load: &mut Load) {
    let victim = primary(servers);
    load.read_during(|| servers[victim].kill());
    load.read(8);
    servers[victim].restart();
    all_agree(servers);
    load.heals("a killed primary to be replaced");
}

/// A primary dies while a save is under way.
fn dies_in_a_save(servers: &mut [Server], load: &mut Load) {
    let victim = primary(servers);
    load.save_during(|| servers[victim].kill());
    load.read(8);
    servers[victim].restart();
    all_agree(servers);
    load.heals("a primary killed in a save to be replaced");
}

/// A node stops without a word.
fn stops(servers: &[Server], load: &mut Load) {
    let victim = primary(servers);
    servers[victim].freeze(true);
    load.read(8);
    servers[victim].freeze(false);
    all_agree(servers);
    load.heals("a frozen node to be back");
}

/// Slots move under load.
fn moves_slots(servers: &[Server], load: &mut Load) {
    let from = primary(servers);
    let to = (0..servers.len()).find(|at| *at != from && role(&servers[*at]) == "master").unwrap();
    let moved = move_slots(&servers[from], &servers[to], 3, || load.read(1));
    assert!(moved > 0);
    load.heals("moved slots to serve");
}

/// Memory is full, then small.
fn is_full(servers: &[Server], load: &mut Load) {
    let full = primary(servers);
    set(&servers[full], "maxmemory-policy", "noeviction");
    set(&servers[full], "maxmemory", "1mb");
    load.read(4);
    set(&servers[full], "maxmemory-policy", "allkeys-lfu");
    set(&servers[full], "maxmemory", "4mb");
    load.read(4);
    set(&servers[full], "maxmemory", "0");
    load.heals("memory to be there");
}

/// All nodes restart, without what they had.
fn restarts(servers: &mut [Server], load: &mut Load) {
    for server in servers.iter_mut() {
        server.kill();
    }
    load.read(2);
    for server in servers.iter_mut() {
        server.restart();
    }
    load.read(4);
    all_agree(servers);
    load.heals("all to serve after a restart");
}

#[test]
fn f192_faulted_reads_of_a_real_cluster_bring_no_wrong_record() {
    let Some(program) = program() else { return };
    let mut servers = cluster_with_replicas(&program);
    let mut load = load_of(&servers);
    load.heals("all blocks to be stored");
    while load.reads < wanted() {
        dies_in_a_restore(&mut servers, &mut load);
        dies_in_a_save(&mut servers, &mut load);
        stops(&servers, &mut load);
        moves_slots(&servers, &mut load);
        is_full(&servers, &mut load);
        restarts(&mut servers, &mut load);
    }
    load.ends();
}
