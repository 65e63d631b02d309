//! Owns the proof that a tenant's flood leaves what others have within their quotas (fault F41).
//! @module-tag nightly

#[path = "support/random.rs"]
mod random;
#[expect(dead_code, reason = "records here are of tenants")]
#[path = "support/records.rs"]
mod records;
#[expect(dead_code, reason = "keys are drawn one by one")]
#[path = "support/trace.rs"]
mod trace;

use std::sync::Arc;

use proptest::prelude::*;
use random::Random;
use records::{key, record};
use tierkv_core::limits::{STORE_TENANTS_ALL_MAX, STORE_TENANTS_MAX};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{
    ENTRY_BYTES, ItemStatus, Offer, Options, RecordKey, Scope, Store, tenant_of,
};
use trace::Zipf;

const RECORD: usize = 4096;
/// What one record costs, by and large.
const COST: u64 = RECORD as u64 + ENTRY_BYTES + 40;
const TENANTS: u64 = 5;
const QUOTA_RECORDS: u64 = 1000;
const QUOTA: u64 = QUOTA_RECORDS * COST;

fn store(max_bytes: u64) -> Arc<Store> {
    let options = Options { max_bytes, max_record_bytes: RECORD as u64, record_class: CLASS_KV };
    Arc::new(Store::new(options).expect("options"))
}

/// A store where each of five tenants has a fifth.
fn shared(has_quotas: bool) -> Arc<Store> {
    let store = store(TENANTS * QUOTA + (1 << 20));
    if has_quotas {
        store.limit_tenants(QUOTA, &[]);
    }
    store
}

/// Key `number` of a tenant.
fn key_of(tenant: u64, number: u64) -> RecordKey {
    key(tenant << 32 | number)
}

fn put(store: &Arc<Store>, tenant: u64, number: u64) -> ItemStatus {
    let key = key_of(tenant, number);
    match store.reserve_for(tenant, key, RECORD as u64) {
        Offer::Refused(status) => status,
        Offer::Wanted(mut reservation) => {
            reservation.write(0, &record(&key, RECORD)).expect("it fits");
            reservation.commit()
        }
    }
}

/// Share of hits of tenant 1 on a trace it replays over and over, in its second half; `flood` runs after each look-up.
fn hit_ratio(store: &Arc<Store>, mut flood: impl FnMut()) -> f64 {
    let zipf = Zipf::new(3000, 0.9);
    let mut random = Random::new(11);
    let (mut hits, length) = (0_u32, 30_000_u32);
    for at in 0..length {
        let number = zipf.sample(&mut random);
        if store.pin(&key_of(1, number)).is_some() {
            hits += u32::from(at >= length / 2);
        } else {
            assert_eq!(put(store, 1, number), ItemStatus::Accepted);
        }
        flood();
    }
    f64::from(hits) / f64::from(length / 2)
}

#[test]
fn f41_a_flood_of_four_leaves_a_tenant_nine_tenths_of_its_hits() {
    let alone = hit_ratio(&store(QUOTA + (1 << 17)), || ());
    let flooded = |has_quotas| {
        let (store, mut next) = (shared(has_quotas), 0);
        let ratio = hit_ratio(&store, || {
            for tenant in 2..=TENANTS {
                next += 1;
                assert_eq!(put(&store, tenant, next), ItemStatus::Accepted);
                // Used at once, so that they are not the first to go as scans are.
                assert!((0..2).all(|_| store.pin(&key_of(tenant, next)).is_some()));
            }
        });
        assert!(store.stats().evicted > 50_000, "it was a flood");
        ratio
    };
    let (with, without) = (flooded(true), flooded(false));
    assert!(alone > 0.5, "the trace can be cached at all: {alone}");
    assert!(with >= 0.9 * alone, "{with} of {alone}");
    assert!(
        without < 0.9 * alone,
        "the flood was felt where nobody has a quota: {without} of {alone}"
    );
}

#[test]
fn f41_what_nobody_keeps_is_anybodys_until_somebody_comes() {
    let store = shared(true);
    for number in 0..TENANTS * QUOTA_RECORDS * 2 {
        assert_eq!(put(&store, 2, number), ItemStatus::Accepted);
    }
    assert!(store.used_by(2) > (TENANTS - 1) * QUOTA, "one alone has all of it");
    for number in 0..QUOTA_RECORDS - 1 {
        assert_eq!(put(&store, 1, number), ItemStatus::Accepted);
    }
    assert!(store.used_by(1) > QUOTA / 10 * 9, "who comes gets what is its own");
    for number in 0..QUOTA_RECORDS * TENANTS {
        put(&store, 2, 1 << 20 | number);
    }
    let kept = (0..QUOTA_RECORDS - 1).filter(|number| store.contains(&key_of(1, *number)));
    assert_eq!(kept.count() as u64, QUOTA_RECORDS - 1, "and keeps it");
}

#[test]
fn f41_a_tenant_may_have_a_quota_of_its_own() {
    let store = shared(true);
    store.limit_tenants(QUOTA, &[(1, 3 * QUOTA), (2, 0)]);
    for number in 0..3 * QUOTA_RECORDS - 1 {
        assert_eq!(put(&store, 1, number), ItemStatus::Accepted);
    }
    assert_eq!(put(&store, 2, 0), ItemStatus::OverBudget, "one without a quota has no place");
    for number in 0..TENANTS * QUOTA_RECORDS {
        put(&store, 3, number);
    }
    assert!(store.used_by(1) > QUOTA * 29 / 10, "{} of {QUOTA}", store.used_by(1));
}

#[test]
fn f41_nobody_has_more_than_its_quota_on_its_way() {
    let store = shared(true);
    let mut open = Vec::new();
    for number in 0.. {
        match store.reserve_for(2, key_of(2, number), RECORD as u64) {
            Offer::Wanted(reservation) => open.push(reservation),
            Offer::Refused(status) => {
                assert_eq!(status, ItemStatus::OverBudget);
                break;
            }
        }
    }
    assert!(store.used_by(2) <= QUOTA + COST && open.len() as u64 > QUOTA_RECORDS / 2);
    assert_eq!(put(&store, 1, 0), ItemStatus::Accepted, "others are served");
    drop(open);
    assert_eq!(store.used_by(2), 0);
    assert_eq!(put(&store, 2, 0), ItemStatus::Accepted, "and so is it, afterwards");
}

#[test]
fn f41_there_may_be_more_tenants_than_are_told_apart() {
    let store = store(16 << 20);
    store.limit_tenants(QUOTA, &[]);
    for tenant in 0..20_000 {
        assert_eq!(put(&store, tenant, 0), ItemStatus::Accepted);
    }
    assert!(store.stats().used_bytes <= 16 << 20);
    store.flush(Scope::default());
    assert!((0..20_000).all(|tenant| store.used_by(tenant) == 0), "none is left over");
    assert_eq!(store.stats().used_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is put by whom: who was within its quota loses nothing to others.
    #[test]
    fn f41_nobody_within_its_quota_loses_anything_to_others(
        puts in prop::collection::vec((0..6_u64, 0..80_u64, any::<bool>()), 1..1500),
    ) {
        let quota = 30 * COST;
        let store = store((1 << 20) + 6 * quota + 4096);
        // Most of it is somebody's who has no part in this.
        store.limit_tenants(quota, &[(9, 1 << 20)]);
        for number in 0..(1 << 20) / COST - 4 {
            put(&store, 9, number);
        }
        let tenants = [0, 1, 2, 3, 4, 5, 9];
        for (tenant, number, is_used) in puts {
            let before = tenants.map(|other| store.used_by(other));
            put(&store, tenant, number);
            if is_used {
                drop(store.pin(&key_of(tenant, number)));
            }
            for (other, before) in tenants.into_iter().zip(before) {
                let quota = if other == 9 { 1 << 20 } else { quota };
                let is_safe = other != tenant && before <= quota;
                prop_assert!(!is_safe || store.used_by(other) == before, "tenant {}", other);
            }
        }
        let used: u64 = tenants.into_iter().map(|tenant| store.used_by(tenant)).sum();
        prop_assert_eq!(used, store.stats().used_bytes);
    }
}

#[test]
fn f41_tenants_beyond_the_table_share_one_quota_of_what_is_on_its_way() {
    let known = STORE_TENANTS_MAX as u64;
    let store = store((known + 10 * QUOTA_RECORDS) * COST);
    store.limit_tenants(10 * COST, &[]);
    // Nobody's, tenant 0, has a row from the start.
    for tenant in 1..known {
        assert_eq!(put(&store, tenant, 0), ItemStatus::Accepted, "tenant {tenant}");
    }
    let mut on_their_way = Vec::new();
    for tenant in known..known + 100 {
        if let Offer::Wanted(it) = store.reserve_for(tenant, key_of(tenant, 0), RECORD as u64) {
            on_their_way.push(it);
        }
    }
    // COST leaves out how sizes are rounded.
    assert!((5..=10).contains(&on_their_way.len()), "{}", on_their_way.len());
    on_their_way.pop();
    assert!(matches!(store.reserve_for(known, key_of(known, 1), RECORD as u64), Offer::Wanted(_)));
}

#[test]
fn f41_a_tenant_is_its_credentials_whatever_its_peer_calls_it() {
    let salts = [0, 1, 0xFFFF_FFFF, 1 << 32, (1 << 48) - 1, 0x1234_5678_9ABC];
    for salt in salts {
        let tenants = [0, 1, u16::MAX].map(|account| tenant_of(account, salt));
        assert!(tenants.iter().all(|tenant| *tenant < 1 << 48));
        assert_eq!(tenants.map(|tenant| tenant >> 32), [0, 1, 0xFFFF], "{salt:x}");
        assert!(tenants.iter().all(|tenant| (tenant.trailing_zeros() >= 32) == (salt == 0)));
    }
    // What folds to nothing is somebody all the same.
    assert_eq!(tenant_of(2, 1 << 32 | 1), 2 << 32 | 1);
}

/// The victim's records of 120 that outlive a flood by one credential under 1,000 names.
fn kept_beside_names(flooder: u16, victim: u16) -> u64 {
    let store = store(4 * QUOTA);
    store.limit_tenants(200 * COST, &[]);
    let victim = tenant_of(victim, 77);
    for number in 0..120 {
        assert_eq!(put(&store, victim, number), ItemStatus::Accepted);
    }
    for number in 0..20 {
        for salt in 1..=1000 {
            let tenant = tenant_of(flooder, salt << 20);
            assert_eq!(put(&store, tenant, 1 << 40 | salt << 8 | number), ItemStatus::Accepted);
        }
    }
    assert!(store.stats().evicted > 10_000, "it was a flood");
    (0..120).filter(|number| store.contains(&key_of(victim, *number))).count() as u64
}

#[test]
fn f41_a_thousand_made_up_names_of_one_credential_take_nothing_from_another() {
    assert_eq!(kept_beside_names(1, 2), 120);
    assert_eq!(kept_beside_names(1, 0), 120);
    assert_eq!(kept_beside_names(0, 1), 120);
    assert!(kept_beside_names(1, 1) < 120, "within one credential names are tenants");
}

#[test]
fn f41_credentials_that_all_flood_have_equal_parts_and_a_lesser_one_keeps_all_of_its() {
    let store = store(4 * QUOTA);
    store.limit_tenants(QUOTA, &[]);
    for number in 0..100 {
        put(&store, tenant_of(9, 0), number);
    }
    for number in 0..6 * QUOTA_RECORDS {
        // One that is nobody's, one with many names, one with one.
        put(&store, tenant_of(0, 0), 1 << 20 | number);
        put(&store, tenant_of(1, 1 + number % 50), 2 << 20 | number);
        put(&store, tenant_of(2, 5), 3 << 20 | number);
    }
    let many: u64 = (1..=50).map(|salt| store.used_by(tenant_of(1, salt))).sum();
    let used = [store.used_by(0), many, store.used_by(tenant_of(2, 5))];
    let part = (4 * QUOTA - 100 * COST) / 3;
    assert!(used.iter().all(|bytes| bytes.abs_diff(part) < part / 10), "{used:?}, {part} each");
    let kept = (0..100).filter(|number| store.contains(&key_of(tenant_of(9, 0), *number)));
    assert_eq!(kept.count(), 100);
}

#[test]
fn f41_one_credential_has_no_more_than_a_quota_on_its_way_under_all_of_its_names() {
    let store = shared(true);
    let on_their_way = |account: u16| {
        let reserve = |salt| {
            let tenant = tenant_of(account, salt);
            match store.reserve_for(tenant, key_of(tenant, salt), RECORD as u64) {
                Offer::Wanted(reservation) => Some(reservation),
                Offer::Refused(_) => None,
            }
        };
        (1..3 * QUOTA_RECORDS).filter_map(reserve).collect::<Vec<_>>()
    };
    let open = on_their_way(3);
    assert!(open.len() as u64 <= QUOTA_RECORDS + 20, "{}", open.len());
    assert_eq!(put(&store, tenant_of(4, 1), 0), ItemStatus::Accepted);
    drop(open);
    assert!(on_their_way(3).len() as u64 > QUOTA_RECORDS / 2, "and again when they are over");
}

#[test]
fn f41_a_credential_with_more_names_than_are_told_apart_takes_no_place_of_others() {
    let store = store((STORE_TENANTS_ALL_MAX as u64 + QUOTA_RECORDS) * COST);
    store.limit_tenants(100 * COST, &[]);
    // Five fill the table, whatever each is allowed.
    for account in 1..=5 {
        for salt in 1..=STORE_TENANTS_MAX as u64 + 10 {
            let number = u64::from(account) << 56 | salt;
            assert_eq!(put(&store, tenant_of(account, salt), number), ItemStatus::Accepted);
        }
    }
    assert!(store.used_by(tenant_of(1, 0)) > 0, "further ones are its own");
    assert_eq!(store.used_by(0), 0, "and not nobody's");
    // Where all places of names are taken, a credential has its own.
    assert_eq!(put(&store, tenant_of(6, 3), 1), ItemStatus::Accepted);
    assert_eq!([store.used_by(tenant_of(6, 3)), store.used_by(0)], [0, 0]);
    assert!(store.used_by(tenant_of(6, 0)) > 0);
    store.flush(Scope::default());
    assert_eq!(store.stats().used_bytes, 0);
}
