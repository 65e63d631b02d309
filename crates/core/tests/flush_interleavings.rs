//! Owns the proof that nothing flushed is served again: flushes of several namespaces at once, saves under way, restarts, lost
//! disks and an archive, in random orders.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/folder.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod folder;
#[path = "support/random.rs"]
mod random;
#[path = "support/records.rs"]
#[expect(dead_code, reason = "others use the rest")]
mod records;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use folder::Folder;
use random::Random;
use records::{key, record};
use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::store::{CLASS_ANY, Offer, Options, RecordKey, Reservation, Scope, Store};

const MIB: u64 = 1 << 20;
const RECORD: usize = 30_000;
const NAMESPACES: u64 = 3;
const KEYS: u64 = 60;

fn below(random: &mut Random, most: u64) -> u64 {
    random.next() % most
}

fn seed() -> u64 {
    let given = std::env::var("TIERKV_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    given.unwrap_or_else(now)
}

fn key_of(number: u64) -> RecordKey {
    let namespace = [1 + u8::try_from(number % NAMESPACES).unwrap(); 32];
    RecordKey { namespace, ..key(number) }
}

fn scope_of(namespace: u64) -> Scope {
    let name = [1 + u8::try_from(namespace).unwrap(); 32];
    Scope { namespace: Some(name), record_class: None, salt: None }
}

struct Flush {
    number: u64,
    all: Vec<u64>,
    /// Namespaces on which it was not carried out yet.
    left: Vec<u64>,
}

/// A vault, and what a witness knows of it.
struct Scene {
    disk: Folder,
    far: Folder,
    store: Option<Arc<Store>>,
    /// Reservations under way, and the last flush that their makers knew of.
    arriving: Vec<(u64, u64, Reservation)>,
    /// Last flush that the maker of the record knew of, for each record that was ever complete.
    made: BTreeMap<u64, u64>,
    /// All flushes begun.
    flushes: Vec<Flush>,
    /// Last flush carried out on each namespace.
    flushed: BTreeMap<u64, u64>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            disk: Folder::new(),
            far: Folder::new(),
            store: None,
            arriving: Vec::new(),
            made: BTreeMap::new(),
            flushes: Vec::new(),
            flushed: BTreeMap::new(),
        };
        scene.start();
        scene
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    /// As a vault starts: its log of flushes is told to the store, and those that did not end are carried out.
    fn start(&mut self) {
        let url = format!("file://{}", self.far.path().display());
        let (archive, after) = (archive::open(&url).unwrap(), Duration::from_millis(5));
        let archive = ArchiveOptions { url, archive, max_bytes: 64 * MIB, after };
        let ram = Options { max_bytes: MIB, max_record_bytes: MIB / 2, record_class: CLASS_ANY };
        let mut options = DiskOptions::new(2 * MIB, 16 * MIB, Durability::Group);
        options.retry = Duration::from_millis(5);
        let disk = Disk::open_archived(self.disk.path(), options, Some(archive)).unwrap();
        self.store = Some(Store::on_disk(ram, disk).unwrap());
        for Flush { number, all, .. } in &self.flushes {
            for name in all {
                self.store().note_flush(*number, scope_of(*name));
            }
        }
        for at in 0..self.flushes.len() {
            while self.carry_out(at) {}
        }
    }

    /// Carries a flush out on its next namespace; false where none is left.
    fn carry_out(&mut self, at: usize) -> bool {
        let Some(Flush { number, left, .. }) = self.flushes.get_mut(at) else { return false };
        let (number, Some(namespace)) = (*number, left.pop()) else { return false };
        let patience = Instant::now() + Duration::from_secs(60);
        // A caller flushes again where disk or archive did not take note.
        while !self.store().flush_as(number, scope_of(namespace)).is_durable {
            assert!(Instant::now() < patience, "the flush becomes durable");
        }
        let known = self.flushed.entry(namespace).or_default();
        *known = number.max(*known);
        true
    }

    fn end(&mut self) {
        self.arriving.clear();
        self.store = None;
    }

    /// No record is served whose maker did not know of a flush that was carried out on it.
    fn check(&self, what: &str) {
        for (number, known) in &self.made {
            let flushed = self.flushed.get(&(number % NAMESPACES)).copied().unwrap_or_default();
            if *known < flushed {
                let pinned = self.store().pin(&key_of(*number)).is_some();
                let is_held = self.store().contains(&key_of(*number));
                assert!(
                    !pinned && !is_held,
                    "{what}: {number}, made after {known}, is served after {flushed}"
                );
            }
        }
    }
}

fn play(seed: u64) {
    let mut random = Random::new(seed);
    let mut scene = Scene::new();
    let mut last = 0;
    for step in 0..160 {
        let what = format!("TIERKV_TEST_SEED={seed}, step {step}");
        match below(&mut random, 20) {
            0..=7 => {
                let number = below(&mut random, KEYS);
                // Some sidecars hear of flushes late.
                let known = last - below(&mut random, 4).min(last);
                let offer = scene.store().reserve_since(known, 0, key_of(number), RECORD as u64);
                if let Offer::Wanted(reservation) = offer {
                    scene.arriving.push((number, known, reservation));
                }
            }
            8..=12 if !scene.arriving.is_empty() => {
                let at = below(&mut random, scene.arriving.len() as u64);
                let (number, known, mut reservation) =
                    scene.arriving.swap_remove(usize::try_from(at).unwrap());
                let _ = reservation.write(0, &record(&key_of(number), RECORD));
                if reservation.commit() == tierkv_core::store::ItemStatus::Accepted {
                    scene.made.insert(number, known);
                }
            }
            13 => {
                last += 1;
                let all: Vec<_> = (0..NAMESPACES).filter(|_| below(&mut random, 3) > 0).collect();
                scene.flushes.push(Flush { number: last, left: all.clone(), all });
            }
            14..=16 if !scene.flushes.is_empty() => {
                // Any of those under way goes on.
                let at = below(&mut random, scene.flushes.len() as u64);
                scene.carry_out(usize::try_from(at).unwrap());
                scene.check(&what);
            }
            17 => {
                let _ = scene.store().pin(&key_of(below(&mut random, KEYS)));
            }
            18 if below(&mut random, 4) == 0 => {
                scene.end();
                if below(&mut random, 2) == 0 {
                    scene.disk = Folder::new();
                }
                scene.start();
                scene.store().disk().unwrap().wait_recovered();
                scene.check(&what);
            }
            _ => {}
        }
    }
    for at in 0..scene.flushes.len() {
        while scene.carry_out(at) {}
    }
    scene.check("at the end");
}

#[test]
fn f141_nothing_flushed_is_served_again_in_any_order() {
    for round in 0..6 {
        play(seed() + round);
    }
}
