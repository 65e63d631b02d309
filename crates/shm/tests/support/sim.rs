//! Owns memory without coherence: each side has lines of its own, which only write-backs, fences and invalidates bring together.

use std::collections::{BTreeSet, HashMap};
use std::panic::{Location, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tierkv_core::error::{Code, Error, Result};
use tierkv_shm::visibility::{Coherence, Fabric, LastOwner, Rule};

use super::random::Random;

const LINE: usize = 64;
/// The superblock's are among them.
const STALE_LINES: usize = 4;
type Line = [u8; LINE];

/// Where something is written back, waited for or dropped: file and line.
pub type Place = (&'static str, u32);

/// What a side's death is told by, past every step of its own.
pub struct Crashed;

/// The memory, its lock, and who lives.
pub struct World {
    memory: Vec<u8>,
    held: Option<u64>,
    died: bool,
    members: HashMap<u64, u64>,
    /// All that was come by.
    places: BTreeSet<Place>,
}

impl World {
    /// Memory that is all zeros.
    pub fn new(bytes: usize) -> Arc<Mutex<Self>> {
        Self::of(vec![0; bytes])
    }

    /// Memory that had other uses.
    pub fn of(memory: Vec<u8>) -> Arc<Mutex<Self>> {
        let (members, places) = (HashMap::new(), BTreeSet::new());
        Arc::new(Mutex::new(Self { memory, held: None, died: false, members, places }))
    }
}

pub fn places(world: &Mutex<World>) -> BTreeSet<Place> {
    lock(world).places.clone()
}

struct Cache {
    lines: HashMap<usize, (Line, bool)>,
    /// Write-backs that have begun, in their order.
    begun: Vec<(usize, Line)>,
    dead: bool,
    random: Random,
    /// Steps until it dies.
    left: Option<u64>,
}

/// One side.
pub struct Side {
    name: u64,
    world: Arc<Mutex<World>>,
    cache: Mutex<Cache>,
    without: Option<Place>,
    /// After so many steps this happens in between.
    stop: Mutex<Option<(u64, Stop)>>,
}

type Stop = Box<dyn FnOnce() + Send>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Side {
    /// Its machine read the memory before anybody made something of it, and still has some of those lines.
    pub fn new(world: &Arc<Mutex<World>>, name: u64, without: Option<Place>) -> Self {
        let mut random = Random::new(name);
        let stale = |line: usize| (line, ([0; LINE], false));
        let lines = (0..STALE_LINES).filter(|_| random.below(2) == 0).map(stale).collect();
        let cache = Cache { lines, begun: Vec::new(), dead: false, random, left: None };
        let stop = Mutex::default();
        Self { name, world: Arc::clone(world), cache: Mutex::new(cache), without, stop }
    }

    /// It dies after so many steps; `None`: not.
    pub fn die_after(&self, steps: Option<u64>) {
        lock(&self.cache).left = steps;
    }

    /// After so many steps it stops while `others` go on.
    pub fn stop_after(&self, steps: u64, others: impl FnOnce() + Send + 'static) {
        *lock(&self.stop) = Some((steps, Box::new(others)));
    }

    /// It does not stop any more.
    pub fn go_on(&self) {
        *lock(&self.stop) = None;
    }

    fn may_stop(&self) {
        let others = {
            let mut stop = lock(&self.stop);
            match &mut *stop {
                Some((0, _)) => stop.take(),
                Some((steps, _)) => {
                    *steps -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((_, others)) = others {
            others();
        }
    }

    /// Nobody needs it any more: what it still holds is given up in vain.
    pub fn end(&self) {
        let mut cache = lock(&self.cache);
        (cache.dead, cache.lines, cache.begun) = (true, HashMap::new(), Vec::new());
        lock(&self.world).memory = Vec::new();
    }

    /// Whether this place is left out.
    fn is_without(&self, place: &'static Location<'static>) -> bool {
        let file = place.file().rsplit('/').next().unwrap_or_default();
        let place = (file, place.line());
        lock(&self.world).places.insert(place);
        self.without == Some(place)
    }

    /// A step: the cache does what caches may do at any time; or it is the last one.
    fn step(&self) -> (MutexGuard<'_, Cache>, MutexGuard<'_, World>) {
        self.may_stop();
        let (mut cache, mut world) = (lock(&self.cache), lock(&self.world));
        if cache.dead {
            return (cache, world);
        }
        if cache.random.below(8) == 0 {
            cache.evict_one(&mut world);
        }
        if cache.left == Some(0) {
            cache.crash(&mut world);
            world.members.retain(|_, side| *side != self.name);
            if world.held == Some(self.name) {
                (world.held, world.died) = (None, true);
            }
            drop((cache, world));
            resume_unwind(Box::new(Crashed));
        }
        cache.left = cache.left.map(|left| left - 1);
        (cache, world)
    }
}

fn lines(at: u64, bytes: u64) -> std::ops::Range<usize> {
    let (at, end) = (at as usize, (at + bytes) as usize);
    at / LINE..end.div_ceil(LINE)
}

impl Cache {
    fn line(&mut self, line: usize, world: &World) -> &mut (Line, bool) {
        self.lines.entry(line).or_insert_with(|| {
            let bytes = &world.memory[line * LINE..(line + 1) * LINE];
            (bytes.try_into().expect("a line"), false)
        })
    }

    /// Finishes what has begun of a line; all write-backs of one line keep their order.
    fn arrive(&mut self, line: usize, world: &mut World) {
        self.begun.retain(|(begun, bytes)| {
            if *begun == line {
                world.memory[line * LINE..(line + 1) * LINE].copy_from_slice(bytes);
            }
            *begun != line
        });
    }

    fn evict(&mut self, line: usize, world: &mut World) {
        self.arrive(line, world);
        if let Some((bytes, true)) = self.lines.remove(&line) {
            world.memory[line * LINE..(line + 1) * LINE].copy_from_slice(&bytes);
        }
    }

    fn dirty(&self) -> Vec<usize> {
        let dirty = self.lines.iter().filter(|(_, (_, dirty))| *dirty);
        let mut lines: Vec<_> = dirty.map(|(line, _)| *line).collect();
        lines.sort_unstable();
        lines
    }

    fn evict_one(&mut self, world: &mut World) {
        let candidates = if self.random.below(2) == 0 {
            self.dirty()
        } else {
            self.begun.iter().map(|(line, _)| *line).collect()
        };
        if !candidates.is_empty() {
            let line = candidates[self.random.below(candidates.len() as u64) as usize];
            self.evict(line, world);
        }
    }

    /// Some lines still reach memory, the others never do.
    fn crash(&mut self, world: &mut World) {
        let mut candidates = self.dirty();
        candidates.extend(self.begun.iter().map(|(line, _)| *line));
        for line in candidates {
            if self.random.below(2) == 0 {
                self.evict(line, world);
            }
        }
        (self.dead, self.lines, self.begun) = (true, HashMap::new(), Vec::new());
    }
}

impl Fabric for Side {
    fn coherence(&self) -> Coherence {
        Coherence::Clflush
    }

    fn load(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.copy_out(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&self, at: u64, word: u64) {
        self.copy_in(at, &word.to_le_bytes());
    }

    fn copy_in(&self, at: u64, bytes: &[u8]) {
        let (mut cache, world) = self.step();
        for (at, byte) in (at as usize..).zip(bytes) {
            let (line, dirty) = cache.line(at / LINE, &world);
            line[at % LINE] = *byte;
            *dirty = true;
        }
    }

    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        let (mut cache, world) = self.step();
        for (at, byte) in (at as usize..).zip(bytes) {
            *byte = cache.line(at / LINE, &world).0[at % LINE];
        }
    }

    #[track_caller]
    fn write_back(&self, _rule: Rule, at: u64, bytes: u64) {
        let is_without = self.is_without(Location::caller());
        let (mut cache, _world) = self.step();
        if is_without {
            return;
        }
        for line in lines(at, bytes) {
            if let Some((bytes, dirty @ true)) = cache.lines.get_mut(&line) {
                let bytes = *bytes;
                *dirty = false;
                cache.begun.push((line, bytes));
            }
        }
    }

    #[track_caller]
    fn fence(&self, _rule: Rule) {
        let is_without = self.is_without(Location::caller());
        let (mut cache, mut world) = self.step();
        if is_without || cache.dead {
            return;
        }
        for (line, _) in cache.begun.clone() {
            cache.arrive(line, &mut world);
        }
    }

    #[track_caller]
    fn invalidate(&self, _rule: Rule, at: u64, bytes: u64) {
        let is_without = self.is_without(Location::caller());
        let (mut cache, mut world) = self.step();
        if is_without || cache.dead {
            return;
        }
        for line in lines(at, bytes) {
            cache.evict(line, &mut world);
        }
    }

    fn lock(&self) -> Result<LastOwner> {
        let (cache, mut world) = self.step();
        if cache.dead {
            return Err(Error::new(Code::ArenaFailed, "dead"));
        }
        assert!(world.held.is_none(), "the lock is held");
        world.held = Some(self.name);
        Ok(if world.died { LastOwner::Died } else { LastOwner::Left })
    }

    fn repaired(&self) {
        self.step().1.died = false;
    }

    fn unlock(&self) {
        let (cache, mut world) = self.step();
        if !cache.dead {
            world.held = None;
        }
    }

    fn claim(&self) -> Result<Option<u64>> {
        let (_cache, mut world) = self.step();
        let own = world.members.iter().find(|(_, name)| **name == self.name);
        let member = own.map(|(member, _)| *member);
        let member = member.or_else(|| (0..64).find(|one| !world.members.contains_key(one)));
        member.inspect(|member| _ = world.members.insert(*member, self.name));
        Ok(member)
    }

    fn is_vacant(&self, member: u64) -> bool {
        !self.step().1.members.contains_key(&member)
    }
}
