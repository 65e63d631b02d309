//! Tests flushes of a region: what they take, who still reads, what comes too late, what is remembered, and who leaves.
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;

use std::fs::remove_file;
use std::path::PathBuf;

use content::{content, key, read};
use options::OPTIONS;
use tierkv_core::record::{CLASS_KV, CLASS_SSM};
use tierkv_shm::flushes::{Label, Scope};
use tierkv_shm::layout::{FLUSHES_MAX, NAMES_MAX};
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::open;
use tierkv_shm::region::{Offer, Region, Reservation};

const BYTES_MAX: u64 = 40_000;
const TENANT: u64 = 7 << 32 | 9;

struct Name(PathBuf);

impl Name {
    fn new(of: &str) -> Self {
        Self(PathBuf::from(format!("/dev/shm/tierkv-test-{of}-{}", std::process::id())))
    }

    fn open(&self) -> Region<Mapping> {
        open(&self.0, &OPTIONS).unwrap()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = remove_file(&self.0);
    }
}

fn offer(region: &Region<Mapping>, number: u64, label: Label) -> Reservation<'_, Mapping> {
    let bytes = content(number, BYTES_MAX);
    let offer = region.reserve(&key(number), bytes.len() as u64, label).unwrap();
    let Offer::Wanted(reservation) = offer else { panic!("{number} is wanted") };
    reservation.write(0, &bytes).unwrap();
    reservation
}

fn store(region: &Region<Mapping>, number: u64, label: Label) {
    assert!(offer(region, number, label).publish().unwrap());
}

fn is_there(region: &Region<Mapping>, number: u64) -> bool {
    region.look_up(&[key(number)]).unwrap() == [true]
}

#[test]
fn a_flush_takes_what_its_scope_names_and_nothing_else() {
    let name = Name::new("scopes");
    let region = name.open();
    let kv = Label::default();
    let ssm = Label { record_class: CLASS_SSM, ..kv };
    let theirs = Label { tenant: TENANT, ..kv };
    for (number, label) in [(1, kv), (2, ssm), (3, theirs)] {
        store(&region, number, label);
    }
    let strange = Scope { namespace: Some([0xAB; 32]), ..Scope::default() };
    assert_eq!(region.flush(&strange).unwrap().1, 0);
    let scope = Scope { record_class: Some(CLASS_SSM), ..Scope::default() };
    assert_eq!(region.flush(&scope).unwrap(), (2, 1, content(2, BYTES_MAX).len() as u64));
    assert_eq!([1, 2, 3].map(|number| is_there(&region, number)), [true, false, true]);
    let scope = Scope { tenant: Some(TENANT), record_class: Some(CLASS_KV), ..Scope::default() };
    assert_eq!(region.flush(&scope).unwrap().1, 1);
    assert_eq!([1, 3].map(|number| is_there(&region, number)), [true, false]);
    let scope = Scope { namespace: Some(key(1).namespace), ..Scope::default() };
    assert_eq!(region.flush(&scope).unwrap().1, 1);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used_chunks == 0, "{audit:?}");
    let fill = region.fill().unwrap();
    assert_eq!((fill.records, fill.used_bytes, fill.flush), (0, 0, 4));
    let news = region.news(1).unwrap();
    let scopes = news.flushes.unwrap();
    assert_eq!(scopes.last(), Some(&(4, scope)));
    assert_eq!(scopes.len(), 3);
}

#[test]
fn who_reads_a_flushed_record_reads_it_to_the_end_and_frees_it() {
    let name = Name::new("read");
    let region = name.open();
    store(&region, 1, Label::default());
    let pinned = region.pin(&key(1)).unwrap().unwrap();
    assert_eq!(region.flush(&Scope::default()).unwrap().1, 1);
    assert!(!is_there(&region, 1) && region.audit().unwrap().used_chunks > 0);
    // Nothing may come to where it lies.
    (10..200).for_each(|number| {
        let bytes = content(number, BYTES_MAX);
        if let Offer::Wanted(room) =
            region.reserve(&key(number), bytes.len() as u64, Label::default()).unwrap()
        {
            room.write(0, &bytes).unwrap();
            room.publish().unwrap();
        }
    });
    let mut bytes = vec![0; usize::try_from(pinned.bytes()).unwrap()];
    pinned.read(0, &mut bytes).unwrap();
    assert!(bytes == content(1, BYTES_MAX), "the bytes that were pinned");
    region.flush(&Scope::default()).unwrap();
    drop(pinned);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used_chunks == 0, "{audit:?}");
    assert_eq!(region.fill().unwrap().records, 0);
    store(&region, 1, Label::default());
}

#[test]
fn what_was_made_before_a_flush_does_not_come_after_it() {
    let name = Name::new("late");
    let region = name.open();
    let knows = |known| Label { known, ..Label::default() };
    let (own, other) = (offer(&region, 1, knows(0)), offer(&region, 2, knows(0)));
    let scope = Scope { namespace: Some(key(1).namespace), ..Scope::default() };
    region.flush(&Scope { namespace: Some([1; 32]), ..scope }).unwrap();
    assert!(other.publish().unwrap(), "a flush of others says nothing of it");
    region.flush(&scope).unwrap();
    assert!(!own.publish().unwrap(), "made before");
    assert!(!is_there(&region, 1));
    store(&region, 1, knows(2));
    store(&region, 3, Label::default());
    for _ in 0..=FLUSHES_MAX {
        region.flush(&Scope { namespace: Some([1; 32]), ..scope }).unwrap();
    }
    assert_eq!(region.news(2).unwrap().flushes, None, "not all are remembered");
    assert!(region.news(3).unwrap().flushes.is_some());
    assert!(!offer(&region, 4, knows(2)).publish().unwrap(), "perhaps made before one of them");
    assert!(offer(&region, 4, knows(3)).publish().unwrap());
    assert!(read(&region, 3).unwrap().is_some());
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.filling == 0, "{audit:?}");
}

#[test]
fn who_leaves_is_missed_at_once_and_frees_what_it_had() {
    let name = Name::new("leaves");
    let (region, other) = (name.open(), name.open());
    store(&other, 1, Label::default());
    let pinned = other.pin(&key(1)).unwrap().unwrap();
    let filling = offer(&other, 2, Label::default());
    assert_eq!((region.fill().unwrap().members, region.audit().unwrap().filling), (2, 1));
    other.leave().unwrap();
    let audit = region.audit().unwrap();
    assert_eq!((region.fill().unwrap().members, audit.filling, audit.pinned), (1, 0, 0));
    std::mem::forget((pinned, filling));
    assert!(region.discard(&key(1)).unwrap());
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used_chunks == 0, "{audit:?}");
}

#[test]
fn what_came_last_does_not_give_way_to_what_comes_with_it() {
    let name = Name::new("young");
    let region = name.open();
    let put = |number: u64| {
        let offer = region.reserve(&key(number), 20_000, Label::default()).unwrap();
        let Offer::Wanted(room) = offer else { panic!("{number} is wanted") };
        room.publish().unwrap();
    };
    let mut next = 0..;
    while region.fill().unwrap().evicted == 0 {
        next.by_ref().take(1).for_each(put);
    }
    let count = region.fill().unwrap().records;
    // At its first filling, too.
    for prompt in 0..20 {
        // All of the old ones were asked for, and none of the new ones.
        (0..next.start).for_each(|number| _ = is_there(&region, number));
        let numbers = next.start..next.start + count / 5;
        next.by_ref().take((count / 5) as usize).for_each(put);
        let lost: Vec<u64> = numbers.filter(|number| !is_there(&region, *number)).collect();
        assert!(lost.is_empty(), "prompt {prompt}: {lost:?} of {count} gave way to their own");
    }
}

#[test]
fn a_flush_by_model_takes_the_namespaces_that_were_named() {
    let name = Name::new("models");
    let region = name.open();
    let (model, other) = ([3; 32], [4; 32]);
    store(&region, 1, Label::default());
    store(&region, 2, Label { record_class: CLASS_SSM, ..Label::default() });
    assert_eq!(region.flush_model(&Scope::default(), &model).unwrap(), (0, 0, 0));
    region.name(&key(1).namespace, &model).unwrap();
    region.name(&[9; 32], &other).unwrap();
    assert_eq!(region.flush_model(&Scope::default(), &other).unwrap().1, 0);
    let states = Scope { record_class: Some(CLASS_SSM), ..Scope::default() };
    assert_eq!(region.flush_model(&states, &model).unwrap().1, 1);
    assert_eq!([1, 2].map(|number| is_there(&region, number)), [true, false]);
    // Another engine's release named it anew: one line, the last model.
    region.name(&key(1).namespace, &other).unwrap();
    assert_eq!(region.flush_model(&Scope::default(), &model).unwrap().1, 0);
    assert_eq!(region.flush_model(&Scope::default(), &other).unwrap().1, 1);
    store(&region, 1, Label::default());
    region.name(&key(1).namespace, &model).unwrap();
    (0..NAMES_MAX).for_each(|more| region.name(&[more as u8 + 10; 32], &other).unwrap());
    assert_eq!(region.flush_model(&Scope::default(), &model).unwrap().1, 0, "forgotten");
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.ready == 1, "{audit:?}");
}
