//! Owns the proof that a real cluster of three primaries and three replicas may lose nodes, memory and slots under load without a wrong byte.
//! @module-tag alone

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::bench::{ACCEPTED, Bench, PRESENT, SOON};
use support::server::{Server, cluster_with_replicas, is_whole, move_slots, program, until};
use tierkv_cold::desk::Work;
use tierkv_cold::valkey::{Options, Valkey};

/// Time of a restore, as an engine gives it.
const WITHIN: Duration = Duration::from_millis(400);
/// Beyond it a request must have ended, with what a busy machine may take to run a thread.
const END: Duration = Duration::from_secs(3);
const BLOCKS: u32 = 32;

struct Load {
    bench: Bench,
    blocks: Vec<u32>,
    /// Reads of blocks while a fault was there, and those that brought the block.
    reads: usize,
    came: usize,
    longest: Duration,
}

impl Load {
    fn of(servers: &[Server]) -> Self {
        let hosts: Vec<_> = servers.iter().map(|server| server.address()[9..].to_owned()).collect();
        let address = format!("valkey://{}", hosts.join(","));
        let options = Options { class: 1, reads_replicas: true, ..Options::default() };
        let bench = Bench::of(Arc::new(Valkey::open(&address, options).unwrap()));
        let blocks = (0..BLOCKS).collect();
        Self { bench, blocks, reads: 0, came: 0, longest: Duration::ZERO }
    }

    /// Reads all blocks `rounds` times; those that do not come are saved again, as an engine that computed them does. Each record that
    /// comes is compared with its page.
    fn read(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let begun = Instant::now();
            let fetched = self.bench.fetch(&self.blocks, WITHIN);
            self.longest = self.longest.max(begun.elapsed());
            self.reads += self.blocks.len();
            let Ok(statuses) = fetched else { continue };
            let came = |at: &usize| statuses[*at] == ACCEPTED;
            self.came += (0..statuses.len()).filter(came).count();
            let lost: Vec<u32> =
                (0..statuses.len()).filter(|at| !came(at)).map(|at| self.blocks[at]).collect();
            if !lost.is_empty() {
                // It may fail while nodes are away.
                let _ = self.bench.store(&lost);
            }
        }
    }

    /// Waits until every block is there again.
    fn heals(&mut self, what: &str) {
        until(what, || {
            let missing = self.bench.store(&self.blocks).is_ok_and(|statuses| {
                statuses.iter().all(|status| [ACCEPTED, PRESENT].contains(status))
            });
            missing
                && self
                    .bench
                    .fetch(&self.blocks, SOON)
                    .is_ok_and(|statuses| statuses.iter().all(|status| *status == ACCEPTED))
        });
    }
}

fn set(server: &Server, name: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut server.client()).unwrap();
}

fn role(server: &Server) -> String {
    let info: String = redis::cmd("INFO").arg("replication").query(&mut server.client()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("role:").map(str::to_owned));
    line.unwrap_or_default()
}

/// Index of a server that is a primary with keys.
fn primary(servers: &[Server]) -> usize {
    let has_keys = |server: &Server| {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.client()).unwrap();
        keys > 1
    };
    let is = |server: &&Server| role(server) == "master" && has_keys(server);
    servers.iter().position(|server| is(&server)).unwrap()
}

fn all_agree(servers: &[Server]) {
    for server in servers {
        until("the cluster to be whole", || is_whole(server));
    }
    until("three primaries", || {
        servers.iter().filter(|server| role(server) == "master").count() == 3
    });
}

/// A primary dies while a restore is under way.
fn dies_in_a_restore(servers: &mut [Server], load: &mut Load) {
    let victim = primary(servers);
    let (goal, leases) = load.bench.targets(&load.blocks);
    let asker = load.bench.asker;
    let request = load.bench.desk.begin(Work::Fetch(goal), WITHIN, asker).unwrap();
    servers[victim].kill();
    let statuses = load.bench.outcome(request).map(support::bench::statuses);
    load.bench.check(&load.blocks, &leases, statuses.as_deref().unwrap_or_default());
    load.read(8);
    servers[victim].restart();
    all_agree(servers);
    load.heals("a killed primary to be replaced");
}

/// A primary dies while a save is under way.
fn dies_in_a_save(servers: &mut [Server], load: &mut Load) {
    let victim = primary(servers);
    let fresh: Vec<u32> = (40..64).collect();
    let (records, leases) = load.bench.records(&fresh);
    let work = Work::Store([7; 32], records);
    let request = load.bench.desk.begin(work, SOON, load.bench.asker).unwrap();
    servers[victim].kill();
    // What was saved is not known; what comes is compared with its page.
    let _ = load.bench.outcome(request);
    for lease in leases {
        load.bench.arena.slots().release(lease).unwrap();
    }
    let _ = load.bench.fetch(&fresh, WITHIN);
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
    let wanted = if std::env::var_os("TIERKV_TEST_LONG").is_some() { 10_000 } else { 1_500 };
    let mut servers = cluster_with_replicas(&program);
    let mut load = Load::of(&servers);
    load.heals("all blocks to be stored");
    while load.reads < wanted {
        dies_in_a_restore(&mut servers, &mut load);
        dies_in_a_save(&mut servers, &mut load);
        stops(&servers, &mut load);
        moves_slots(&servers, &mut load);
        is_full(&servers, &mut load);
        restarts(&mut servers, &mut load);
    }
    assert_eq!(load.bench.free_slots(), 80, "no slot is lost");
    assert!(load.came > 0 && load.came < load.reads, "faults cost some reads, and not all");
    assert!(load.longest < END, "a request took {:?}", load.longest);
    #[expect(clippy::print_stderr, reason = "figures of the run")]
    {
        eprintln!("{} faulted reads, {} came, longest {:?}", load.reads, load.came, load.longest);
    }
}
