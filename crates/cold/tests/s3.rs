//! Owns the proof that a bucket serves as a store: found by names alone, few requests, no wrong byte, no wait beyond the deadline.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::bench::{
    ACCEPTED, BAD_RECORD, Bench, INCOMPLETE, MISSING, NAMESPACE, PRESENT, QUARANTINED, SOON, hash,
};
use support::bucket::{Bucket, Fault, vars};
use support::gateway::Gateway;
use tierkv_cold::s3::S3;
use tierkv_cold::store::Scope;

/// Long enough for a busy machine, short enough for a test that waits for it.
const SHORT: Duration = Duration::from_millis(400);

/// A client that knows nothing yet.
fn bench(port: u16) -> Bench {
    Bench::of(Arc::new(S3::open("s3://bucket/here", vars(port)).unwrap()))
}

fn refusals(bench: &Bench, name: &str) -> u64 {
    bench.desk.refusals().into_iter().find_map(|(of, count)| (of == name).then_some(count)).unwrap()
}

fn is_end(block: u32) -> bool {
    hash(block)[31].trailing_zeros() >= 4
}

fn serves(port: u16) {
    let (one, other) = (bench(port), bench(port));
    let blocks: Vec<u32> = (0..60).collect();
    assert_eq!(one.found(&blocks).unwrap(), vec![false; 60]);
    assert_eq!(one.fetch(&blocks, SOON).unwrap(), vec![MISSING; 60]);
    assert_eq!(one.store(&blocks[..30]).unwrap(), vec![ACCEPTED; 30]);
    // A second prompt goes on where the first one ended, and another machine saves both.
    assert_eq!(one.store(&blocks[30..50]).unwrap(), vec![ACCEPTED; 20]);
    assert_eq!(other.store(&blocks[..50]).unwrap(), vec![PRESENT; 50]);
    let third = bench(port);
    let found = third.found(&blocks).unwrap();
    assert_eq!(found, (0..60).map(|block| block < 50).collect::<Vec<_>>());
    let fourth = bench(port);
    let fetched = fourth.fetch(&blocks, SOON).unwrap();
    assert_eq!(fetched, [vec![ACCEPTED; 50], vec![MISSING; 10]].concat());
    let (taken, came) = fourth.take(&blocks[45..55]).unwrap();
    assert_eq!(taken, [vec![ACCEPTED; 5], vec![MISSING; 5]].concat());
    assert_eq!(came.len(), 5);
    assert_eq!(fourth.check_stored(&[3, 55]).unwrap(), [PRESENT, MISSING]);
    assert_eq!(fourth.free_slots(), 80);
}

fn flushes(port: u16) {
    let blocks: Vec<u32> = (0..60).collect();
    let (one, other) = (bench(port), bench(port));
    one.store(&blocks).unwrap();
    assert_eq!(other.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 60]);
    let of = |namespace| Scope { namespace, ..Scope::default() };
    assert_eq!(one.flushed(of(Some([9; 32]))).unwrap().removed, 0);
    assert_eq!(other.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 60]);
    let done = one.flushed(of(Some(NAMESPACE))).unwrap();
    assert!(done.removed > 3 && !done.is_left, "{done:?}");
    // The other one still knows the places.
    assert_eq!(other.fetch(&blocks, SOON).unwrap(), vec![MISSING; 60]);
    assert_eq!(bench(port).found(&blocks).unwrap(), vec![false; 60]);
    one.store(&blocks).unwrap();
    assert_eq!(one.flushed(of(None)).unwrap().removed, done.removed);
    assert_eq!(bench(port).found(&blocks).unwrap(), vec![false; 60]);
}

#[test]
fn a_real_server_is_flushed() {
    let Some(gateway) = Gateway::start() else { return };
    flushes(gateway.port);
}

#[test]
fn a_flush_removes_what_is_ours_page_by_page_and_nothing_else() {
    let bucket = Bucket::start();
    bucket.put("/bucket/here/notes.txt");
    bucket.put("/bucket/elsewhere");
    flushes(bucket.port);
    let left: Vec<_> = bucket.objects().into_keys().collect();
    assert_eq!(left, ["/bucket/elsewhere", "/bucket/here/notes.txt"]);
}

#[test]
fn a_flush_that_cannot_be_is_an_error_that_says_why() {
    let bucket = Bucket::start();
    let one = bench(bucket.port);
    for scope in [
        Scope { model: Some("m".into()), ..Scope::default() },
        Scope { tenant: 7, ..Scope::default() },
    ] {
        assert!(
            one.flushed(scope).unwrap_err().text.contains("does not tell models and tenants apart")
        );
    }
    bucket.fails_with(Fault::Refuses(403, "AccessDenied"));
    assert!(one.flushed(Scope::default()).unwrap_err().text.contains("AccessDenied"));
    assert_eq!(refusals(&one, "denied"), 1);
}

#[test]
fn a_real_server_serves() {
    let Some(gateway) = Gateway::start() else { return };
    serves(gateway.port);
}

#[test]
fn a_bucket_serves() {
    serves(Bucket::start().port);
}

#[test]
fn f191_a_server_without_conditions_serves() {
    let bucket = Bucket::start();
    bucket.fails_with(Fault::NoConditions);
    serves(bucket.port);
}

#[test]
fn blocks_are_packed_and_a_restore_takes_few_requests() {
    let bucket = Bucket::start();
    let blocks: Vec<u32> = (0..64).collect();
    bench(bucket.port).store(&blocks).unwrap();
    let runs = 1 + (0..63).filter(|block| is_end(*block)).count();
    assert_eq!(bucket.objects().len(), runs);
    assert!((2..16).contains(&runs), "{runs} runs");
    bucket.requests();
    let cold = bench(bucket.port);
    assert_eq!(cold.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 64]);
    let requests = bucket.requests();
    // One for each index, and one for each 4 MiB of a run.
    let bytes: usize = bucket.objects().values().sum();
    let most = 2 * runs + bytes / (4 << 20) + 1;
    assert!(requests.len() <= most, "{} requests, {most} at most", requests.len());
    assert_eq!(cold.fetch(&blocks[8..24], SOON).unwrap(), vec![ACCEPTED; 16]);
}

#[test]
fn a_prompt_that_parts_within_a_run_is_found_by_its_own_continuation() {
    let bucket = Bucket::start();
    let one = bench(bucket.port);
    let shared: Vec<u32> = (0..5).collect();
    let first: Vec<u32> = shared.iter().copied().chain(1000..1006).collect();
    let second: Vec<u32> = shared.iter().copied().chain(2000..2006).collect();
    one.store_chain(&first).unwrap();
    bench(bucket.port).store_chain(&second).unwrap();
    for prompt in [first, second] {
        let cold = bench(bucket.port);
        assert_eq!(cold.found(&prompt).unwrap(), vec![true; 11], "{prompt:?}");
        assert_eq!(cold.fetch(&prompt, SOON).unwrap(), vec![ACCEPTED; 11]);
    }
}

#[test]
fn of_two_savers_of_a_run_the_later_one_changes_nothing() {
    let bucket = Bucket::start();
    let blocks: Vec<u32> = (0..20).collect();
    bench(bucket.port).store(&blocks).unwrap();
    let before = bucket.objects();
    bucket.fails_with(Fault::HidesOnce);
    assert_eq!(bench(bucket.port).store(&blocks).unwrap(), vec![PRESENT; 20]);
    assert_eq!(bucket.objects(), before);
}

#[test]
fn f191_refusals_are_errors_with_the_servers_words_and_are_counted() {
    let bucket = Bucket::start();
    let one = bench(bucket.port);
    one.store(&[1]).unwrap();
    for (status, code, name) in [
        (503, "SlowDown", "slow_down"),
        (403, "AccessDenied", "denied"),
        (403, "SignatureDoesNotMatch", "denied"),
        (400, "ExpiredToken", "expired"),
        (403, "RequestTimeTooSkewed", "clock_skew"),
        (404, "NoSuchBucket", "other"),
    ] {
        bucket.fails_with(Fault::Refuses(status, code));
        let error = bench(bucket.port).found(&[1]).unwrap_err();
        assert!(error.text.contains(code), "{}", error.text);
        assert_eq!(error.text.contains("s3:ListBucket"), code == "AccessDenied", "{}", error.text);
        let is_key = code == "SignatureDoesNotMatch";
        assert_eq!(error.text.contains("correct AWS_ACCESS_KEY_ID"), is_key, "{}", error.text);
        let cold = bench(bucket.port);
        assert!(cold.store(&[9]).unwrap_err().text.contains(code));
        assert!(refusals(&cold, name) > 0, "{name}");
        assert!(one.fetch(&[1], SOON).unwrap_err().text.contains(code));
    }
    bucket.fails_with(Fault::None);
    assert_eq!(one.fetch(&[1], SOON).unwrap(), [ACCEPTED]);
}

#[test]
fn f191_a_body_that_is_torn_or_stops_costs_its_records_and_no_more_time() {
    let bucket = Bucket::start();
    let one = bench(bucket.port);
    let blocks: Vec<u32> = (0..16).collect();
    one.store(&blocks).unwrap();
    bucket.fails_with(Fault::Tears);
    let torn = one.fetch(&blocks, SOON).unwrap_or(vec![INCOMPLETE; 16]);
    assert!(torn.contains(&INCOMPLETE), "{torn:?}");
    bucket.fails_with(Fault::Freezes);
    assert!(one.fetch(&blocks, SHORT).is_err());
    bucket.fails_with(Fault::None);
    assert_eq!(one.fetch(&blocks, SOON).unwrap(), vec![ACCEPTED; 16]);
    assert_eq!(one.free_slots(), 80);
}

#[test]
fn f191_a_changed_object_is_no_block_and_one_that_is_gone_is_missing() {
    let bucket = Bucket::start();
    let one = bench(bucket.port);
    one.store(&[1]).unwrap();
    for at in [0, 20, 190, 192, 50_000] {
        bucket.fails_with(Fault::Flips(at));
        assert_eq!(one.fetch(&[1], SOON).unwrap(), [BAD_RECORD], "byte {at}");
    }
    assert_eq!(one.check_stored(&[1]).unwrap(), [QUARANTINED]);
    assert_eq!(bucket.objects().len(), 0);
    bucket.fails_with(Fault::None);
    assert_eq!(one.found(&[1]).unwrap(), [false]);
    one.store(&[1]).unwrap();
    bucket.remove_all();
    assert_eq!(one.fetch(&[1], SOON).unwrap(), [MISSING]);
    assert_eq!(one.store(&[1]).unwrap(), [ACCEPTED]);
}

#[test]
fn an_address_without_a_bucket_or_region_is_refused_with_the_fix() {
    let none = || -> tierkv_core::archive::Vars {
        Box::new(|name| (name == "AWS_EC2_METADATA_DISABLED").then(|| "true".to_owned()))
    };
    let error = |address: &str| S3::open(address, none()).map(|_| ()).unwrap_err().text;
    assert!(error("s3:///x").contains("[cluster] kv_cold = \"s3:///x\": there is no bucket"));
    assert!(error("s3://bucket/x").contains("AWS_REGION"));
}
