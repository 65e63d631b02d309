//! Owns the threads that work on a region for a program that must not wait: requests in, one outcome for each.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, available_parallelism};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::key::RecordKey;
use tierkv_core::lane::client::{Kept, Outgoing, Targets};
use tierkv_core::limits::{
    LANE_KEYS_MAX, SHM_POPULATE_BYTES, SHM_REQUESTS_MAX, SHM_THREADS_MAX, SHM_THREADS_MIN,
};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use crate::flushes::{Label, News, Scope};
use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::moves;
use crate::opening::{self, Options};
use crate::region::{Fill, Region};
use crate::visibility::{Coherence, Fabric};

/// What a request is to do.
pub enum Work {
    /// Which of these, packed, can be read now.
    LookUp(Hash, Vec<[u8; PACKED_KEY_BYTES]>),
    /// Records into slots.
    Fetch(Targets),
    /// Records as they are.
    Take(Kept),
    /// Records out of slots, put-if-absent.
    Store(Label, Hash, Vec<Outgoing>),
    /// Records that somebody could not use.
    Check(Vec<RecordKey>),
    /// All records of a scope away, or of a model's namespaces in it.
    Flush(Scope, Option<Hash>),
    /// A namespace belongs to a model.
    Name(Hash, Hash),
    /// The flushes after this one.
    News(u64),
    /// How full it is.
    Fill,
}

/// What came of it.
#[derive(Debug)]
pub enum Answer {
    /// Bitmap over the keys.
    Found(Vec<u8>),
    /// One `ItemStatus` number per item, bytes that were moved, and why the first bad record was refused.
    Done(Vec<u8>, u64, Option<String>),
    /// Records and bytes that are gone.
    Flushed(u64, u64),
    /// The flushes.
    News(News),
    /// How full it is.
    Fill(Fill),
}

/// The outcome of a request, and the last flush at that time.
pub type Outcome = Result<(Answer, u64)>;

/// Told of every outcome, from a thread of the desk: it must not wait.
pub type Sink = Arc<dyn Fn(u32, Outcome) + Send + Sync>;

struct Job {
    request: u32,
    work: Work,
    open: Arc<Open>,
}

#[derive(Default)]
struct Open {
    is_cancelled: AtomicBool,
    bytes: AtomicU64,
}

struct Shared {
    region: Region<Mapping>,
    sink: Sink,
    open: Mutex<HashMap<u32, Arc<Open>>>,
}

/// A region, joined, with its threads. They end once the desk is dropped and what was begun is done.
pub struct Desk {
    shared: Arc<Shared>,
    /// For what is short, so that it does not wait behind what is long.
    short: SyncSender<Job>,
    /// An engine waits for what is fetched, and for nothing that is stored.
    fetches: SyncSender<Job>,
    stores: SyncSender<Job>,
    next: AtomicU32,
}

impl Desk {
    /// Opens and joins the region at `path`; makes it first where there is none. `must_fit`: one that has another size than the
    /// options would give is refused.
    ///
    /// # Errors
    /// `ARENA_FAILED` naming the path and what does not go, `BAD_ARGUMENT` for sizes, `NO_MEMORY` without threads.
    pub fn open(path: &Path, options: &Options, must_fit: bool, sink: Sink) -> Result<Self> {
        let region = opening::open(path, options)?;
        if must_fit {
            let wanted = Layout::cut(options.max_bytes, options.chunk_bytes)?;
            check_size(path, region.layout(), &wanted)?;
        }
        let shared = Arc::new(Shared { region, sink, open: Mutex::default() });
        let half = available_parallelism().map_or(1, |cores| cores.get() / 2);
        let threads = half.clamp(SHM_THREADS_MIN, SHM_THREADS_MAX);
        let short = start(&shared, 1)?;
        let (fetches, stores) = (start(&shared, threads)?, start(&shared, threads)?);
        // Whoever makes none only looks, and moves little.
        if options.max_bytes > 0 {
            populate(&shared)?;
        }
        Ok(Self { shared, short, fetches, stores, next: AtomicU32::new(1) })
    }

    /// Begins a request; its number. The outcome may come before.
    ///
    /// # Errors
    /// `NO_MEMORY` where too many wait.
    pub fn begin(&self, work: Work) -> Result<u32> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Arc::<Open>::default();
        self.shared.open().insert(request, Arc::clone(&open));
        let queue = match work {
            Work::Fetch(_) | Work::Take(_) => &self.fetches,
            Work::Store(..) | Work::Check(_) => &self.stores,
            _ => &self.short,
        };
        queue.try_send(Job { request, work, open }).map_err(|refused| {
            self.shared.open().remove(&request);
            let why = match refused {
                TrySendError::Full(_) => "as many wait as may",
                TrySendError::Disconnected(_) => "its threads have ended",
            };
            Error::new(Code::NoMemory, format!("a request to the shared region: {why}"))
        })?;
        Ok(request)
    }

    /// Which of these can be read, and the last flush, if nobody has the lock: two threads to be woken take longer than a look-up.
    /// `None`: it is to be a request.
    #[must_use]
    pub fn look_up_now(
        &self,
        namespace: Hash,
        packed: &[[u8; PACKED_KEY_BYTES]],
    ) -> Option<(Vec<u8>, u64)> {
        if packed.len() > LANE_KEYS_MAX {
            return None;
        }
        let look_up = || self.shared.region.look_up_now(unpacked(namespace, packed));
        // Damage in the index is told as a request's error.
        let (found, number) = catch_unwind(AssertUnwindSafe(look_up)).ok()??;
        Some((bitmap(&found), number))
    }

    /// Nothing of a request is begun any more; what is under way ends as it would.
    pub fn cancel(&self, request: u32) {
        if let Some(open) = self.shared.open().get(&request) {
            open.is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes that were moved for a request; `None` when it has its outcome.
    #[must_use]
    pub fn progress(&self, request: u32) -> Option<u64> {
        self.shared.open().get(&request).map(|open| open.bytes.load(Ordering::Relaxed))
    }

    /// The last flush, before anything was asked.
    #[must_use]
    pub fn joined_at_flush(&self) -> u64 {
        self.shared.region.joined_at_flush()
    }

    /// Who keeps the caches together.
    #[must_use]
    pub fn coherence(&self) -> Coherence {
        self.shared.region.fabric().coherence()
    }

    /// Tells regions apart that had one name after another.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.region.fabric().file_number()
    }
}

fn check_size(path: &Path, is: &Layout, wanted: &Layout) -> Result<()> {
    if is.region_bytes == wanted.region_bytes && is.chunk_bytes == wanted.chunk_bytes {
        return Ok(());
    }
    let text = format!(
        "{}: the region has {} bytes in chunks of {}, the configuration gives {} in chunks of {}: remove the file once nobody uses it, or write no size",
        path.display(),
        is.region_bytes,
        is.chunk_bytes,
        wanted.region_bytes,
        wanted.chunk_bytes
    );
    Err(Error::new(Code::ArenaFailed, text))
}

fn start(shared: &Arc<Shared>, threads: usize) -> Result<SyncSender<Job>> {
    let (queue, jobs) = sync_channel(SHM_REQUESTS_MAX);
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..threads {
        let (shared, jobs) = (Arc::clone(shared), Arc::clone(&jobs));
        spawn(move || shared.serve(&jobs))?;
    }
    Ok(queue)
}

/// Maps the region's memory before it is used, because a first touch costs more than the copy of a page. Where that does not go,
/// pages come one by one.
fn populate(shared: &Arc<Shared>) -> Result<()> {
    let shared = Arc::downgrade(shared);
    let step = move || {
        let mut at = 0;
        // Nobody waits for it, so it ends with the desk.
        while let Some(shared) = shared.upgrade() {
            let fabric = shared.region.fabric();
            let bytes = shared.region.layout().region_bytes.saturating_sub(at);
            if bytes == 0 || !fabric.populate(at, bytes.min(SHM_POPULATE_BYTES)) {
                return;
            }
            at += SHM_POPULATE_BYTES;
        }
    };
    spawn(step)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = Builder::new().name("tierkv-shm".to_owned());
    let started = builder.spawn(work);
    started.map(drop).map_err(|error| Error::new(Code::NoMemory, format!("a thread: {error}")))
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u32, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { request, work, open }) = job else { return };
            // Damage in the index that no check saw costs a request, not the thread.
            let done = catch_unwind(AssertUnwindSafe(|| self.run(work, &open)));
            let outcome = done.unwrap_or_else(|_| {
                // Who lost the lock between hosts is told so.
                self.region.last_flush()?;
                Err(Error::new(Code::ArenaFailed, "the shared region is damaged: remove its file"))
            });
            self.open().remove(&request);
            (self.sink)(request, outcome);
        }
    }

    fn run(&self, work: Work, open: &Open) -> Outcome {
        let region = &self.region;
        let answer = match work {
            Work::LookUp(namespace, packed) => return self.look_up(namespace, &packed),
            Work::Fetch(targets) => self.fetch(&targets, open)?,
            Work::Take(kept) => self.take(&kept, open)?,
            Work::Store(label, namespace, records) => {
                self.store(label, namespace, &records, open)?
            }
            Work::Check(keys) => Answer::Done(moves::check_each(region, &keys)?, 0, None),
            Work::Flush(scope, model) => return self.flush(&scope, model.as_ref()),
            Work::News(known) => {
                let news = region.news(known)?;
                let number = news.number;
                return Ok((Answer::News(news), number));
            }
            Work::Name(namespace, model) => {
                region.name(&namespace, &model)?;
                Answer::Done(Vec::new(), 0, None)
            }
            Work::Fill => {
                let fill = region.fill()?;
                return Ok((Answer::Fill(fill), fill.flush));
            }
        };
        Ok((answer, region.last_flush()?))
    }

    fn look_up(&self, namespace: Hash, packed: &[[u8; PACKED_KEY_BYTES]]) -> Outcome {
        let (found, number) = self.region.look_up_at_flush(unpacked(namespace, packed))?;
        Ok((Answer::Found(bitmap(&found)), number))
    }

    fn flush(&self, scope: &Scope, model: Option<&Hash>) -> Outcome {
        let (number, records, bytes) = match model {
            Some(model) => self.region.flush_model(scope, model)?,
            None => self.region.flush(scope)?,
        };
        Ok((Answer::Flushed(records, bytes), number))
    }

    fn fetch(&self, targets: &Targets, open: &Open) -> Result<Answer> {
        bring(&targets.items, open, |target| moves::fetch(&self.region, targets, target))
    }

    fn take(&self, kept: &Kept, open: &Open) -> Result<Answer> {
        let items: Vec<_> = kept.keys.iter().enumerate().collect();
        bring(&items, open, |(at, key)| moves::take(&self.region, kept, *at, key))
    }

    fn store(
        &self,
        label: Label,
        namespace: Hash,
        records: &[Outgoing],
        open: &Open,
    ) -> Result<Answer> {
        let statuses = each(records, open, |Outgoing { packed_key, content }| {
            let key = RecordKey::from_packed(namespace, packed_key);
            match moves::store(&self.region, &key, content, label) {
                Err(error) if error.code == Code::ArenaFailed => Err(error),
                // A deferred record whose slot is gone.
                Err(_) => Ok((ItemStatus::Incomplete, 0)),
                stored => stored,
            }
        })?;
        Ok(Answer::Done(statuses, open.bytes.load(Ordering::Relaxed), None))
    }
}

fn unpacked(
    namespace: Hash,
    packed: &[[u8; PACKED_KEY_BYTES]],
) -> impl Iterator<Item = RecordKey> + '_ {
    packed.iter().map(move |packed| RecordKey::from_packed(namespace, packed))
}

fn bitmap(found: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    found.chunks(8).map(byte).collect()
}

/// Records, one after another; of those that are refused, why the first one was.
fn bring<T>(
    items: &[T],
    open: &Open,
    mut bring: impl FnMut(&T) -> Result<Option<u64>>,
) -> Result<Answer> {
    let mut reason = None;
    let statuses = each(items, open, |item| match bring(item) {
        Ok(Some(bytes)) => Ok((ItemStatus::Accepted, bytes)),
        Ok(None) => Ok((ItemStatus::Missing, 0)),
        Err(error) if error.code == Code::ArenaFailed => Err(error),
        Err(error) => {
            let status = moves::status_of(&error);
            if status == ItemStatus::BadRecord {
                reason.get_or_insert(error.text);
            }
            Ok((status, 0))
        }
    })?;
    Ok(Answer::Done(statuses, open.bytes.load(Ordering::Relaxed), reason))
}

/// Works on one item after another, until the request is given up.
fn each<T>(
    items: &[T],
    open: &Open,
    mut work: impl FnMut(&T) -> Result<(ItemStatus, u64)>,
) -> Result<Vec<u8>> {
    let mut statuses = Vec::with_capacity(items.len());
    for item in items {
        if open.is_cancelled.load(Ordering::Relaxed) {
            statuses.push(ItemStatus::Incomplete as u8);
            continue;
        }
        let (status, bytes) = work(item)?;
        open.bytes.fetch_add(bytes, Ordering::Relaxed);
        statuses.push(status as u8);
    }
    Ok(statuses)
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last one: nothing of this process is under way. Without the lock others find it dead.
        let _ = self.region.leave();
    }
}
