//! Owns the threads that call a store for a program that must not block: requests in, one outcome for each.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::client::{Kept, Outgoing};
use tierkv_core::limits::{
    COLD_FETCH_THREADS, COLD_LOOKUP_THREADS, COLD_REQUESTS_MAX, COLD_STORE_THREADS, LANE_KEYS_MAX,
};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use crate::goal::Goal;
use crate::store::{Asker, Call, Flushed, NodeFacts, PackedKey, Scope, Store};

/// A request.
pub enum Work {
    /// Says which of these keys are there.
    LookUp(Hash, Vec<PackedKey>),
    /// Fetches records.
    Fetch(Goal),
    /// Stores records that are not there yet.
    Store(Hash, Vec<Outgoing>),
    /// Fetches records that a caller could not use, and removes damaged ones.
    Check(Kept),
    /// Asks whether the store answers, and learns flushes.
    Ping,
    /// Puts records out of reach.
    Flush(Scope),
    /// Names a namespace's model.
    Name(Hash, String),
    /// Asks the nodes for their memory.
    Nodes,
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Bitmap over the keys.
    Found(Vec<u8>),
    /// An `ItemStatus` number per item, the bytes moved, and why the first bad record was refused.
    Done(Vec<u8>, u64, Option<String>),
    /// Outcome of a flush.
    Flushed(Flushed),
    /// By node.
    Nodes(Vec<NodeFacts>),
}

/// Callback for every outcome, on a thread of the desk; it must not block.
pub type Sink = Arc<dyn Fn(u32, Result<Answer>) + Send + Sync>;

struct Job {
    request: u32,
    work: Work,
    call: Arc<Call>,
}

struct Shared {
    store: Arc<dyn Store>,
    sink: Sink,
    open: Mutex<HashMap<u32, Arc<Call>>>,
}

/// A store with its threads, which end once the desk is dropped and open requests are done.
pub struct Desk {
    shared: Arc<Shared>,
    lookups: SyncSender<Job>,
    fetches: SyncSender<Job>,
    /// Apart from fetches, because an engine waits for fetches only.
    stores: SyncSender<Job>,
    next: AtomicU32,
}

impl Desk {
    /// Starts the threads; connects to nothing yet.
    ///
    /// # Errors
    /// `NO_MEMORY` without threads.
    pub fn open(store: Arc<dyn Store>, sink: Sink) -> Result<Self> {
        let shared = Arc::new(Shared { store, sink, open: Mutex::default() });
        Ok(Self {
            lookups: start(&shared, COLD_LOOKUP_THREADS)?,
            fetches: start(&shared, COLD_FETCH_THREADS)?,
            stores: start(&shared, COLD_STORE_THREADS)?,
            shared,
            next: AtomicU32::new(1),
        })
    }

    /// Begins a request that ends `within` a time, and returns its number; the outcome may come earlier.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for too many keys, `NO_MEMORY` where too many requests wait.
    pub fn begin(&self, work: Work, within: Duration, asker: Asker) -> Result<u32> {
        let (queue, items) = match &work {
            Work::LookUp(_, keys) => (&self.lookups, keys.len()),
            Work::Fetch(goal) => (&self.fetches, goal.keys().len()),
            Work::Store(_, records) => (&self.stores, records.len()),
            Work::Check(kept) => (&self.stores, kept.keys.len()),
            Work::Ping | Work::Nodes => (&self.lookups, 0),
            Work::Flush(_) | Work::Name(..) => (&self.stores, 0),
        };
        if items > LANE_KEYS_MAX {
            let text = format!("{items} keys in one request: {LANE_KEYS_MAX} at most");
            return Err(Error::bad_argument(text));
        }
        let (request, call) = (self.next.fetch_add(1, Ordering::Relaxed), Call::new(within, asker));
        self.shared.open().insert(request, Arc::clone(&call));
        queue.try_send(Job { request, work, call }).map_err(|refused| {
            self.shared.open().remove(&request);
            let why = match refused {
                TrySendError::Full(_) => "as many wait as may",
                TrySendError::Disconnected(_) => "its threads have ended",
            };
            Error::new(Code::NoMemory, format!("a request to the store: {why}"))
        })?;
        Ok(request)
    }

    /// Gives a request up; its outcome is an error, unless it came before.
    pub fn cancel(&self, request: u32) {
        if let Some(call) = self.shared.open().get(&request) {
            call.cancel();
        }
    }

    /// Bytes moved for a request; `None` after its outcome.
    #[must_use]
    pub fn progress(&self, request: u32) -> Option<u64> {
        self.shared.open().get(&request).map(|call| call.bytes())
    }

    /// Flushes that the store has learnt since the first contact, after the first `known`, and their number so far.
    #[must_use]
    pub fn news(&self, known: u64) -> (u64, Vec<Scope>) {
        self.shared.store.news(known)
    }

    /// Notes a namespace's model, without a request.
    pub fn learn_model(&self, namespace: &Hash, model: &str) {
        self.shared.store.learn_model(namespace, model);
    }

    /// Cost of the store's requests so far, by name.
    #[must_use]
    pub fn spent(&self) -> Vec<(&'static str, u64)> {
        self.shared.store.spent()
    }

    /// Refusals of the store so far, by name.
    #[must_use]
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.shared.store.refusals()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for call in self.shared.open().values() {
            call.cancel();
        }
    }
}

fn start(shared: &Arc<Shared>, threads: usize) -> Result<SyncSender<Job>> {
    let (queue, jobs) = sync_channel(COLD_REQUESTS_MAX);
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..threads {
        let (shared, jobs) = (Arc::clone(shared), Arc::clone(&jobs));
        let builder = Builder::new().name("tierkv-cold".to_owned());
        let started = builder.spawn(move || shared.serve(&jobs));
        started.map_err(|error| Error::new(Code::NoMemory, format!("a thread: {error}")))?;
    }
    Ok(queue)
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u32, Arc<Call>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { request, work, call }) = job else { return };
            let done = catch_unwind(AssertUnwindSafe(|| self.run(work, &call)));
            let outcome = done.unwrap_or_else(|_| {
                Err(Error::lane_failed("the store's client gave up on this request"))
            });
            self.open().remove(&request);
            (self.sink)(request, outcome);
        }
    }

    fn run(&self, work: Work, call: &Arc<Call>) -> Result<Answer> {
        let store = &self.store;
        let statuses = match work {
            Work::LookUp(namespace, keys) => {
                return Ok(Answer::Found(bitmap(&store.look_up(&namespace, &keys, call)?)));
            }
            Work::Fetch(goal) => store.fetch(&goal, call)?,
            Work::Store(namespace, records) => store.store(&namespace, &records, call)?,
            Work::Check(kept) => self.check(kept, call)?,
            Work::Ping => {
                store.heed(call)?;
                Vec::new()
            }
            Work::Flush(scope) => return Ok(Answer::Flushed(store.flush(scope, call)?)),
            Work::Name(namespace, model) => {
                store.name_model(&namespace, &model, call)?;
                Vec::new()
            }
            Work::Nodes => return Ok(Answer::Nodes(store.nodes(call)?)),
        };
        let statuses = statuses.into_iter().map(|status: ItemStatus| status as u8).collect();
        Ok(Answer::Done(statuses, call.bytes(), call.reason()))
    }
}

impl Shared {
    fn check(&self, kept: Kept, call: &Arc<Call>) -> Result<Vec<ItemStatus>> {
        let (namespace, keys) = (kept.namespace, kept.keys.clone());
        let mut statuses = self.store.fetch(&Goal::Memory(kept), call)?;
        for (status, key) in statuses.iter_mut().zip(&keys) {
            match status {
                ItemStatus::Accepted => *status = ItemStatus::Present,
                ItemStatus::BadRecord => {
                    self.store.remove(&namespace, &[*key], call)?;
                    *status = ItemStatus::Quarantined;
                }
                _ => {}
            }
        }
        Ok(statuses)
    }
}

fn bitmap(found: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    found.chunks(8).map(byte).collect()
}
