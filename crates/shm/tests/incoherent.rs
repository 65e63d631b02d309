//! Tests the rules of visibility: on memory without coherence all of them together hold, and each place that leaves one out shows.
//! @module-tag nightly
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/random.rs"]
mod random;
#[path = "support/sim.rs"]
mod sim;
#[path = "support/turns.rs"]
mod turns;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook};
use std::path::Path;
use std::sync::{Arc, Mutex};

use content::{content, key, read};
use random::Random;
use sim::{Crashed, Place, Side, World, places};
use tierkv_shm::flushes::Label;
use tierkv_shm::layout::Layout;
use tierkv_shm::region::{Offer, Pinned, Region, Reservation};
use tierkv_shm::superblock::{format, settle};
use tierkv_shm::trial;
use tierkv_shm::visibility::Fabric;
use turns::turns_hold;

const SIDES: usize = 3;
const KEYS: u64 = 24;
const BYTES_MAX: u64 = 9000;
const STEPS: u64 = 150;
/// Of the lock between hosts.
const TURNS_SEEDS: u64 = 300;
/// Of regions in memory that had other uses.
const SETTLES_SEEDS: u64 = 20;

/// A side with what it is in the middle of.
struct Node {
    region: &'static Region<Side>,
    filling: Option<(u64, Reservation<'static, Side>)>,
    reading: Option<(u64, Pinned<'static, Side>)>,
}

struct Run {
    world: Arc<Mutex<World>>,
    layout: Layout,
    nodes: Vec<Node>,
    names: u64,
    random: Random,
    without: Option<Place>,
}

impl Run {
    fn new(seed: u64, without: Option<Place>) -> Self {
        let layout = Layout::cut(12 * 4096 + 20_000, 4096).unwrap();
        let (world, names) = (World::new(layout.region_bytes as usize), seed << 20);
        format(&Side::new(&world, names, without), &layout);
        let (nodes, random) = (Vec::new(), Random::new(seed));
        let mut run = Self { world, layout, nodes, names, random, without };
        for _ in 0..SIDES {
            let node = run.node();
            run.nodes.push(node);
        }
        run
    }

    fn node(&mut self) -> Node {
        self.names += 1;
        let side = Side::new(&self.world, self.names, self.without);
        let region = Region::join(side, self.layout.region_bytes).expect("a place is free");
        Node { region: Box::leak(Box::new(region)), filling: None, reading: None }
    }

    fn check(number: u64, pinned: &Pinned<'_, Side>, in_place: Option<&Side>) {
        let expected = content(number, BYTES_MAX);
        assert_eq!(pinned.bytes(), expected.len() as u64, "length of {number}");
        let mut bytes = vec![0; expected.len()];
        if let Some(fabric) = in_place {
            pinned.seen();
            fabric.copy_out(pinned.at(), &mut bytes);
        } else {
            pinned.read(0, &mut bytes).unwrap();
        }
        assert!(bytes == expected, "bytes of {number}");
    }

    fn act(&mut self, who: usize, action: u64, number: u64) {
        let other = self.nodes[(who + 1) % SIDES].region;
        let node = &mut self.nodes[who];
        let in_place = action.is_multiple_of(2);
        let side = in_place.then(|| node.region.fabric());
        match action {
            0..4 => {
                if let Some((number, reservation)) = node.filling.take() {
                    reservation.publish().unwrap();
                    assert!(other.look_up(&[key(number)]).unwrap()[0], "{number} was published");
                    return;
                }
                let bytes = content(number, BYTES_MAX);
                let offer = node
                    .region
                    .reserve(&key(number), bytes.len() as u64, Label::default())
                    .unwrap();
                if let Offer::Wanted(reservation) = offer {
                    if in_place {
                        node.region.fabric().copy_in(reservation.at(), &bytes);
                        reservation.made();
                    } else {
                        reservation.write(0, &bytes).unwrap();
                    }
                    node.filling = Some((number, reservation));
                }
            }
            4..7 => {
                if let Some((number, pinned)) = node.reading.take() {
                    Self::check(number, &pinned, side);
                } else if let Some(pinned) = node.region.pin(&key(number)).unwrap() {
                    Self::check(number, &pinned, side);
                    node.reading = Some((number, pinned));
                }
            }
            7 => {
                if node.region.remove(&key(number)).unwrap() {
                    assert!(!other.look_up(&[key(number)]).unwrap()[0], "{number} was removed");
                }
            }
            _ => node.region.sweep().unwrap(),
        }
    }

    fn step(&mut self) {
        let who = self.random.below(SIDES as u64) as usize;
        let (action, number) = (self.random.below(9), self.random.below(KEYS));
        let dies = self.random.below(12) == 0;
        let steps = dies.then(|| self.random.below(220));
        self.nodes[who].region.fabric().die_after(steps);
        match catch_unwind(AssertUnwindSafe(|| self.act(who, action, number))) {
            Ok(()) => self.nodes[who].region.fabric().die_after(None),
            Err(reason) if reason.is::<Crashed>() => {
                self.nodes[who] = self.node();
                let audit = self.nodes[who].region.audit().unwrap();
                assert!(audit.is_sound(), "{audit:?}");
            }
            Err(reason) => resume_unwind(reason),
        }
    }

    /// What is left in the end is whole, and somebody new reads all of it.
    fn finish(mut self) {
        self.nodes.iter_mut().for_each(|node| (node.filling, node.reading) = (None, None));
        let last = self.node().region;
        let audit = last.audit().unwrap();
        assert!(audit.is_sound(), "{audit:?}");
        assert_eq!((audit.filling, audit.pinned), (0, 0), "{audit:?}");
        for number in 0..KEYS {
            if let Some(bytes) = read(last, number).unwrap() {
                assert!(bytes == content(number, BYTES_MAX), "bytes of {number}");
            }
        }
    }
}

/// Regions are leaked, so that what is held of them can be kept beside them; their memory is not.
impl Drop for Run {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.region.fabric().end());
    }
}

/// A side dies at each step of taking the end of a probe away and of publishing another record: somebody new finds all whole.
fn dies(seed: u64, without: Option<Place>) -> bool {
    (0..90).all(|steps| {
        let run = Run::new(seed * 90 + steps, without);
        let region = run.nodes[0].region;
        // One home.
        let numbers = [0, 6, 12, 18];
        let store = |number: u64| {
            let bytes = content(number, BYTES_MAX);
            let offer = region.reserve(&key(number), bytes.len() as u64, Label::default()).unwrap();
            let Offer::Wanted(reservation) = offer else { panic!("there is room") };
            reservation.write(0, &bytes).unwrap();
            reservation
        };
        catch_unwind(AssertUnwindSafe(|| {
            numbers[..3].iter().for_each(|number| _ = store(*number).publish().unwrap());
            region.remove(&key(6)).unwrap();
            let reservation = store(18);
            region.fabric().die_after(Some(steps));
            let died = catch_unwind(AssertUnwindSafe(|| {
                reservation.publish().unwrap();
                region.remove(&key(18)).unwrap();
                region.remove(&key(12)).unwrap();
            }));
            if let Err(reason) = died
                && !reason.is::<Crashed>()
            {
                resume_unwind(reason);
            }
            region.fabric().die_after(None);
            run.finish();
        }))
        .is_ok()
    })
}

fn holds(seed: u64, without: Option<Place>) -> bool {
    catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(seed, without);
        (0..STEPS).for_each(|_| run.step());
        run.finish();
    }))
    .is_ok()
}

fn seeds() -> u64 {
    if std::env::var_os("TIERKV_TEST_LONG").is_some() { 5000 } else { 150 }
}

#[test]
fn all_rules_together_hold_at_every_death() {
    for seed in 0..seeds() {
        assert!(holds(seed, None), "seed {seed}");
        assert!(seed > 20 || dies(seed, None), "seed {seed}");
    }
}

/// Every place of the source that writes back, waits or drops; the doctor's measure time, and nothing is read by them.
fn places_in_source() -> BTreeSet<Place> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all = ["fence(Rule::", "payload_in(", "payload_out(", "payload_made(", "payload_seen("];
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name: &str = path.file_name().unwrap().to_str().unwrap().to_owned().leak();
        let what: &[_] = match name {
            // The others: locks of the kernel, and beats.
            "doctor.rs" | "mapping.rs" | "seat.rs" => &[],
            // The others of its go by their callers.
            "visibility.rs" => &["(Rule::Word"],
            _ => &all,
        };
        let text = std::fs::read_to_string(path).unwrap();
        let is_named = |text: &str| what.iter().any(|call| text.contains(call));
        found.extend(
            (1..)
                .zip(text.lines())
                .filter(|(_, text)| is_named(text))
                .map(|(line, _)| (name, line)),
        );
    }
    found
}

#[test]
fn each_place_that_is_left_out_shows() {
    let mut found = BTreeSet::new();
    for seed in 0..20 {
        let mut run = Run::new(seed, None);
        (0..STEPS).for_each(|_| run.step());
        found.extend(places(&run.world));
    }
    found.extend(trial_of(0, None).1);
    found.extend(settles(0, None).1);
    assert!((0..20).all(|seed| turns_hold(seed, None, &mut found)), "the lock between hosts");
    assert_eq!(found, places_in_source(), "the simulator comes by every place");
    // Hundreds of expected failures need no text.
    set_hook(Box::new(|_| {}));
    let holds_without = |place: Place| {
        let is_seen = |seed| !holds(seed, Some(place)) || !dies(seed, Some(place));
        match place.0 {
            "between.rs" | "manager.rs" => {
                (0..TURNS_SEEDS).all(|seed| turns_hold(seed, Some(place), &mut BTreeSet::new()))
            }
            "superblock.rs" if (0..SETTLES_SEEDS).any(|seed| !settles(seed, Some(place)).0) => {
                false
            }
            _ => (0..20).all(|seed| trial_of(seed, Some(place)).0) && !(0..seeds()).any(is_seen),
        }
    };
    let unseen: Vec<_> = found.into_iter().filter(|place| holds_without(*place)).collect();
    let _ = std::panic::take_hook();
    assert!(unseen.is_empty(), "no run needs {unseen:?}");
}

/// Whether a side sees what another one publishes, and reads it right, round after round, also when it dies over it; and the places.
fn trial_of(seed: u64, without: Option<Place>) -> (bool, BTreeSet<Place>) {
    let open = |name: u64| {
        let world = World::new(64 << 10);
        let sides = [1, 2].map(|side| Side::new(&world, seed << 8 | name << 1 | side, without));
        (world, sides)
    };
    let (world, [one, other]) = open(0);
    let is_heard = (1..20).all(|round| {
        trial::publish(&one, 4096, round);
        trial::heard(&other, 4096) == round && trial::is_whole(&other, 4096, round)
    });
    let is_whole = (1..10).all(|steps| {
        let (_, [one, other]) = open(steps);
        one.die_after(Some(steps));
        let died = catch_unwind(AssertUnwindSafe(|| trial::publish(&one, 4096, 1)));
        if let Err(reason) = died
            && !reason.is::<Crashed>()
        {
            resume_unwind(reason);
        }
        trial::heard(&other, 4096) != 1 || trial::is_whole(&other, 4096, 1)
    });
    (is_heard && is_whole, places(&world))
}

/// Whether a side finds a whole region in memory that had other uses, at whichever step the one died that came first; and the places.
fn settles(seed: u64, without: Option<Place>) -> (bool, BTreeSet<Place>) {
    let layout = Layout::cut(12 * 4096 + 20_000, 4096).unwrap();
    let mut all = BTreeSet::new();
    let holds = (0..40).all(|steps| {
        let mut memory = vec![0xff; layout.region_bytes as usize];
        memory[..4096].fill(0);
        let world = World::of(memory);
        let side = |name: u64| Side::new(&world, seed << 16 | steps << 2 | name, without);
        let come = |side: &Side| settle(side, Some(&layout));
        let (one, other) = (side(1), side(2));
        one.die_after(Some(steps));
        let first = catch_unwind(AssertUnwindSafe(|| come(&one)));
        one.die_after(None);
        let found = catch_unwind(AssertUnwindSafe(|| {
            let (bytes, is_made_anew) = come(&other);
            let audit = Region::join(other, bytes).unwrap().audit().unwrap();
            // What is whole stays, because its maker may have joined.
            let is_kept = first.is_err() || !is_made_anew;
            audit.is_sound() && audit.ready == 0 && is_kept
        }));
        all.extend(places(&world));
        found.unwrap_or(false)
    });
    (holds, all)
}

#[test]
fn memory_that_had_other_uses_is_made_a_region_whoever_dies_over_it() {
    assert!((0..SETTLES_SEEDS).all(|seed| settles(seed, None).0));
}

#[test]
fn a_trial_tells_memory_that_is_kept_together() {
    assert!((0..20).all(|seed| trial_of(seed, None).0));
}
