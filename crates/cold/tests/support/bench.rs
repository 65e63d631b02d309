//! Owns what tests of a store stand on: an arena with pages of noise, their records, and a desk whose outcomes are awaited.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tierkv_cold::desk::{Answer, Desk, Work};
use tierkv_cold::goal::Goal;
use tierkv_cold::store::{Asker, Flushed, PackedKey, Scope, Store};
use tierkv_core::arena::{self, Arena};
use tierkv_core::codec::Codec;
use tierkv_core::error::Result;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::Inbox;
use tierkv_core::lane::client::{Content, Kept, Outgoing, Target, Targets};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};
use tierkv_core::slots::Lease;

pub const NAMESPACE: [u8; 32] = [7; 32];
/// Only a hung test reaches it.
pub const SOON: Duration = Duration::from_secs(30);
const SLOTS: u32 = 80;

/// Numbers of `ItemStatus`.
pub const ACCEPTED: u8 = 1;
pub const PRESENT: u8 = 2;
pub const MISSING: u8 = 3;
pub const BAD_RECORD: u8 = 4;
pub const OVER_BUDGET: u8 = 8;
pub const INCOMPLETE: u8 = 9;
pub const QUARANTINED: u8 = 10;

pub struct Bench {
    pub desk: Desk,
    outcomes: Mutex<Receiver<(u32, Result<Answer>)>>,
    early: Mutex<HashMap<u32, Result<Answer>>>,
    pub arena: Arc<Arena>,
    pub geometry: Arc<Geometry>,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    /// For whom requests are made.
    pub asker: Asker,
}

impl Bench {
    pub fn of(store: Arc<dyn Store>) -> Self {
        let vectors = 16 * 4 * 256;
        let spec = Spec {
            group: 1,
            record_class: CLASS_KV,
            layout: LAYOUT_CANONICAL,
            dtype: 1,
            tokens: 16,
            layers: 6,
            heads: 4,
            dim_k: 128,
            dim_v: 128,
            layer_bytes: vectors * 2 + 512,
            key_offset: 0,
            value_offset: vectors,
            head_stride: 256,
            token_stride: 1024,
        };
        let geometry = Arc::new(Geometry::new(spec).unwrap());
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = arena::Options { slot_bytes, slot_count: SLOTS, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).unwrap());
        arena.prefault().unwrap();
        while arena.status().touched_slots < SLOTS {
            std::thread::yield_now();
        }
        let (tell, outcomes) = channel();
        let tell = Mutex::new(tell);
        let sink = move |request, outcome| {
            // A test that has ended does not listen.
            let _ = tell.lock().unwrap().send((request, outcome));
        };
        let desk = Desk::open(store, Arc::new(sink)).unwrap();
        let (outcomes, early) = (Mutex::new(outcomes), Mutex::default());
        let (outbox, inbox) = (Arc::default(), Arc::default());
        let asker = Asker::default();
        Self { desk, outcomes, early, arena, geometry, outbox, inbox, asker }
    }

    pub fn lease(&self) -> Lease {
        self.arena.slots().lease(1, 1)[0]
    }

    /// The page of block `number`, which no other has.
    pub fn page(&self, number: u32) -> Vec<u8> {
        let mut state = u64::from(number) << 32 | 0x9E37_79B9;
        let noise = (0..self.geometry.slot_bytes()).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        noise.collect()
    }

    /// Deferred records of blocks, each behind the block with the number before, and the leases of their slots.
    pub fn records(&self, numbers: &[u32]) -> (Vec<Outgoing>, Vec<Lease>) {
        let before = |number: &u32| number.checked_sub(1);
        self.records_after(&numbers.iter().map(|of| (*of, before(of))).collect::<Vec<_>>())
    }

    fn records_after(&self, blocks: &[(u32, Option<u32>)]) -> (Vec<Outgoing>, Vec<Lease>) {
        let one = |(number, before): &(u32, Option<u32>)| {
            let lease = self.lease();
            self.arena.poke(lease.slot, &self.page(*number)).unwrap();
            let identity = Identity {
                shard: 0,
                shard_count: 1,
                end_tokens: 16 * u64::from(number + 1),
                namespace: NAMESPACE,
                block_hash: hash(*number),
                parent_hash: before.map_or([0; 32], hash),
            };
            let codec = (Codec::Raw, 0);
            let record = self.outbox.defer(&self.arena, lease, &self.geometry, codec, identity);
            let content = Content::Deferred(Arc::new(record.unwrap()));
            (Outgoing { packed_key: key(*number), content }, lease)
        };
        blocks.iter().map(one).unzip()
    }

    /// Begins a request that has `within` to end, and awaits its outcome.
    pub fn run(&self, work: Work, within: Duration) -> Result<Answer> {
        let request = self.desk.begin(work, within, self.asker).unwrap();
        self.outcome(request)
    }

    pub fn outcome(&self, request: u32) -> Result<Answer> {
        let outcomes = self.outcomes.lock().unwrap();
        loop {
            if let Some(outcome) = self.early.lock().unwrap().remove(&request) {
                return outcome;
            }
            match outcomes.recv_timeout(SOON) {
                Ok((of, outcome)) => {
                    self.early.lock().unwrap().insert(of, outcome);
                }
                Err(RecvTimeoutError::Timeout) => panic!("no outcome of request {request}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the desk has gone"),
            }
        }
    }

    /// Stores blocks; the status of each.
    pub fn store(&self, numbers: &[u32]) -> Result<Vec<u8>> {
        self.store_records(self.records(numbers))
    }

    /// Stores blocks that follow one another.
    pub fn store_chain(&self, numbers: &[u32]) -> Result<Vec<u8>> {
        let before = std::iter::once(None).chain(numbers.iter().copied().map(Some));
        let blocks: Vec<_> = numbers.iter().copied().zip(before).collect();
        self.store_records(self.records_after(&blocks))
    }

    fn store_records(&self, (records, leases): (Vec<Outgoing>, Vec<Lease>)) -> Result<Vec<u8>> {
        let done = self.run(Work::Store(NAMESPACE, records), SOON);
        for lease in leases {
            self.arena.slots().release(lease).unwrap();
        }
        Ok(statuses(done?))
    }

    /// Which blocks are there.
    pub fn found(&self, numbers: &[u32]) -> Result<Vec<bool>> {
        let keys = numbers.iter().map(|number| key(*number)).collect();
        match self.run(Work::LookUp(NAMESPACE, keys), SOON)? {
            Answer::Found(bits) => {
                Ok((0..numbers.len()).map(|at| bits[at / 8] >> (at % 8) & 1 == 1).collect())
            }
            other => panic!("{other:?} to a look-up"),
        }
    }

    pub fn targets(&self, numbers: &[u32]) -> (Goal, Vec<Lease>) {
        let leases: Vec<_> = numbers.iter().map(|_| self.lease()).collect();
        let target = |(number, lease): (&u32, &Lease)| {
            self.arena.poke(lease.slot, &vec![0xEE; self.geometry.slot_bytes()]).unwrap();
            let (packed_key, geometry) = (key(*number), Arc::clone(&self.geometry));
            Target { packed_key, lease: *lease, geometry }
        };
        let goal = Goal::Slots(Targets {
            namespace: NAMESPACE,
            fidelity: 0,
            arena: Arc::clone(&self.arena),
            inbox: Arc::clone(&self.inbox),
            items: numbers.iter().zip(&leases).map(target).collect(),
            trace: None,
            stall: None,
        });
        (goal, leases)
    }

    /// Fetches blocks into slots; the status of each. An accepted block has the bytes that were saved.
    pub fn fetch(&self, numbers: &[u32], within: Duration) -> Result<Vec<u8>> {
        let (goal, leases) = self.targets(numbers);
        let done = self.run(Work::Fetch(goal), within).map(statuses);
        self.check(numbers, &leases, done.as_deref().unwrap_or_default());
        done
    }

    /// Checks that what was accepted is what was saved, and gives the slots back.
    pub fn check(&self, numbers: &[u32], leases: &[Lease], statuses: &[u8]) {
        for (at, lease) in leases.iter().enumerate() {
            if statuses.get(at) == Some(&ACCEPTED) {
                let page = self.arena.peek(lease.slot).unwrap();
                let saved = self.page(numbers[at]);
                // Gaps between layers belong to no block.
                let vectors = 16 * 4 * 256 * 2;
                for layer in 0..6 {
                    let from = layer * (vectors + 512);
                    let part = from..from + vectors;
                    assert!(page[part.clone()] == saved[part], "block {}", numbers[at]);
                }
            }
            self.arena.slots().release(*lease).unwrap();
        }
    }

    /// Fetches records as they are; those that came, by block.
    pub fn take(&self, numbers: &[u32]) -> Result<(Vec<u8>, HashMap<usize, usize>)> {
        let came = Arc::new(Mutex::new(HashMap::new()));
        let keeps = Arc::clone(&came);
        let keep = Box::new(move |index, record: Arc<tierkv_core::pool::PooledBuffer>| {
            keeps.lock().unwrap().insert(index, record.len());
        });
        let keys = numbers.iter().map(|number| key(*number)).collect();
        let kept = Kept { namespace: NAMESPACE, keys, inbox: Arc::clone(&self.inbox), keep };
        let done = self.run(Work::Fetch(Goal::Memory(kept)), SOON)?;
        let came = came.lock().unwrap().clone();
        Ok((statuses(done), came))
    }

    /// Has records checked that a reader could not use; the status of each.
    pub fn check_stored(&self, numbers: &[u32]) -> Result<Vec<u8>> {
        let keys = numbers.iter().map(|number| key(*number)).collect();
        let inbox = Arc::clone(&self.inbox);
        let kept = Kept { namespace: NAMESPACE, keys, inbox, keep: Box::new(|_, _| {}) };
        Ok(statuses(self.run(Work::Check(kept), SOON)?))
    }

    /// Flushes a scope; how many copies of the list took note.
    pub fn flush(&self, scope: Scope) -> Result<usize> {
        Ok(self.flushed(scope)?.copies.0)
    }

    pub fn flushed(&self, scope: Scope) -> Result<Flushed> {
        match self.run(Work::Flush(scope), SOON)? {
            Answer::Flushed(flushed) => Ok(flushed),
            other => panic!("{other:?} to a flush"),
        }
    }

    /// Slots that no one holds.
    pub fn free_slots(&self) -> u32 {
        self.arena.status().free_slots
    }
}

pub fn statuses(answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Done(statuses, ..) => statuses,
        other => panic!("{other:?} to a fetch or save"),
    }
}

pub fn hash(number: u32) -> [u8; 32] {
    let mut hash = [0xA5; 32];
    // Spread like a digest, because a cluster's slots and a run's ends follow from it.
    let mixed = u64::from(number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash[..8].copy_from_slice(&(mixed ^ mixed >> 29).to_be_bytes());
    hash[8..12].copy_from_slice(&number.to_le_bytes());
    hash[31] = (mixed >> 24) as u8;
    hash
}

pub fn key(number: u32) -> PackedKey {
    let mut key = [0; 36];
    key[..32].copy_from_slice(&hash(number));
    key[32] = 1;
    key
}
