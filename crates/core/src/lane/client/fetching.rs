//! Owns the receiving side of a client's fetches: the state and outcome of each item.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::arena::Arena;
use crate::error::{Code, Error, Result};
use crate::geometry::Geometry;
use crate::inbox::{Chunk, Inbox, Reassembly, Wanted};
use crate::lane::frame::{Frame, TraceContext};
use crate::pool::PooledBuffer;
use crate::record::{Hash, Header, PACKED_KEY_BYTES};
use crate::slots::Lease;
use crate::store::ItemStatus;

/// Destination of one record.
#[derive(Debug, Clone)]
pub struct Target {
    /// Block hash, group, shard.
    pub packed_key: [u8; PACKED_KEY_BYTES],
    /// The leased slot.
    pub lease: Lease,
    /// Geometry of the slot's page.
    pub geometry: Arc<Geometry>,
}

/// Records to fetch, in the order needed.
#[derive(Debug)]
pub struct Targets {
    /// Namespace of all records.
    pub namespace: Hash,
    /// Fidelity of the namespace.
    pub fidelity: u8,
    /// Arena of the slots.
    pub arena: Arc<Arena>,
    /// Limits the memory of arriving records.
    pub inbox: Arc<Inbox>,
    /// One per record.
    pub items: Vec<Target>,
    /// Context of the trace that the fetch belongs to.
    pub trace: Option<TraceContext>,
    /// Longest time without a byte, after which the fetch fails with `FETCH_STALLED`; `None`: any time.
    pub stall: Option<Duration>,
}

impl Targets {
    pub(super) fn keys(&self) -> Vec<[u8; PACKED_KEY_BYTES]> {
        self.items.iter().map(|item| item.packed_key).collect()
    }
}

/// Callback for a record that is kept as a record: its index in the request, and its bytes.
pub type Keep = Box<dyn Fn(usize, Arc<PooledBuffer>) + Send + Sync>;

/// Records to fetch and keep as records.
pub struct Kept {
    /// Namespace of all records.
    pub namespace: Hash,
    /// Block hash, group, shard of each.
    pub keys: Vec<[u8; PACKED_KEY_BYTES]>,
    /// Limits the memory of arriving and arrived records.
    pub inbox: Arc<Inbox>,
    /// Callback for each record.
    pub keep: Keep,
}

/// Destination of the records.
enum Goal {
    Slots(Targets),
    Memory(Kept),
}

/// An open fetch.
pub struct FetchRequest {
    goal: Goal,
    bytes: AtomicU64,
    /// Time of the last byte, in ms since its session began.
    moved_ms: AtomicU64,
    state: Mutex<State>,
}

struct State {
    items: Vec<Item>,
    open: usize,
    reason: Option<String>,
}

#[derive(Clone)]
enum Item {
    Waiting,
    Arriving(Arc<Reassembly>),
    Settled(ItemStatus),
}

impl FetchRequest {
    pub fn new(targets: Targets) -> Self {
        Self::of(targets.items.len(), Goal::Slots(targets))
    }

    pub fn keeping(kept: Kept) -> Self {
        Self::of(kept.keys.len(), Goal::Memory(kept))
    }

    fn of(open: usize, goal: Goal) -> Self {
        let items = vec![Item::Waiting; open];
        let state = Mutex::new(State { items, open, reason: None });
        Self { goal, bytes: AtomicU64::new(0), moved_ms: AtomicU64::new(0), state }
    }

    /// Whether records are decrypted as they arrive.
    pub fn opens_records(&self) -> bool {
        matches!(&self.goal, Goal::Slots(targets) if targets.inbox.opens_records())
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn add_bytes(&self, bytes: usize, now_ms: u64) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.note_moved(now_ms);
    }

    /// Notes progress, also without bytes.
    pub fn note_moved(&self, now_ms: u64) {
        self.moved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Longest time without a byte that its caller allows, and the time of the last one, in ms; `None`: any time.
    pub fn stall_ms(&self) -> Option<(u64, u64)> {
        let Goal::Slots(Targets { stall: Some(stall), .. }) = &self.goal else { return None };
        let stall_ms = u64::try_from(stall.as_millis()).unwrap_or(u64::MAX);
        Some((stall_ms, self.moved_ms.load(Ordering::Relaxed)))
    }

    /// Returns the chunk that receives `frame`; `None` where its item is settled, so that the bytes are dropped. A bad
    /// record settles its item; a protocol error of the peer is returned.
    pub fn place(&self, frame: &Frame) -> Result<Option<Chunk>> {
        let index = frame.item as usize;
        let mut state = self.state();
        let reassembly = match state.items.get(index) {
            None => return Err(unknown_item(frame)),
            Some(Item::Settled(_)) => return Ok(None),
            Some(Item::Arriving(reassembly)) => Arc::clone(reassembly),
            Some(Item::Waiting) => match self.begin(index, frame.record_bytes) {
                Ok(reassembly) => {
                    let reassembly = Arc::new(reassembly);
                    state.items[index] = Item::Arriving(Arc::clone(&reassembly));
                    reassembly
                }
                Err(error) => {
                    state.refuse(index, &error);
                    return Ok(None);
                }
            },
        };
        drop(state);
        if reassembly.record_bytes() as u64 != frame.record_bytes {
            let text =
                format!("the vault changed the length of a record to {}", frame.record_bytes);
            return Err(Error::lane_failed(text));
        }
        match reassembly.chunk(frame.offset, frame.bytes as usize) {
            Ok(chunk) => Ok(Some(chunk)),
            Err(error) if error.code == Code::NoMemory => {
                self.state().refuse(index, &error);
                Ok(None)
            }
            Err(error) => Err(Error::lane_failed(error.text)),
        }
    }

    /// Takes a record that stands in the vault's memory: copies it once, and checks what it copied. Returns its bytes; 0 where its
    /// item is settled.
    pub fn stands(&self, item: u32, record: &[u8]) -> Result<usize> {
        let index = item as usize;
        let reassembly = {
            let mut state = self.state();
            match state.items.get(index) {
                Some(Item::Waiting) => {}
                Some(Item::Settled(_)) => return Ok(0),
                Some(Item::Arriving(_)) => {
                    return Err(Error::lane_failed("the vault sent a record in two ways"));
                }
                None => {
                    let text = format!("the vault sent item {item}, which was not asked for");
                    return Err(Error::lane_failed(text));
                }
            }
            match self.begin(index, record.len() as u64) {
                Ok(reassembly) => {
                    let reassembly = Arc::new(reassembly);
                    state.items[index] = Item::Arriving(Arc::clone(&reassembly));
                    reassembly
                }
                Err(error) => {
                    state.refuse(index, &error);
                    return Ok(0);
                }
            }
        };
        let verdict = reassembly.take_standing(record);
        self.settle(item, verdict.map(Some));
        Ok(record.len())
    }

    fn begin(&self, index: usize, record_bytes: u64) -> Result<Reassembly> {
        match &self.goal {
            Goal::Slots(Targets { namespace, fidelity, arena, inbox, items, .. }) => {
                let Target { packed_key, lease, geometry } = &items[index];
                let (fidelity, namespace, packed_key) = (*fidelity, *namespace, *packed_key);
                let wanted = Wanted { fidelity, namespace, packed_key };
                inbox.begin(arena, *lease, geometry, wanted, record_bytes)
            }
            Goal::Memory(Kept { namespace, keys, inbox, .. }) => {
                let (namespace, packed_key) = (*namespace, keys[index]);
                inbox.keep(Wanted { fidelity: 0, namespace, packed_key }, record_bytes)
            }
        }
    }

    /// Takes a complete chunk.
    pub fn arrived(&self, item: u32, chunk: Chunk) {
        self.settle(item, chunk.finish());
    }

    /// Takes the verdict on a record; `Ok(None)` while it is not whole.
    fn settle(&self, item: u32, verdict: Result<Option<Header>>) {
        let mut state = self.state();
        match verdict {
            Ok(None) => {}
            Ok(Some(_)) => {
                let index = item as usize;
                let whole = match state.items.get(index) {
                    Some(Item::Arriving(reassembly)) => reassembly.whole(),
                    _ => None,
                };
                // Called before the outcome, because this item may be the last.
                if let (Goal::Memory(kept), Some(whole)) = (&self.goal, whole) {
                    (kept.keep)(index, whole);
                }
                state.settle(index, ItemStatus::Accepted);
            }
            Err(error) => state.refuse(item as usize, &error),
        }
    }

    /// Settles an item that the vault does not have, or no longer.
    pub fn missing(&self, frame: &Frame) -> Result<()> {
        let mut state = self.state();
        if frame.item as usize >= state.items.len() {
            return Err(unknown_item(frame));
        }
        state.settle(frame.item as usize, ItemStatus::Missing);
        Ok(())
    }

    /// Returns the statuses once every item is settled.
    pub fn outcome(&self) -> Option<(Vec<u8>, Option<String>)> {
        let state = self.state();
        (state.open == 0).then(|| (state.statuses(), state.reason.clone()))
    }

    /// Settles the open items as incomplete; lanes in the middle of a chunk then drop it.
    pub fn give_up(&self) -> Vec<u8> {
        let mut state = self.state();
        for index in 0..state.items.len() {
            state.settle(index, ItemStatus::Incomplete);
        }
        state.statuses()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Settles an item, unless it is settled already.
    fn settle(&mut self, index: usize, status: ItemStatus) {
        if let Some(item) = self.items.get_mut(index)
            && !matches!(item, Item::Settled(_))
        {
            *item = Item::Settled(status);
            self.open -= 1;
        }
    }

    fn refuse(&mut self, index: usize, error: &Error) {
        let status = match error.code {
            Code::BadRecord => ItemStatus::BadRecord,
            Code::NoMemory => ItemStatus::OverBudget,
            // The record is of no use to us, but the vault could not know.
            Code::RecordUnopened => ItemStatus::Missing,
            // The lease ended meanwhile, so that the record is no longer wanted.
            _ => ItemStatus::Incomplete,
        };
        if status == ItemStatus::BadRecord {
            self.reason.get_or_insert_with(|| error.text.clone());
        }
        self.settle(index, status);
    }

    fn statuses(&self) -> Vec<u8> {
        let status = |item: &Item| match item {
            Item::Settled(status) => *status as u8,
            _ => ItemStatus::Unspecified as u8,
        };
        self.items.iter().map(status).collect()
    }
}

fn unknown_item(frame: &Frame) -> Error {
    Error::lane_failed(format!("the vault sent item {}, which was not asked for", frame.item))
}
