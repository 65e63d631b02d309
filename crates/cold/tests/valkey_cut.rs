//! Owns the proof that cut links to nodes of a real Valkey cluster cost time within the deadline, and no wrong byte.
//! @module-tag alone

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use support::bench::Bench;
use support::load::{Load, wanted};
use support::places::{Machine, PORT, all_agree, is_inside, primary, role};
use support::server::{Place, Server, cluster_with_replicas_at, program};
use tierkv_cold::valkey::{Options, Valkey};

const NODES: usize = 6;

fn places(machines: &[Machine]) -> Vec<Place> {
    let place = |machine: &Machine| Place {
        host: machine.host.clone(),
        under: machine.under(),
        port: Some(PORT),
    };
    machines.iter().map(place).collect()
}

fn load_of(machines: &[Machine]) -> Load {
    let hosts: Vec<_> = machines.iter().map(|machine| format!("{}:{PORT}", machine.host)).collect();
    let address = format!("valkey://{}", hosts.join(","));
    let options = Options { class: 1, reads_replicas: true, ..Options::default() };
    Load::of(Bench::of(Arc::new(Valkey::open(&address, options).unwrap())))
}

/// The cable of a primary is pulled in a restore, or in a save. Its replica takes over, and everything can be stored again meanwhile.
fn loses_a_primary(machines: &[Machine], servers: &[Server], load: &mut Load, is_save: bool) {
    let victim = primary(servers);
    if is_save {
        load.save_during(|| machines[victim].pull());
    } else {
        load.read_during(|| machines[victim].pull());
    }
    load.read(8);
    load.heals("a replica to take over from a primary that is cut off");
    machines[victim].plug();
    all_agree(servers);
    load.heals("the cluster to be whole again");
}

/// The cable of a replica is pulled; its primary has all that it has.
fn loses_a_replica(machines: &[Machine], servers: &[Server], load: &mut Load) {
    let victim = servers.iter().position(|server| role(server) == "slave").unwrap();
    load.read_during(|| machines[victim].pull());
    load.read(4);
    machines[victim].plug();
    all_agree(servers);
    load.heals("a replica to be back");
}

/// This machine's own cable is pulled: nobody answers.
fn loses_all(machines: &[Machine], servers: &[Server], load: &mut Load) {
    load.read_during(|| machines.iter().for_each(Machine::pull));
    let before = load.came;
    load.read(4);
    assert_eq!(load.came, before, "a block came without a link");
    machines.iter().for_each(Machine::plug);
    all_agree(servers);
    load.heals("all to be back");
}

#[test]
fn f194_cut_links_bring_no_wrong_record() {
    let Some(program) = program() else { return };
    if !is_inside("f194_cut_links_bring_no_wrong_record") {
        return;
    }
    let machines = Machine::all(NODES);
    let servers = cluster_with_replicas_at(&program, &places(&machines));
    let mut load = load_of(&machines);
    load.heals("all blocks to be stored");
    while load.reads < wanted() / 2 {
        loses_a_primary(&machines, &servers, &mut load, false);
        loses_a_primary(&machines, &servers, &mut load, true);
        loses_a_replica(&machines, &servers, &mut load);
        loses_all(&machines, &servers, &mut load);
    }
    load.ends();
}
