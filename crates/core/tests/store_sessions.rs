//! Owns the proof that what a session keeps is not evicted, that its quota holds, and that what is released goes first.

#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
mod records;

use std::sync::Arc;

use random::Random;
use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{
    ENTRY_BYTES, ItemStatus, Listed, Offer, Options, RecordKey, S3Fifo, Scope, SessionStats, Store,
};

const RECORD: usize = 4096;
const ROOM: u64 = 400;
const GHOSTS: u64 = 10;

/// A store with room for about `ROOM` records, half of it for what sessions keep. In a trace, which takes no time, all would be new.
fn store() -> Arc<Store> {
    let max_bytes = (1 << 20) + ROOM * (RECORD as u64 + ENTRY_BYTES);
    let options = Options { max_bytes, max_record_bytes: RECORD as u64, record_class: CLASS_KV };
    let store = Store::with_policy(options, |room| Box::new(S3Fifo::new(room, GHOSTS)));
    let store = Arc::new(store.expect("options"));
    store.limit_sessions(max_bytes / 2);
    store
}

fn keys(numbers: std::ops::Range<u64>) -> Vec<RecordKey> {
    numbers.map(key).collect()
}

fn store_all(store: &Arc<Store>, keys: &[RecordKey]) {
    for key in keys {
        put(store, *key, &record(key, RECORD));
    }
}

fn held(store: &Store, keys: &[RecordKey]) -> usize {
    store.contains_all(keys).into_iter().filter(|is_held| *is_held).count()
}

/// Records that nobody asks for again.
fn flood(store: &Arc<Store>) {
    store_all(store, &keys(1 << 40..(1 << 40) + 4 * ROOM));
}

#[test]
fn what_a_session_keeps_stays_whenever_it_is_stored() {
    let store = store();
    let (early, late) = (keys(0..40), keys(40..80));
    store_all(&store, &early);
    store.add_to_session(1, &[early.clone(), late.clone()].concat(), &[], true);
    store_all(&store, &late);
    flood(&store);
    assert_eq!((held(&store, &early), held(&store, &late)), (40, 40));
    let SessionStats { keys, records, kept, kept_bytes } = store.session_stats(1);
    assert_eq!((keys, records, kept), (80, 80, 80));
    assert_eq!(store.stats().kept_bytes, kept_bytes);
}

#[test]
fn its_quota_is_not_exceeded_and_what_it_refused_may_fit_later() {
    let store = store();
    let (first, second) = (keys(0..180), keys(1000..1180));
    store_all(&store, &first);
    store_all(&store, &second);
    store.add_to_session(1, &first, &[], true);
    let over = store.add_to_session(2, &second, &[], true);
    assert!(over.records > over.kept, "{over:?}");
    assert!(store.stats().kept_bytes <= store.stats().max_bytes / 2);
    store.end_session(1, false);
    let fits = store.add_to_session(2, &second, &[], true);
    assert_eq!(fits.records, fits.kept, "{fits:?}");
}

#[test]
fn a_tenant_keeps_no_more_than_the_same_share_of_its_quota() {
    let store = store();
    let quota = 40 * (RECORD as u64 + ENTRY_BYTES);
    store.limit_tenants(quota, &[]);
    let own = keys(0..40);
    for key in &own {
        let Offer::Wanted(mut reservation) = store.reserve_for(7, *key, RECORD as u64) else {
            panic!("it has room");
        };
        reservation.write(0, &record(key, RECORD)).expect("it fits");
        assert_eq!(reservation.commit(), ItemStatus::Accepted);
    }
    let stats = store.add_to_session(1, &own, &[], true);
    assert!(stats.kept > 0 && stats.kept_bytes <= quota / 2 + RECORD as u64, "{stats:?}");
}

#[test]
fn what_is_released_goes_first_unless_another_session_keeps_it() {
    let store = store();
    let (shared, own, other) = (keys(0..20), keys(100..140), keys(200..240));
    for session in [&shared, &own, &other] {
        store_all(&store, session);
    }
    for key in other.iter().chain(&own) {
        assert!(store.pin(key).is_some(), "both are used alike");
    }
    store.add_to_session(1, &[shared.clone(), own.clone()].concat(), &[], true);
    store.add_to_session(2, &shared, &[], true);
    assert_eq!(store.end_session(1, true), own.len());
    let fresh = keys(1 << 40..(1 << 40) + 600);
    store_all(&store, &fresh);
    assert_eq!((held(&store, &own), held(&store, &shared)), (0, 20));
    assert!(held(&store, &other) > 20, "{}", held(&store, &other));
    assert_eq!(store.end_session(2, true), shared.len());
    assert_eq!(store.stats().kept_bytes, 0);
    flood(&store);
    assert_eq!(held(&store, &shared), 0, "nobody keeps it any more");
}

#[test]
fn released_records_stay_while_pinned_and_where_they_are_used_again() {
    let store = store();
    let own = keys(0..40);
    store_all(&store, &own);
    let pins: Vec<_> = own[..10].iter().map(|key| store.pin(key).expect("held")).collect();
    store.add_to_session(1, &own, &[], false);
    assert_eq!(store.end_session(1, true), 30, "pinned ones are not moved");
    drop(pins);
    for key in &own[10..20] {
        assert!(store.pin(key).is_some());
    }
    store_all(&store, &keys(1 << 40..(1 << 40) + 700));
    assert_eq!((held(&store, &own[10..20]), held(&store, &own[20..])), (10, 0));
}

#[test]
fn states_of_earlier_turns_leave_their_session_and_go_first() {
    let store = store();
    let of_group = |number: u64, group: u16| RecordKey { group, ..key(number) };
    let first: Vec<_> = (0..10).map(|number| of_group(number, 1)).collect();
    let second: Vec<_> = (10..20).map(|number| of_group(number, 1)).collect();
    let blocks: Vec<_> = (20..30).map(|number| of_group(number, 0)).collect();
    store_all(&store, &[first.clone(), second.clone(), blocks.clone()].concat());
    store.add_to_session(1, &[first.clone(), blocks.clone()].concat(), &[1], true);
    let stats = store.add_to_session(1, &second, &[1], true);
    assert_eq!((stats.keys, stats.kept), (20, 20));
    flood(&store);
    assert_eq!((held(&store, &first), held(&store, &second)), (0, 10));
    assert_eq!(held(&store, &blocks), 10);
}

#[test]
fn a_flush_takes_kept_records_too_and_memory_comes_back() {
    let store = store();
    let before = store.stats().used_bytes;
    let own = keys(0..40);
    store_all(&store, &own);
    store.add_to_session(1, &own, &[], true);
    store.flush(Scope::default());
    assert_eq!((held(&store, &own), store.stats().kept_bytes), (0, 0));
    store_all(&store, &own);
    assert_eq!(store.session_stats(1).kept, 40, "stored again, kept again");
    store.flush(Scope::default());
    store.end_session(1, false);
    assert_eq!(store.stats().used_bytes, before);
}

/// Turns of a conversation that is kept, and of one that is released.
const TURNS: u64 = 43;
const TURNS_SHORT: u64 = 12;
/// At a time; every third is kept, the others are released at their end, and others come.
const SESSIONS: usize = 9;

/// Hits and blocks asked for, of the conversations that go on for `TURNS` turns. `are_named`: vaults know which those are, and
/// which are over.
fn agents(are_named: bool) -> (u64, u64) {
    let store = store();
    let mut random = Random::new(7);
    let mut turns = [0; SESSIONS];
    let (mut hits, mut asked, mut others) = (0, 0, SESSIONS as u64);
    let mut names: Vec<u64> = (0..SESSIONS as u64).collect();
    while (0..SESSIONS).step_by(3).any(|slot| turns[slot] < TURNS) {
        let slot = usize::try_from(random.next() % SESSIONS as u64).expect("few");
        let is_kept = slot.is_multiple_of(3);
        let (last, growth) = if is_kept { (TURNS, 2) } else { (TURNS_SHORT, 10) };
        if turns[slot] == last {
            if !is_kept {
                (turns[slot], names[slot], others) = (0, others, others + 1);
            }
            continue;
        }
        turns[slot] += 1;
        let chain = keys(names[slot] << 20..(names[slot] << 20) + turns[slot] * growth);
        let found = chain.iter().take_while(|key| store.pin(key).is_some()).count();
        if is_kept {
            (hits, asked) = (hits + found as u64, asked + chain.len() as u64);
        }
        let name = u32::try_from(names[slot]).expect("few");
        store_all(&store, &chain[found..]);
        if are_named {
            store.add_to_session(name, &chain, &[], is_kept);
        }
        if are_named && !is_kept && turns[slot] == last {
            store.end_session(name, true);
        }
    }
    (hits, asked)
}

#[test]
fn conversations_that_are_kept_are_found_more_often_under_pressure() {
    let ((without, asked), (with, same)) = (agents(false), agents(true));
    assert_eq!(asked, same);
    let ratio = |hits: u64| hits * 1000 / asked;
    assert!(ratio(with) > ratio(without) + 50, "{} and {}", ratio(with), ratio(without));
}

#[test]
fn what_is_hot_is_listed_alone() {
    let store = store();
    let all = keys(0..30);
    store_all(&store, &all);
    store.add_to_session(1, &all[..5], &[], true);
    for key in &all[10..14] {
        drop(store.pin(key));
    }
    let listed = |of| store.list(CLASS_KV, None, of).rows.len() / 84;
    assert_eq!((listed(Listed::All), listed(Listed::Hot)), (30, 9));
}
