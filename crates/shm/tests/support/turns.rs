//! Owns a simulation of the lock between hosts: hosts, managers and deaths in any order, each stopped in the middle of any step.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tierkv_shm::between::{Between, Turn};
use tierkv_shm::layout::{BITMAP_AT, HOST_BYTES, HOSTS_AT, host};
use tierkv_shm::manager::{Manager, stand};
use tierkv_shm::trial::{heard, say};

use super::random::Random;
use super::sim::{Crashed, Place, Side, World};

const HOSTS: usize = 3;
const STEPS: u64 = 400;
/// Nobody dies or is stopped in steps so deep.
const CALM: u64 = 9;
/// What is changed under the lock.
const COUNTER: u64 = BITMAP_AT;

#[derive(Clone, Copy, PartialEq)]
enum Worker {
    Idle,
    Waits(u64),
    Inside(u64, u64),
    Changed(u64),
    /// Killed; its host lives, and finds out later.
    Killed,
}

struct Node {
    side: Arc<Side>,
    worker: Worker,
    known: Option<u64>,
    candidate: Option<u64>,
    manager: Option<Manager>,
    turns: u64,
}

/// What must hold.
struct Oracle {
    inside: Option<usize>,
    counter: u64,
    /// Somebody died inside: the next one is told, and the counter is one of two.
    is_half: bool,
    dead: u64,
    /// Who stood last.
    managing: Option<usize>,
    names: u64,
    random: Random,
}

pub struct Turns {
    world: Arc<Mutex<World>>,
    nodes: Vec<Mutex<Node>>,
    oracle: Mutex<Oracle>,
    without: Option<Place>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turns {
    fn new(seed: u64, without: Option<Place>) -> Arc<Self> {
        let world = World::new(BITMAP_AT as usize + 4096);
        let oracle = Oracle {
            inside: None,
            counter: 0,
            is_half: false,
            dead: 0,
            managing: None,
            names: seed << 20,
            random: Random::new(seed),
        };
        let mut turns = Self { world, nodes: Vec::new(), oracle: oracle.into(), without };
        let nodes = (0..HOSTS).map(|number| turns.node(number).into()).collect();
        turns.nodes = nodes;
        Arc::new(turns)
    }

    fn node(&self, number: usize) -> Node {
        let name = self.name();
        let side = Arc::new(Side::new(&self.world, name, self.without));
        // As whoever arrives says it.
        say(&*side, HOSTS_AT + number as u64 * HOST_BYTES + host::KERNEL, 1);
        let (worker, known, candidate, manager) = (Worker::Idle, None, None, None);
        Node { side, worker, known, candidate, manager, turns: 0 }
    }

    fn name(&self) -> u64 {
        let mut oracle = lock(&self.oracle);
        oracle.names += 1;
        oracle.names
    }

    fn below(&self, end: u64) -> u64 {
        lock(&self.oracle).random.below(end)
    }

    /// A step of a host; it may be stopped in its middle while others go on, or die there.
    fn act(self: &Arc<Self>, who: usize, depth: u64) {
        let Ok(mut node) = self.nodes[who].try_lock().or_else(|error| match error {
            std::sync::TryLockError::Poisoned(poisoned) => Ok(poisoned.into_inner()),
            std::sync::TryLockError::WouldBlock => Err(()),
        }) else {
            return;
        };
        if lock(&self.oracle).dead >> who & 1 == 1 {
            if self.below(8) == 0 {
                // A new life of that host.
                *node = self.node(who);
                lock(&self.oracle).dead &= !(1 << who);
            }
            return;
        }
        let side = Arc::clone(&node.side);
        side.die_after((depth < CALM && self.below(20) == 0).then(|| self.below(10)));
        if depth < 2 && self.below(3) == 0 {
            let (turns, others) = (Arc::clone(self), self.below(25));
            side.stop_after(self.below(12), move || {
                for _ in 0..others {
                    let other = turns.below(HOSTS as u64) as usize;
                    turns.act(other, depth + 1);
                }
            });
        }
        let acted = catch_unwind(AssertUnwindSafe(|| self.step(who, &mut node)));
        side.die_after(None);
        side.go_on();
        match acted {
            Ok(()) => {}
            Err(reason) if reason.is::<Crashed>() => {
                let is_inside = lock(&self.oracle).inside == Some(who);
                let mut oracle = lock(&self.oracle);
                oracle.dead |= 1 << who;
                if is_inside {
                    (oracle.inside, oracle.is_half) = (None, true);
                }
            }
            Err(reason) => resume_unwind(reason),
        }
    }

    fn step(&self, who: usize, node: &mut Node) {
        if self.below(2) == 0 { self.works(who, node) } else { self.keeps(who, node) }
    }

    fn works(&self, who: usize, node: &mut Node) {
        let side = Arc::clone(&node.side);
        let between = Between::new(&*side, who as u64);
        if node.worker != Worker::Idle && self.below(80) == 0 {
            node.worker = Worker::Killed;
            let mut oracle = lock(&self.oracle);
            if oracle.inside == Some(who) {
                (oracle.inside, oracle.is_half) = (None, true);
            }
            return;
        }
        match node.worker {
            Worker::Idle => node.worker = Worker::Waits(between.asks()),
            Worker::Waits(turn) => match between.poll(turn) {
                Turn::Waits => {}
                Turn::Again(turn) => node.worker = Worker::Waits(turn),
                Turn::Inside => self.enter(who, node, turn),
            },
            Worker::Inside(turn, counter) => {
                say(&*side, COUNTER, counter + 1);
                lock(&self.oracle).counter = counter + 1;
                node.worker = Worker::Changed(turn);
            }
            Worker::Changed(turn) => {
                lock(&self.oracle).inside = None;
                node.turns += 1;
                node.worker = Worker::Idle;
                between.gives_back(turn);
            }
            Worker::Killed => {
                between.gives_up();
                node.worker = Worker::Idle;
            }
        }
    }

    fn enter(&self, who: usize, node: &mut Node, turn: u64) {
        let side = Arc::clone(&node.side);
        let between = Between::new(&*side, who as u64);
        {
            let mut oracle = lock(&self.oracle);
            assert_eq!(oracle.inside, None, "{who} is inside, too");
            oracle.inside = Some(who);
        }
        let Some(known) = between.arrives(node.known) else {
            // Found dead by a manager that was stopped while it came back: its processes start anew.
            (node.known, node.worker) = (None, Worker::Idle);
            lock(&self.oracle).inside = None;
            between.gives_back(turn);
            return;
        };
        node.known = Some(known);
        let counter = heard(&*side, COUNTER);
        let (is_half, expected) = {
            let oracle = lock(&self.oracle);
            (oracle.is_half, oracle.counter)
        };
        if is_half {
            assert!(between.is_doubtful(), "{who} is told of a death");
            assert!(counter == expected || counter == expected + 1, "{counter}");
        } else {
            assert_eq!(counter, expected, "what the last owner wrote");
        }
        if between.is_doubtful() {
            between.repaired();
        }
        let mut oracle = lock(&self.oracle);
        (oracle.is_half, oracle.counter) = (false, counter);
        node.worker = Worker::Inside(turn, counter);
    }

    fn keeps(&self, who: usize, node: &mut Node) {
        let side = Arc::clone(&node.side);
        if let Some(manager) = &mut node.manager {
            let dead = lock(&self.oracle).dead;
            if manager.step(&*side, dead).is_none() {
                node.manager = None;
            }
            return;
        }
        if let Some(number) = node.candidate.take() {
            node.manager = Manager::elected(&*side, number);
            return;
        }
        let is_managed = {
            let oracle = lock(&self.oracle);
            oracle.managing.is_some_and(|manager| oracle.dead >> manager & 1 == 0)
        };
        // Also where one manages: it may look dead.
        if !is_managed || self.below(30) == 0 {
            // Of 32 bits.
            let number = self.name() % (1 << 32);
            node.candidate = Some(number);
            stand(&*side, number);
            lock(&self.oracle).managing = Some(who);
        }
    }

    /// Once nothing is in the way, each host gets its turns.
    fn finish(self: &Arc<Self>) {
        let before: Vec<u64> = self.nodes.iter().map(|node| lock(node).turns).collect();
        let is_served = |who: usize| {
            let node = lock(&self.nodes[who]);
            node.turns >= before[who] + 2 || node.turns < before[who]
        };
        for _ in 0..3000 {
            (0..HOSTS).for_each(|who| self.act(who, CALM));
            if (0..HOSTS).all(is_served) {
                return;
            }
        }
        panic!("a host gets no turn");
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| lock(node).side.end());
    }
}

/// Whether one owner at a time, all of what it wrote and every death are seen, and nobody waits for ever; its places are added.
pub fn turns_hold(
    seed: u64,
    without: Option<Place>,
    found: &mut std::collections::BTreeSet<Place>,
) -> bool {
    let turns = Turns::new(seed, without);
    let held = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..STEPS {
            let who = turns.below(HOSTS as u64) as usize;
            turns.act(who, 0);
        }
        turns.finish();
    }));
    found.extend(super::sim::places(&turns.world));
    held.is_ok()
}
