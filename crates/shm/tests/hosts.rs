//! Tests a region that several hosts have. They are processes of one machine here, and share no lock of that machine.
//! @module-tag nightly
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/dying.rs"]
mod dying;
#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;
#[path = "support/sim.rs"]
mod sim;
#[path = "support/turns.rs"]
mod turns;
#[path = "support/work.rs"]
mod work;

use std::collections::BTreeSet;
use std::env::var;
use std::fs::{read_dir, read_to_string};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use content::key;
use dying::Dying;
use rustix::process::{Pid, Signal, kill_process};
use tierkv_core::key::RecordKey;
use tierkv_core::lane::client::Kept;
use tierkv_core::store::ItemStatus;
use tierkv_shm::desk::{Answer, Desk, Outcome, Work};
use tierkv_shm::flushes::Scope;
use tierkv_shm::layout::{CAME_AT, HAND_AT, HOSTS_AT, host};
use tierkv_shm::manager::{Manager, stand};
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, map, open};
use tierkv_shm::region::Region;
use tierkv_shm::visibility::{Coherence, Fabric};
use work::{Name, OPTIONS, check, contend, go_through_everything, is_long, mix, said, store, told};

/// What a host is told that others have fenced, outside the lock and under it.
const FENCED: [&str; 2] = ["silent for too long", "stopped under the region's lock"];
/// Times that a host of a busy machine may be fenced.
const FENCED_MAX: u64 = 50;

/// Of each of four hosts: a hundred thousand together in the long run.
fn turns() -> u64 {
    if is_long() { 25_000 } else { 400 }
}

/// Mixed operations of four hosts together; `TIERKV_TEST_OPERATIONS` sets another number.
fn operations() -> u64 {
    let usual = if is_long() { 1_000_000 } else { 4000 };
    var("TIERKV_TEST_OPERATIONS").map_or(usual, |number| number.parse().unwrap())
}

fn say(text: &str) {
    std::io::stdout().write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// What this process's keeper took of a processor, in ns, and how often it was given one.
fn keeper() -> [u64; 2] {
    let threads = read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let is_keeper = |thread: &PathBuf| {
        read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("tierkv-shm-keep"))
    };
    let thread = threads.into_iter().find(is_keeper).unwrap();
    let text = read_to_string(thread.join("schedstat")).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    [numbers[0], numbers[2]]
}

/// What the other processes of these tests do.
#[test]
fn child() {
    let Ok(role) = var("TIERKV_SHM_CHILD") else { return };
    let path = PathBuf::from(var("TIERKV_SHM_PATH").unwrap());
    let number: u64 = var("TIERKV_SHM_NUMBER").unwrap().parse().unwrap();
    let host: u64 = var("TIERKV_SHM_HOST").unwrap().parse().unwrap();
    let coherence = if host == 3 { Coherence::Clflush } else { Coherence::Hardware };
    let options = Options { host: Some(host), coherence, ..OPTIONS };
    let dying = || {
        let (memory, bytes) = map(&path, &options).unwrap();
        (Dying { memory, steps: 0.into(), dies_at: number, panics: false }, bytes)
    };
    match role.as_str() {
        "mixes" => mixes(|| open(&path, &options).unwrap(), host, number),
        "contends" => {
            let region = open(&path, &options).unwrap();
            while region.fill().unwrap().members < 5 {
                sleep(Duration::from_millis(1));
            }
            let [p99, most] = contend(&region, host, number);
            say(&format!("waits {p99} {most}"));
        }
        "idles" => {
            let _region = open(&path, &options).unwrap();
            sleep(Duration::from_millis(300));
            let start = (Instant::now(), keeper());
            sleep(Duration::from_millis(number));
            let end = keeper();
            let wakes = end[1] - start.1[1];
            say(&format!("woke {wakes} {} {}", end[0] - start.1[0], start.0.elapsed().as_millis()));
        }
        "owns" => {
            let (memory, bytes) = dying();
            let region = Region::join(memory, bytes).unwrap();
            go_through_everything(&region);
            say(&format!("steps {}", region.fabric().steps.load(Ordering::Relaxed)));
        }
        "manages" => {
            let (memory, _) = dying();
            stand(&memory, 0x7000_0000 + number);
            sleep(Duration::from_millis(20));
            let mut manager = Manager::elected(&memory, 0x7000_0000 + number).unwrap();
            // Until it is killed.
            while manager.step(&memory, 0).is_some() {
                sleep(Duration::from_micros(50));
            }
        }
        _ => {
            let region = open(&path, &options).unwrap();
            let memory = region.fabric();
            memory.lock().unwrap();
            say("inside");
            sleep(Duration::from_millis(300));
            let written = catch_unwind(AssertUnwindSafe(|| memory.store(HAND_AT, 1 << 40)));
            memory.unlock();
            let refused = region.look_up(&[key(1)]).err().map(|error| error.text);
            say(&format!("written {}", u8::from(written.is_ok())));
            say(&format!(
                "refused {}",
                u8::from(refused.is_some_and(|text| text.contains("silent")))
            ));
        }
    }
}

/// Works on a region, and opens it anew where a busy machine was silent for so long that others fenced it, as its users do.
fn mixes(open: impl Fn() -> Region<Mapping>, seed: u64, operations: u64) {
    let done = AtomicU64::new(0);
    for opened in 0..FENCED_MAX {
        let region = open();
        let work = AssertUnwindSafe(|| mix(&region, seed + opened * 1000, operations, &done));
        let Err(panic) = catch_unwind(work) else { return };
        let told = panic.downcast_ref::<String>().map(String::as_str);
        let text = told.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        let is_fenced = FENCED.iter().any(|told| text.contains(told));
        if !is_fenced {
            resume_unwind(panic);
        }
        say("fenced");
    }
    panic!("fenced {FENCED_MAX} times");
}

/// What is there after something happened, and how long that took.
fn goes_on(region: &Region<Mapping>, number: u64, what: &str) -> Duration {
    let start = Instant::now();
    store(region, number);
    let took = start.elapsed();
    // Others may evict it before it is read: one in a hundred on a busy machine.
    let is_there = check(region, number)
        || (0..20).any(|_| {
            store(region, number);
            check(region, number)
        });
    assert!(is_there, "{what}: {number} was stored");
    took
}

fn is_whole(region: &Region<Mapping>, what: &str) {
    region.sweep().unwrap();
    let audit = region.audit().unwrap();
    assert!(audit.is_sound(), "{what}: {audit:?}");
}

/// A process that works all the time, until it is dropped.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_host_at_a_time_is_inside_whoever_dies_or_is_stopped_where() {
    let seeds = if is_long() { 20_000 } else { 200 };
    for seed in 0..seeds {
        assert!(turns::turns_hold(seed, None, &mut BTreeSet::new()), "seed {seed}");
    }
}

#[test]
fn four_hosts_read_no_wrong_byte_and_leak_no_chunk() {
    let name = Name::new("hosts-mix");
    let region = name.open(Some(0));
    let children: Vec<_> =
        (0..4).map(|host| name.child(Some(host), "mixes", operations() / 4)).collect();
    for child in children {
        let output = said(child);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    sleep(Duration::from_millis(800));
    is_whole(&region, "mixed");
    let audit = region.audit().unwrap();
    assert_eq!((audit.filling, audit.pinned), (0, 0), "{audit:?}");
    assert!(audit.ready > 0, "{audit:?}");
}

#[test]
fn four_hosts_that_contend_all_get_the_lock_and_no_turn_is_lost() {
    let name = Name::new("hosts-contend");
    let region = name.open(Some(0));
    let children: Vec<_> = (0..4).map(|host| name.child(Some(host), "contends", turns())).collect();
    for child in children {
        let waits = told(&said(child), "waits");
        writeln!(std::io::stderr(), "waited, in us: p99 {}, most {}", waits[0], waits[1]).unwrap();
        assert!(!is_long() || waits[0] <= 5000, "{waits:?}");
    }
    // Whoever came between another one's reading and writing would have cost a count.
    assert_eq!(region.fabric().load(CAME_AT), 4 * turns());
    is_whole(&region, "contended");
}

#[test]
fn f104_an_owner_that_is_killed_at_any_step_leaves_other_hosts_a_whole_region() {
    let name = Name::new("hosts-owner");
    let region = name.open(Some(0));
    (0..300).for_each(|number| store(&region, number));
    let _load = Load(name.child(Some(2), "mixes", u64::MAX));
    let steps = told(&said(name.child(Some(1), "owns", u64::MAX)), "steps")[0];
    let deaths = if is_long() { 120 } else { 8 };
    let (mut died, mut most) = (0, Duration::ZERO);
    for death in 0..deaths {
        let dies_at = death * steps / deaths;
        // One in two is of this process's host, which lives on.
        let output = said(name.child(Some(death % 2), "owns", dies_at));
        died += u64::from(!output.status.success());
        most = most.max(goes_on(&region, 5000 + death, &format!("step {dies_at}")));
        is_whole(&region, &format!("step {dies_at}"));
    }
    assert!(died * 2 > deaths, "{died} of {deaths} died");
    writeln!(std::io::stderr(), "owner killed: others went on after {most:?} at most").unwrap();
    assert!(!is_long() || most <= Duration::from_secs(1), "{most:?}");
}

#[test]
fn f105_a_manager_that_is_killed_at_any_step_is_replaced() {
    let name = Name::new("hosts-manager");
    let region = name.open(Some(0));
    let _load = Load(name.child(Some(2), "mixes", u64::MAX));
    let deaths = if is_long() { 60 } else { 6 };
    let mut most = Duration::ZERO;
    for death in 0..deaths {
        // Its words: that it stands, that it lives, and grants.
        let dies_at = death * 3;
        let output = said(name.child(Some(1), "manages", dies_at));
        assert!(!output.status.success(), "it was killed");
        most = most.max(goes_on(&region, 6000 + death, &format!("word {dies_at}")));
        is_whole(&region, &format!("word {dies_at}"));
    }
    writeln!(std::io::stderr(), "manager killed: others went on after {most:?} at most").unwrap();
    assert!(!is_long() || most <= Duration::from_secs(1), "{most:?}");
}

#[test]
fn f104_a_host_that_is_stopped_with_the_lock_writes_nothing_when_it_goes_on() {
    let name = Name::new("hosts-stopped");
    let region = name.open(Some(0));
    let mut child = name.child(Some(1), "stops", 0);
    let pid = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("inside")), "it has the lock");
    kill_process(pid, Signal::STOP).unwrap();
    goes_on(&region, 1, "stopped");
    kill_process(pid, Signal::CONT).unwrap();
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    let has = |text: &str| rest.iter().any(|line| line.contains(text));
    assert!(has("written 0") && has("refused 1"), "{rest:?}");
    assert!(child.wait().unwrap().success());
    goes_on(&region, 2, "gone on");
    is_whole(&region, "gone on");
    // Its host comes back with another process.
    assert!(said(name.child(Some(1), "mixes", 20)).status.success());
}

#[test]
fn a_repair_that_panics_gives_the_lock_up_and_is_made_anew() {
    let name = Name::new("hosts-panic");
    let region = name.open(Some(0));
    (0..40).for_each(|number| store(&region, number));
    let (memory, bytes) = map(&name.0, &Options { host: Some(0), ..OPTIONS }).unwrap();
    let dying = Dying { memory, steps: 0.into(), dies_at: 1 << 32, panics: true };
    let other = Region::join(dying, bytes).unwrap();
    let (dead, _) = map(&name.0, &Options { host: Some(0), ..OPTIONS }).unwrap();
    // Its file is closed, as at a process's death.
    dead.lock().unwrap();
    drop(dead);
    // It takes the lock, and clears a part of the bitmap.
    other.fabric().steps.store((1 << 32) - 4, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| other.fill())).is_err());
    let (sink, outcomes) = channel();
    std::thread::spawn(move || sink.send((region.audit().unwrap(), check(&region, 39))));
    let (audit, is_there) = outcomes.recv_timeout(Duration::from_secs(20)).expect("it is free");
    assert!(audit.is_sound() && is_there, "{audit:?}");
}

#[test]
fn a_look_up_takes_one_turn() {
    let name = Name::new("hosts-turn");
    let options = Options { host: Some(0), ..OPTIONS };
    let (sink, outcomes) = channel();
    let tell = move |_, outcome: Outcome| sink.send(outcome.map(|(_, flush)| flush)).unwrap();
    let desk = Desk::open(&name.0, &options, false, Arc::new(tell)).unwrap();
    let region = name.open(Some(0));
    let (flush, _, _) = region.flush(&Scope::default()).unwrap();
    let turn = || region.fabric().load(HOSTS_AT + host::REQUEST) >> 2;
    for work in [Work::LookUp([0; 32], vec![[0; 36]]), Work::Fill] {
        let before = turn();
        desk.begin(work).unwrap();
        assert_eq!(outcomes.recv().unwrap().unwrap(), flush);
        assert_eq!(turn() - before, 1);
    }
}

#[test]
fn a_fetch_takes_two_turns_however_many_records_it_has() {
    let name = Name::new("hosts-pins");
    let options = Options { host: Some(0), ..OPTIONS };
    let (sink, outcomes) = channel();
    let tell = move |_, outcome: Outcome| sink.send(outcome).unwrap();
    let desk = Desk::open(&name.0, &options, false, Arc::new(tell)).unwrap();
    let region = name.open(Some(0));
    (0..20).for_each(|number| store(&region, number));
    let (flush, _, _) = region.flush(&Scope { tenant: Some(9), ..Scope::default() }).unwrap();
    // What is stored is no record: it is pinned, read and refused.
    let packed = |number: u64| {
        let RecordKey { block_hash, group, .. } = key(number);
        let mut packed = [0; 36];
        packed[..32].copy_from_slice(&block_hash);
        packed[32..34].copy_from_slice(&group.to_le_bytes());
        packed
    };
    let turn = || region.fabric().load(HOSTS_AT + host::REQUEST) >> 2;
    for count in [1, 25] {
        let (keys, namespace) = ((0..count).map(packed).collect(), key(0).namespace);
        let before = turn();
        let kept = Kept { namespace, keys, inbox: Arc::default(), keep: Box::new(|_, _| {}) };
        desk.begin(Work::Take(kept)).unwrap();
        let (Answer::Done(statuses, ..), number) = outcomes.recv().unwrap().unwrap() else {
            panic!("an answer to a fetch")
        };
        let there = statuses.iter().filter(|status| **status != ItemStatus::Missing as u8).count();
        assert_eq!((there as u64, statuses.len() as u64), (count.min(20), count));
        assert_eq!((turn() - before, number), (2, flush));
    }
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.pinned == 0, "{audit:?}");
}

#[test]
fn f154_a_request_for_the_lock_that_is_written_over_is_made_again() {
    let name = Name::new("hosts-request");
    let (region, other) = (name.open(Some(0)), name.open(Some(1)));
    store(&region, 1);
    other.fabric().lock().unwrap();
    let (sink, outcomes) = channel();
    std::thread::spawn(move || sink.send(check(&region, 1)));
    let request = HOSTS_AT + host::REQUEST;
    while other.fabric().load(request) & 3 != host::WAITING {
        sleep(Duration::from_millis(1));
    }
    other.fabric().store(request, 0);
    other.fabric().unlock();
    assert!(outcomes.recv_timeout(Duration::from_secs(20)).expect("it has its turn"));
}

#[test]
fn a_manager_that_nobody_asks_rests() {
    let name = Name::new("hosts-idle");
    let millis = if is_long() { 10_000 } else { 1000 };
    let told = told(&said(name.child(Some(1), "idles", millis)), "woke");
    let [wakes, took, millis] = told[..] else { panic!("{told:?}") };
    let us = took / millis;
    writeln!(std::io::stderr(), "idle: woke {wakes} times in {millis} ms, {us} us a s").unwrap();
    // Whoever has other work is woken less often, not more.
    assert!(wakes * 3 <= millis, "woke {wakes} times in {millis} ms");
}

#[test]
fn a_region_of_another_kind_or_number_is_refused_by_name() {
    let (one, several) = (Name::new("hosts-one"), Name::new("hosts-several"));
    drop((one.open(None), several.open(Some(0))));
    let refusal = |name: &Name, host: Option<u64>| {
        let text = open(&name.0, &Options { host, ..OPTIONS }).err().expect("refused").text;
        assert!(text.contains(&name.0.display().to_string()), "{text}");
        text
    };
    assert!(refusal(&one, Some(0)).contains("write no [cluster] host"));
    assert!(refusal(&several, None).contains("write [cluster] host"));
    assert!(refusal(&several, Some(8)).contains("no host of that number"));
}
