//! Owns the writer's queue: records, bounded in bytes, and orders.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::format::ENTRY_BYTES;
use super::index::Place;
use crate::key::{RecordKey, Scope};
use crate::limits::{DISK_GROUP_BYTES, DISK_GROUP_MS};
use crate::memory::Pin;
use crate::memory::pages::Pages;

/// Bytes of a queued record.
pub enum Source {
    /// In the RAM tier, which must keep them meanwhile.
    Memory(Pin),
    /// Read from an older segment.
    Entry(Pages, usize),
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(pin) => pin,
            Self::Entry(pages, record_bytes) => &pages[ENTRY_BYTES..ENTRY_BYTES + record_bytes],
        }
    }
}

/// Age of the segment that a record moves from.
#[derive(Debug, Clone, Copy)]
pub struct Age {
    /// Creation time of the segment in ms since 1970, as in its name.
    pub made_ms: u64,
    /// When the segment's records expire.
    pub expires: Instant,
}

/// A record to write.
pub struct Job {
    /// Its key, reserved in the index unless it moves.
    pub key: RecordKey,
    /// Its bytes.
    pub source: Source,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// Tenant of the record.
    pub tenant: u64,
    /// Place the record moves from; the move is skipped if the record is no longer there.
    pub origin: Option<Place>,
    /// Age of a record that moves, where records have a time to live: a move must not lengthen it.
    pub age: Option<Age>,
}

impl Job {
    /// Whether the record comes from an older segment.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        matches!(self.source, Source::Entry(..))
    }
}

/// Work of the writer between two groups of records.
pub enum Order {
    /// Removes the records of a scope; answers records, bytes, and whether the removal is durable.
    Flush(Scope, Sender<(u64, u64, bool)>),
    /// Writes all queued records and seals the segment.
    Drain(Sender<()>),
}

/// Work the writer takes at once.
#[derive(Default)]
pub struct WorkBatch {
    /// Records of one group.
    pub jobs: Vec<Job>,
    /// Orders, to be carried out first.
    pub orders: Vec<Order>,
    /// Whether the queue is closed.
    pub is_closed: bool,
    /// Whether the queue is closed and empty after this batch.
    pub is_last: bool,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: u64,
    orders: Vec<Order>,
    is_closed: bool,
}

/// The queue between the RAM tier and the writer.
pub struct Queue {
    max_bytes: u64,
    /// Whether a group waits for more records before its sync.
    gathers: bool,
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

impl Queue {
    /// An empty queue for at most `max_bytes` bytes of records.
    #[must_use]
    pub fn new(max_bytes: u64, gathers: bool) -> Self {
        Self { max_bytes, gathers, waiting: Mutex::default(), wake: Condvar::new() }
    }

    /// Adds a record; false when there is no room.
    pub fn push(&self, job: Job) -> bool {
        let mut waiting = self.waiting();
        let bytes = job.source.len() as u64;
        if waiting.is_closed || waiting.bytes + bytes > self.max_bytes {
            return false;
        }
        waiting.bytes += bytes;
        waiting.jobs.push_back(job);
        self.wake.notify_all();
        true
    }

    /// Puts records back at the front.
    pub fn push_back(&self, jobs: Vec<Job>) {
        let mut waiting = self.waiting();
        for job in jobs.into_iter().rev() {
            waiting.bytes += job.source.len() as u64;
            waiting.jobs.push_front(job);
        }
    }

    /// Adds an order; false once the queue is closed.
    pub fn order(&self, order: Order) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return false;
        }
        waiting.orders.push(order);
        self.wake.notify_all();
        true
    }

    /// Closes the queue; later pushes and orders are refused.
    pub fn close(&self) {
        self.waiting().is_closed = true;
        self.wake.notify_all();
    }

    /// Removes the queued records that match.
    pub fn drop_matching(&self, matches: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut waiting = self.waiting();
        let (gone, stay): (Vec<Job>, Vec<Job>) = waiting.jobs.drain(..).partition(matches);
        waiting.bytes -= gone.iter().map(|job| job.source.len() as u64).sum::<u64>();
        waiting.jobs = stay.into();
        gone
    }

    /// Whether neither records nor orders wait.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let waiting = self.waiting();
        waiting.jobs.is_empty() && waiting.orders.is_empty() && !waiting.is_closed
    }

    /// Number of queued records, and their bytes.
    #[must_use]
    pub fn held(&self) -> (u64, u64) {
        let waiting = self.waiting();
        (waiting.jobs.len() as u64, waiting.bytes)
    }

    /// Returns the next batch, waiting at most `patience`; takes records only with `takes_jobs`.
    pub fn next(&self, patience: Duration, takes_jobs: bool) -> WorkBatch {
        let until = Instant::now() + patience;
        let mut waiting = self.waiting();
        while waiting.orders.is_empty()
            && !waiting.is_closed
            && (waiting.jobs.is_empty() || !takes_jobs)
        {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            waiting =
                self.wake.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let orders = std::mem::take(&mut waiting.orders);
        let mut batch = WorkBatch { orders, is_closed: waiting.is_closed, ..WorkBatch::default() };
        if takes_jobs && batch.orders.is_empty() {
            waiting = self.gather(waiting);
            let mut bytes = 0;
            while bytes < DISK_GROUP_BYTES
                && let Some(job) = waiting.jobs.pop_front()
            {
                bytes += job.source.len() as u64;
                batch.jobs.push(job);
            }
            waiting.bytes -= bytes;
        }
        batch.is_last = waiting.is_closed && waiting.orders.is_empty() && waiting.jobs.is_empty();
        batch
    }

    /// Waits a moment for more records, so that one sync serves many.
    fn gather<'a>(&'a self, mut waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
        let until = Instant::now() + Duration::from_millis(DISK_GROUP_MS);
        while self.gathers
            && (1..DISK_GROUP_BYTES).contains(&waiting.bytes)
            && waiting.orders.is_empty()
            && !waiting.is_closed
        {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            waiting =
                self.wake.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
