//! Tests the rules of visibility: on memory without coherence all of them together hold, and each one that is left out shows.
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/random.rs"]
mod random;
#[path = "support/sim.rs"]
mod sim;

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::{Arc, Mutex};

use content::{content, key, read};
use random::Random;
use sim::{Crashed, Side, World};
use tierkv_shm::flushes::Label;
use tierkv_shm::layout::Layout;
use tierkv_shm::region::{Offer, Pinned, Region, Reservation};
use tierkv_shm::trial;
use tierkv_shm::visibility::{RULES, Rule};

const SIDES: usize = 3;
const KEYS: u64 = 24;
const BYTES_MAX: u64 = 9000;
const STEPS: u64 = 150;

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
    without: Option<Rule>,
}

impl Run {
    fn new(seed: u64, without: Option<Rule>) -> Self {
        let layout = Layout::cut(12 * 4096 + 20_000, 4096).unwrap();
        let world = World::new(layout.region_bytes as usize, &layout.to_bytes());
        let (nodes, random) = (Vec::new(), Random::new(seed));
        let mut run = Self { world, layout, nodes, names: seed << 20, random, without };
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

    fn check(number: u64, pinned: &Pinned<'_, Side>) {
        let expected = content(number, BYTES_MAX);
        assert_eq!(pinned.bytes(), expected.len() as u64, "length of {number}");
        let mut bytes = vec![0; expected.len()];
        pinned.read(0, &mut bytes).unwrap();
        assert!(bytes == expected, "bytes of {number}");
    }

    fn act(&mut self, who: usize, action: u64, number: u64) {
        let other = self.nodes[(who + 1) % SIDES].region;
        let node = &mut self.nodes[who];
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
                    reservation.write(0, &bytes).unwrap();
                    node.filling = Some((number, reservation));
                }
            }
            4..7 => {
                if let Some((number, pinned)) = node.reading.take() {
                    Self::check(number, &pinned);
                } else if let Some(pinned) = node.region.pin(&key(number)).unwrap() {
                    Self::check(number, &pinned);
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
            Err(reason) => std::panic::resume_unwind(reason),
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

/// A side dies at each step of taking the end of a probe away and of publishing another record: somebody new finds all whole.
fn dies(seed: u64, without: Option<Rule>) -> bool {
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
                std::panic::resume_unwind(reason);
            }
            region.fabric().die_after(None);
            run.finish();
        }))
        .is_ok()
    })
}

fn holds(seed: u64, without: Option<Rule>) -> bool {
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

#[test]
fn each_rule_that_is_left_out_shows() {
    // Hundreds of expected failures need no text.
    set_hook(Box::new(|_| {}));
    let unseen: Vec<Rule> = RULES
        .into_iter()
        .filter(|rule| (0..seeds()).all(|seed| holds(seed, Some(*rule)) && dies(seed, Some(*rule))))
        .collect();
    let _ = std::panic::take_hook();
    assert!(unseen.is_empty(), "no run needs {unseen:?}");
}

/// Whether a side sees what another one publishes, and reads it right, round after round.
fn is_shared(seed: u64, without: Option<Rule>) -> bool {
    let bytes = 64 << 10;
    let world = World::new(bytes, &[]);
    let [one, other] = [1, 2].map(|name| Side::new(&world, seed * 2 + name, without));
    (1..20).all(|round| {
        trial::publish(&one, 4096, round);
        trial::heard(&other, 4096) == round && trial::is_whole(&other, 4096, round)
    })
}

#[test]
fn a_trial_tells_memory_that_is_not_kept_together() {
    assert!((0..20).all(|seed| is_shared(seed, None)));
    // Fences are needed by who dies, or does not wait for the word.
    let needed = [Rule::PayloadWriteBack, Rule::PayloadInvalidate, Rule::WordWriteBack];
    for rule in needed.into_iter().chain([Rule::WordInvalidate, Rule::UnlockFence]) {
        assert!((0..20).any(|seed| !is_shared(seed, Some(rule))), "{rule:?} is not missed");
    }
}
