//! Owns the proof that Valkey serves as a store, and that none of its faults gives a wrong byte or a wait beyond the deadline.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::bench::{
    ACCEPTED, BAD_RECORD, Bench, INCOMPLETE, MISSING, NAMESPACE, OVER_BUDGET, PRESENT, QUARANTINED,
    SOON,
};
use support::fake::{Fake, Fault};
use support::server::{
    Server, cluster, cluster_with_replicas, move_slots, program, program_with_tls, until,
};
use tierkv_cold::desk::Work;
use tierkv_cold::store::{Asker, Scope};
use tierkv_cold::valkey::{Login, Options, Valkey};
use tierkv_core::error::Code;

/// Long enough for a busy machine, short enough for a test that waits for it.
const SHORT: Duration = Duration::from_millis(400);

fn bench(address: &str) -> Bench {
    bench_as(address, Login::default(), None)
}

fn bench_as(address: &str, login: Login, ttl_s: Option<u64>) -> Bench {
    bench_with(address, Options { login, ttl_s, ..options() })
}

fn options() -> Options {
    Options { class: 1, ..Options::default() }
}

fn bench_with(address: &str, options: Options) -> Bench {
    Bench::of(Arc::new(Valkey::open(address, options).unwrap()))
}

fn refusals(bench: &Bench, name: &str) -> u64 {
    bench.desk.refusals().into_iter().find_map(|(of, count)| (of == name).then_some(count)).unwrap()
}

fn serves(bench: &Bench) {
    let blocks: Vec<u32> = (0..30).collect();
    assert_eq!(bench.found(&blocks).unwrap(), vec![false; 30]);
    assert_eq!(bench.fetch(&blocks, SOON).unwrap(), vec![MISSING; 30]);
    assert_eq!(bench.store(&blocks[..20]).unwrap(), vec![ACCEPTED; 20]);
    assert_eq!(bench.store(&blocks[10..20]).unwrap(), vec![PRESENT; 10]);
    let found = bench.found(&blocks).unwrap();
    assert_eq!(found, (0..30).map(|block| block < 20).collect::<Vec<_>>());
    let fetched = bench.fetch(&blocks, SOON).unwrap();
    assert_eq!(fetched, [vec![ACCEPTED; 20], vec![MISSING; 10]].concat());
    let (taken, came) = bench.take(&blocks[15..25]).unwrap();
    assert_eq!(taken, [vec![ACCEPTED; 5], vec![MISSING; 5]].concat());
    assert_eq!(came.len(), 5);
    assert_eq!(bench.check_stored(&[3, 29]).unwrap(), [PRESENT, MISSING]);
    assert_eq!(bench.free_slots(), 80);
}

#[test]
fn a_real_server_serves() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &[]);
    serves(&bench(&server.address()));
}

#[test]
fn a_real_cluster_serves_and_each_node_has_a_part() {
    let Some(program) = program() else { return };
    let servers = cluster(&program);
    let bench = bench(&servers[1].address());
    serves(&bench);
    // Each node has a copy of the list of flushes beside its records.
    let sizes = sizes(&servers);
    assert_eq!(sizes.iter().sum::<u64>(), 20 + 3, "{sizes:?}");
    assert!(sizes.iter().filter(|size| **size > 1).count() > 1, "{sizes:?}");
}

fn sizes(servers: &[Server]) -> Vec<u64> {
    servers.iter().map(|one| redis::cmd("DBSIZE").query(&mut one.client()).unwrap()).collect()
}

#[test]
fn f190_blocks_are_found_after_their_slots_moved() {
    let Some(program) = program() else { return };
    let servers = cluster(&program);
    let bench = bench(&servers[0].address());
    let blocks: Vec<u32> = (0..24).collect();
    assert_eq!(bench.store(&blocks).unwrap(), vec![ACCEPTED; 24]);
    let moved = move_slots(&servers[0], &servers[1], 3, || {
        // Half way, the old owner says ASK; then MOVED.
        assert_eq!(bench.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 24]);
    });
    assert!(moved > 0, "no keys lay on the first node");
    assert_eq!(bench.found(&blocks).unwrap(), vec![true; 24]);
}

#[test]
fn f190_a_killed_node_costs_its_own_blocks() {
    let Some(program) = program() else { return };
    let mut servers = cluster(&program);
    let bench = bench(&servers[0].address());
    let blocks: Vec<u32> = (0..24).collect();
    bench.store(&blocks).unwrap();
    // A copy of the list of flushes is no block.
    let keys: u64 = redis::cmd("DBSIZE").query(&mut servers[2].client()).unwrap();
    let lost = keys - 1;
    servers[2].kill();
    let fetched = bench.fetch(&blocks, SOON).unwrap();
    let count = |wanted: u8| fetched.iter().map(|status| u64::from(*status == wanted)).sum::<u64>();
    assert_eq!(count(INCOMPLETE), lost);
    assert_eq!(count(ACCEPTED), 24 - lost);
}

#[test]
fn f190_a_frozen_server_costs_the_deadline_and_then_serves_again() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &[]);
    let bench = bench(&server.address());
    bench.store(&[1, 2, 3]).unwrap();
    server.freeze(true);
    let error = bench.fetch(&[1, 2, 3], SHORT).unwrap_err();
    assert_eq!(error.code, Code::LaneFailed);
    assert!(error.text.contains("in time"), "{}", error.text);
    server.freeze(false);
    assert_eq!(bench.fetch(&[1, 2, 3], SOON).unwrap(), [ACCEPTED; 3]);
}

#[test]
fn f190_a_frozen_node_costs_its_own_blocks_and_little_time() {
    let Some(program) = program() else { return };
    let servers = cluster(&program);
    let bench = bench(&servers[0].address());
    let blocks: Vec<u32> = (0..24).collect();
    assert_eq!(bench.store(&blocks).unwrap(), vec![ACCEPTED; 24]);
    let frozen = servers.iter().max_by_key(|server| sizes(std::slice::from_ref(*server))).unwrap();
    frozen.freeze(true);
    for _ in 0..3 {
        let begun = Instant::now();
        let fetched = bench.fetch(&blocks, SOON).unwrap();
        assert!(fetched.contains(&ACCEPTED) && fetched.contains(&INCOMPLETE), "{fetched:?}");
        // Far below the deadline, and above what a busy machine takes.
        assert!(begun.elapsed() < SOON / 3, "{:?}", begun.elapsed());
    }
    frozen.freeze(false);
    until("the node to be asked again", || {
        bench.fetch(&blocks, SOON).is_ok_and(|fetched| fetched == vec![ACCEPTED; 24])
    });
}

#[test]
fn a_restarted_server_is_used_again_without_a_failure() {
    let fake = Fake::start();
    let bench = bench(&fake.address());
    bench.store(&[1]).unwrap();
    fake.drops_connections();
    assert_eq!(bench.fetch(&[1], SOON).unwrap(), [ACCEPTED]);
}

#[test]
fn f190_memory_that_is_full_refuses_saves_and_is_counted() {
    let Some(program) = program() else { return };
    let options = ["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"];
    let server = Server::start(&program, &options);
    let bench = bench(&server.address());
    let stored = bench.store(&(0..60).collect::<Vec<_>>()).unwrap();
    assert!(stored.contains(&ACCEPTED) && stored.contains(&OVER_BUDGET), "{stored:?}");
    assert!(refusals(&bench, "OOM") > 0);
    let held: Vec<u32> = (0..60).filter(|block| stored[*block as usize] == ACCEPTED).collect();
    assert_eq!(bench.fetch(&held, SOON).unwrap(), vec![ACCEPTED; held.len()]);
}

#[test]
fn records_expire_where_a_time_to_live_is_set() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &[]);
    let bench = bench_as(&server.address(), Login::default(), Some(1));
    bench.store(&[1]).unwrap();
    until("the record to expire", || bench.found(&[1]).unwrap() == [false]);
}

#[test]
fn f190_a_user_without_rights_is_refused_with_the_servers_words() {
    let Some(program) = program() else { return };
    let server = Server::start(&program, &[]);
    let mut client = server.client();
    redis::cmd("ACL")
        .arg(&[
            "SETUSER",
            "reader",
            "on",
            ">secret",
            "~tierkv:*",
            "+get",
            "+exists",
            "+hget",
            "+hgetall",
            "+hset",
            "+hsetnx",
            "+hincrby",
            "+cluster|slots",
        ])
        .exec(&mut client)
        .unwrap();
    redis::cmd("ACL").arg(&["SETUSER", "default", "off"]).exec(&mut client).unwrap();
    let login = |password: &str| Login {
        user: Some("reader".to_owned()),
        password: Some(password.to_owned()),
        ..Login::default()
    };
    let reader = bench_as(&server.address(), login("secret"), None);
    assert_eq!(reader.found(&[1]).unwrap(), [false]);
    let error = reader.store(&[1]).unwrap_err();
    assert!(error.text.contains("NOPERM"), "{}", error.text);
    assert_eq!(refusals(&reader, "NOPERM"), 1);
    let stranger = bench_as(&server.address(), login("guessed"), None);
    assert!(stranger.found(&[1]).unwrap_err().text.contains("WRONGPASS"));
    let nobody = bench(&server.address());
    assert!(nobody.found(&[1]).unwrap_err().text.contains("NOAUTH"));
}

#[test]
fn a_refusal_is_a_miss_with_the_servers_words() {
    for words in ["LOADING Valkey is loading", "CLUSTERDOWN Hash slot not served", "MISCONF disk"] {
        let fake = Fake::start();
        let bench = bench(&fake.address());
        bench.store(&[1, 2]).unwrap();
        fake.fails_with(Fault::Refuses(words));
        let error = bench.fetch(&[1, 2], SOON).unwrap_err();
        assert!(error.text.contains(words), "{}", error.text);
        assert!(bench.found(&[1]).unwrap_err().text.contains(words));
        fake.fails_with(Fault::None);
        assert_eq!(bench.fetch(&[1, 2], SOON).unwrap(), [ACCEPTED; 2], "after {words}");
    }
    let fake = Fake::start();
    let bench = bench(&fake.address());
    fake.fails_with(Fault::RefusesStores("READONLY You can't write against a read only replica."));
    assert!(bench.store(&[1]).unwrap_err().text.contains("READONLY"));
    assert_eq!((refusals(&bench, "READONLY"), fake.keys()), (1, 0));
}

#[test]
fn f190_a_server_that_dies_in_a_value_costs_what_did_not_come() {
    let fake = Fake::start();
    let bench = bench(&fake.address());
    let blocks: Vec<u32> = (0..16).collect();
    bench.store(&blocks).unwrap();
    fake.fails_with(Fault::Dies);
    let fetched = bench.fetch(&blocks, SOON).unwrap();
    assert!(fetched.contains(&ACCEPTED) && fetched.contains(&INCOMPLETE), "{fetched:?}");
    assert_eq!(bench.free_slots(), 80);
    fake.fails_with(Fault::None);
    assert_eq!(bench.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 16]);
}

#[test]
fn f190_a_server_that_stops_in_a_value_holds_no_request_beyond_its_end() {
    for fault in [Fault::Freezes, Fault::Trickles] {
        let fake = Fake::start();
        let bench = bench(&fake.address());
        let blocks: Vec<u32> = (0..16).collect();
        bench.store(&blocks).unwrap();
        fake.fails_with(fault);
        let fetched = bench.fetch(&blocks, SHORT).unwrap();
        assert!(fetched.contains(&ACCEPTED) && fetched.contains(&INCOMPLETE), "{fault:?}");
        // A request that is given up ends without its deadline, and no thread holds a slot.
        let (goal, leases) = bench.targets(&blocks);
        let request = bench.desk.begin(Work::Fetch(goal), SOON, bench.asker).unwrap();
        until("a record to come", || bench.desk.progress(request) > Some(0));
        bench.desk.cancel(request);
        assert_eq!(bench.outcome(request).unwrap_err().code, Code::Cancelled);
        bench.check(&blocks, &leases, &[]);
        assert_eq!(bench.free_slots(), 80, "{fault:?}");
    }
}

#[test]
fn f190_a_changed_value_is_no_block() {
    let fake = Fake::start();
    let bench = bench(&fake.address());
    bench.store(&[1, 2]).unwrap();
    // Magic, a field, a checksum, the payload's first, middle and last byte.
    for at in [0, 20, 190, 192, 50_000, 196_799] {
        fake.fails_with(Fault::Flips(at));
        assert_eq!(bench.fetch(&[1, 2], SOON).unwrap(), [BAD_RECORD; 2], "byte {at}");
        assert_eq!(bench.take(&[1]).unwrap().0, [BAD_RECORD], "byte {at}");
    }
    fake.fails_with(Fault::Flips(5000));
    assert_eq!(bench.check_stored(&[2, 9]).unwrap(), [QUARANTINED, MISSING]);
    assert_eq!(bench.found(&[1, 2]).unwrap(), [true, false]);
    bench.store(&[2]).unwrap();
    for bytes in [1, 100_000, 196_700] {
        fake.fails_with(Fault::Truncates(bytes));
        assert_eq!(bench.fetch(&[1, 2], SOON).unwrap(), [BAD_RECORD; 2], "{bytes} bytes less");
    }
    fake.fails_with(Fault::Boasts);
    assert!(bench.fetch(&[1], SOON).is_err());
    fake.fails_with(Fault::Babbles);
    assert!(bench.fetch(&[1], SOON).is_err());
    fake.fails_with(Fault::None);
    assert_eq!(bench.fetch(&[1, 2], SOON).unwrap(), [ACCEPTED; 2]);
    assert_eq!(bench.free_slots(), 80);
}

#[test]
fn a_look_up_of_many_keys_is_one_exchange_on_one_connection() {
    let fake = Fake::start();
    let bench = bench(&fake.address());
    let blocks: Vec<u32> = (0..2000).collect();
    assert_eq!(bench.found(&blocks).unwrap(), vec![false; 2000]);
    let before = fake.commands.load(std::sync::atomic::Ordering::Relaxed);
    bench.found(&blocks).unwrap();
    let asked = || fake.commands.load(std::sync::atomic::Ordering::Relaxed) - before;
    // 32 commands of up to 64 keys, and one for each copy of the list of flushes.
    assert_eq!(asked(), 35);
    // Of a chunk of which a part is there, each key is asked for.
    bench.store(&[3, 4]).unwrap();
    let stored = asked();
    let found = bench.found(&blocks).unwrap();
    assert_eq!((0..2000).filter(|at| found[*at]).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(asked() - stored, 35 + 64);
}

#[test]
fn an_address_that_cannot_be_used_is_refused_with_the_fix() {
    for (address, says) in [
        ("redis://h:1", "another scheme"),
        ("valkey://h", "no list of host:port"),
        ("valkey://h:0", "no list of host:port"),
        ("valkey://u:p@h:1", "VALKEY_PASSWORD"),
        ("valkey://h:1/x", "no number of a database"),
    ] {
        let error = Valkey::open(address, options()).map(|_| ()).unwrap_err();
        assert!(error.text.contains(says) && error.text.contains("write"), "{}", error.text);
    }
    for address in ["valkey://h:1", "valkey://h:1,i:2/3", "valkey://[::1]:6379"] {
        assert!(Valkey::open(address, options()).is_ok(), "{address}");
    }
}

#[test]
fn a_flush_takes_no_more_than_its_scope() {
    let Some(program) = program() else { return };
    let servers = cluster(&program);
    let (one, other) = (bench(&servers[0].address()), bench(&servers[1].address()));
    let blocks: Vec<u32> = (0..12).collect();
    let mut tenant = bench(&servers[2].address());
    tenant.asker = Asker { tenant: 7, flushed: None };
    one.store(&blocks).unwrap();
    // Names of another tenant's records are the same until one of the two is flushed.
    assert_eq!(tenant.found(&blocks).unwrap(), vec![true; 12]);
    assert_eq!(other.flush(Scope { tenant: 7, ..Scope::default() }).unwrap(), 3);
    assert_eq!(tenant.found(&blocks).unwrap(), vec![false; 12]);
    assert_eq!(tenant.fetch(&blocks, SOON).unwrap(), vec![MISSING; 12]);
    assert_eq!(one.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 12]);
    for scope in [
        Scope { class: 2, ..Scope::default() },
        Scope { namespace: Some([9; 32]), ..Scope::default() },
        Scope { model: Some("another".to_owned()), ..Scope::default() },
    ] {
        for bench in [&one, &other] {
            bench.desk.learn_model(&NAMESPACE, "ours");
        }
        other.flush(scope.clone()).unwrap();
        assert_eq!(one.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 12], "{scope:?}");
    }
}

#[test]
fn a_flush_takes_its_scope_for_all_clients() {
    let fake = Fake::start();
    let (one, other) = (bench(&fake.address()), bench(&fake.address()));
    let blocks: Vec<u32> = (0..12).collect();
    for bench in [&one, &other] {
        bench.desk.learn_model(&NAMESPACE, "ours");
    }
    one.store(&blocks).unwrap();
    for scope in [
        Scope { class: 1, ..Scope::default() },
        Scope { namespace: Some(NAMESPACE), ..Scope::default() },
        Scope { model: Some("ours".to_owned()), ..Scope::default() },
        Scope::default(),
    ] {
        other.flush(scope.clone()).unwrap();
        assert_eq!(one.fetch(&blocks, SOON).unwrap(), vec![MISSING; 12], "{scope:?}");
        assert_eq!(one.found(&blocks).unwrap(), vec![false; 12], "{scope:?}");
        assert_eq!(one.store(&blocks).unwrap(), vec![ACCEPTED; 12], "{scope:?}");
        assert_eq!(other.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 12], "{scope:?}");
    }
    let (number, scopes) = one.desk.news(0);
    assert_eq!((number, scopes.len()), (4, 4));
    assert_eq!(one.desk.news(3).1, [Scope::default()]);
}

#[test]
fn records_that_were_made_before_a_flush_are_not_stored_after_it() {
    let fake = Fake::start();
    let one = bench(&fake.address());
    let mut late = bench(&fake.address());
    late.found(&[1]).unwrap();
    late.asker.flushed = Some(0);
    assert_eq!(late.store(&[70]).unwrap(), [ACCEPTED]);
    one.flush(Scope::default()).unwrap();
    assert_eq!(late.store(&[71]).unwrap(), [INCOMPLETE]);
    late.asker.flushed = Some(1);
    assert_eq!(late.store(&[71]).unwrap(), [ACCEPTED]);
}

#[test]
fn a_client_that_was_not_told_a_model_learns_it_from_the_others() {
    let fake = Fake::start();
    let (one, other) = (bench(&fake.address()), bench(&fake.address()));
    one.desk.learn_model(&NAMESPACE, "ours");
    one.run(Work::Name(NAMESPACE, "ours".to_owned()), SOON).unwrap();
    one.store(&[1]).unwrap();
    one.flush(Scope { model: Some("another".to_owned()), ..Scope::default() }).unwrap();
    assert_eq!(other.fetch(&[1], SOON).unwrap(), [ACCEPTED]);
    one.flush(Scope { model: Some("ours".to_owned()), ..Scope::default() }).unwrap();
    assert_eq!(other.fetch(&[1], SOON).unwrap(), [MISSING]);
    // One that nobody named is taken by a flush of any model.
    let stranger = bench(&Fake::start().address());
    stranger.store(&[1]).unwrap();
    stranger.flush(Scope { model: Some("any".to_owned()), ..Scope::default() }).unwrap();
    assert_eq!(stranger.found(&[1]).unwrap(), [false]);
}

#[test]
fn f190_a_node_that_was_away_brings_no_flushed_record_back() {
    let Some(program) = program() else { return };
    let servers = cluster(&program);
    let bench = bench(&format!("{},{}", servers[0].address(), &servers[1].address()[9..]));
    let blocks: Vec<u32> = (0..24).collect();
    assert_eq!(bench.store(&blocks).unwrap(), vec![ACCEPTED; 24]);
    servers[2].freeze(true);
    until("two copies to take the flush", || bench.flush(Scope::default()).is_ok());
    servers[2].freeze(false);
    let again = self::bench(&servers[2].address());
    until("all nodes to serve", || again.found(&blocks).is_ok_and(|found| !found.contains(&true)));
    assert!(!again.fetch(&blocks, SOON).unwrap().contains(&ACCEPTED));
    // The node that was away has the flush by now, and the other two are enough without it.
    let copies: Vec<u64> = servers
        .iter()
        .zip(["b", "c", "a"])
        .map(|(server, tag)| {
            let key = format!("tierkv:flushes:{{{tag}}}");
            redis::cmd("HLEN").arg(key).query(&mut server.client()).unwrap()
        })
        .collect();
    assert_eq!(copies[0], copies[2], "{copies:?}");
}

#[test]
fn a_lost_list_of_flushes_is_written_again_or_costs_all_records() {
    let fake = Fake::start();
    let bench = bench(&fake.address());
    bench.store(&[1, 2]).unwrap();
    fake.loses_hashes();
    assert_eq!(bench.fetch(&[1, 2], SOON).unwrap(), [ACCEPTED; 2], "this client knows the list");
    fake.loses_hashes();
    let stranger = self::bench(&fake.address());
    assert_eq!(stranger.fetch(&[1, 2], SOON).unwrap(), [MISSING; 2], "nobody knew the list");
    assert_eq!(bench.found(&[1, 2]).unwrap(), [false; 2]);
    assert_eq!(bench.store(&[1]).unwrap(), [ACCEPTED]);
    assert_eq!(stranger.found(&[1]).unwrap(), [true], "both know the same flushes again");
}

#[test]
fn clients_that_begin_at_once_agree_and_hear_of_no_flush() {
    for _ in 0..10 {
        let fake = Fake::start();
        let clients: Vec<_> = (0..4).map(|_| bench(&fake.address())).collect();
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| client.found(&[1]).unwrap());
            }
        });
        clients[0].store(&[1]).unwrap();
        let agrees = |one: &Bench| one.found(&[1]).unwrap() == [true] && one.desk.news(0).0 == 0;
        assert!(clients.iter().all(agrees));
    }
}

#[test]
fn two_deployments_share_a_server_and_no_record() {
    let fake = Fake::start();
    let of = |prefix: &str| {
        bench_with(&fake.address(), Options { prefix: prefix.to_owned(), ..options() })
    };
    let (one, other) = (of("one"), of("other"));
    one.store(&[1]).unwrap();
    assert_eq!(other.found(&[1]).unwrap(), [false]);
    other.flush(Scope::default()).unwrap();
    assert_eq!(one.found(&[1]).unwrap(), [true]);
}

/// An authority, and a certificate of it for a name, with its key; all as PEM.
fn certificates(name: &str) -> [Vec<u8>; 3] {
    let key = || rcgen::KeyPair::generate().unwrap();
    let mut of_authority = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    of_authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    // Apart from the name of what it signs, which would else count as signed by itself.
    of_authority.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    let authority = rcgen::CertifiedIssuer::self_signed(of_authority, key()).unwrap();
    let own_key = key();
    let own = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let own = own.signed_by(&own_key, &authority).unwrap();
    [authority.pem().into(), own.pem().into(), own_key.serialize_pem().into()]
}

#[test]
fn tls_and_a_user_open_a_server_and_nothing_less_does() {
    let Some(program) = program_with_tls() else { return };
    let folder = std::env::temp_dir().join(format!("tierkv-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // A name of the address, not the one of each node: 127.0.0.1 is not in the certificate.
    let [ca, cert, key] = certificates("localhost");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca_file, cert_file, key_file) =
        (file("ca.pem", &ca), file("cert.pem", &cert), file("key.pem", &key));
    let server = Server::start(
        &program,
        &[
            "--tls-cert-file",
            &cert_file,
            "--tls-key-file",
            &key_file,
            "--tls-ca-cert-file",
            &ca_file,
            "--user",
            "engine",
            "on",
            ">word",
            "~tierkv:*",
            "+@all",
            "--user",
            "default",
            "off",
        ],
    );
    let open = |hosts: &str, ca: &[u8], is_known: bool, password: &str| {
        let settings = tierkv_cold::Settings {
            class: 1,
            user: Some("engine".to_owned()),
            password: Some(password.to_owned()),
            ca_pem: Some(ca.to_vec()),
            identity: is_known.then(|| (cert.clone(), key.clone())),
            ..tierkv_cold::Settings::default()
        };
        let address = format!("valkeys://{hosts}");
        Bench::of(tierkv_cold::open(&address, settings, Box::new(|_| None)).unwrap())
    };
    let (port, found) = (server.port, |bench: Bench| bench.found(&[1]).map_err(|error| error.text));
    serves(&open(&format!("localhost:{port}"), &ca, true, "word"));
    // The node's address is not in the certificate, but a name of the list is.
    let again = open(&format!("127.0.0.1:{port},localhost:{port}"), &ca, true, "word");
    assert_eq!(again.fetch(&(0..20).collect::<Vec<_>>(), SOON).unwrap(), vec![ACCEPTED; 20]);
    let stranger = certificates("localhost");
    for (hosts, ca, is_known, password, says) in [
        (format!("localhost:{port}"), &stranger[0], true, "word", "certificate"),
        (format!("127.0.0.1:{port}"), &ca, true, "word", "certificate"),
        (format!("localhost:{port}"), &ca, false, "word", "certificate"),
        (format!("localhost:{port}"), &ca, true, "wrong", "WRONGPASS"),
    ] {
        let said = found(open(&hosts, ca, is_known, password)).unwrap_err();
        assert!(said.contains(says), "{hosts}: {said}");
    }
    assert!(found(bench(&format!("valkey://localhost:{port}"))).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn replicas_are_read_and_a_lost_primary_costs_no_record() {
    let Some(program) = program() else { return };
    let mut servers = cluster_with_replicas(&program);
    let reads_replicas = true;
    let bench = bench_with(&servers[0].address(), Options { reads_replicas, ..options() });
    let blocks: Vec<u32> = (0..24).collect();
    assert_eq!(bench.store(&blocks).unwrap(), vec![ACCEPTED; 24]);
    until("the replicas to have all", || {
        let count =
            |server: &Server| -> u64 { redis::cmd("DBSIZE").query(&mut server.client()).unwrap() };
        (0..3).all(|at| count(&servers[at]) == count(&servers[at + 3]))
    });
    assert_eq!(bench.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 24]);
    let asked = |server: &Server| {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query(&mut server.client()).unwrap();
        info.contains("cmdstat_get:")
    };
    assert!(servers[3..].iter().any(asked), "no replica was read");
    servers[1].kill();
    assert_eq!(bench.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 24]);
}
