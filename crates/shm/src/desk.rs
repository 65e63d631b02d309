//! Owns the threads that work on a region for a program that must not block: requests in, one outcome for each.

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
use crate::region::{Fill, Pins, Region};
use crate::visibility::{Coherence, Fabric};

/// A request.
pub enum Work {
    /// Says which of these packed keys can be read now.
    LookUp(Hash, Vec<[u8; PACKED_KEY_BYTES]>),
    /// Fetches records into slots.
    Fetch(Targets),
    /// Fetches records and keeps them as records.
    Take(Kept),
    /// Stores records of slots, put-if-absent.
    Store(Label, Hash, Vec<Outgoing>),
    /// Checks records that a caller could not use.
    Check(Vec<RecordKey>),
    /// Flushes the records of a scope, optionally only of a model's namespaces.
    Flush(Scope, Option<Hash>),
    /// Notes the model of a namespace.
    Name(Hash, Hash),
    /// Lists the flushes after a number.
    News(u64),
    /// Measures how full the region is.
    Fill,
}

/// Result of a request.
#[derive(Debug)]
pub enum Answer {
    /// Bitmap over the keys.
    Found(Vec<u8>),
    /// An `ItemStatus` number per item, the bytes moved, and why the first bad record was refused.
    Done(Vec<u8>, u64, Option<String>),
    /// Records and bytes removed.
    Flushed(u64, u64),
    /// Flushes.
    News(News),
    /// Fill of the region.
    Fill(Fill),
}

/// Outcome of a request, with the number of the last flush at that time.
pub type Outcome = Result<(Answer, u64)>;

/// Callback for every outcome, on a thread of the desk; it must not block.
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

/// A joined region with its threads, which end once the desk is dropped and open requests are done.
pub struct Desk {
    shared: Arc<Shared>,
    /// Queue of short requests, so that they do not wait behind long ones.
    short: SyncSender<Job>,
    /// Queue of fetches, apart from stores because an engine waits for fetches only.
    fetches: SyncSender<Job>,
    stores: SyncSender<Job>,
    next: AtomicU32,
}

impl Desk {
    /// Opens and joins the region at `path`; creates it where there is none. With `must_fit`, refuses a region of another
    /// size than the options give.
    ///
    /// # Errors
    /// `ARENA_FAILED` naming the path and the problem, `BAD_ARGUMENT` for sizes, `NO_MEMORY` without threads.
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
        // A process that creates no region only inspects it, and moves little.
        if options.max_bytes > 0 {
            populate(&shared)?;
        }
        Ok(Self { shared, short, fetches, stores, next: AtomicU32::new(1) })
    }

    /// Begins a request and returns its number; the outcome may come earlier.
    ///
    /// # Errors
    /// `NO_MEMORY` where too many requests wait.
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

    /// Says which keys can be read, with the last flush, if the lock is free, because waking two threads takes longer than
    /// a look-up. `None`: make it a request.
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
        // A request would report damage in the index as an error.
        let (found, number) = catch_unwind(AssertUnwindSafe(look_up)).ok()??;
        Some((bitmap(&found), number))
    }

    /// Begins no further part of a request; the part in progress ends normally.
    pub fn cancel(&self, request: u32) {
        if let Some(open) = self.shared.open().get(&request) {
            open.is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes moved for a request; `None` after its outcome.
    #[must_use]
    pub fn progress(&self, request: u32) -> Option<u64> {
        self.shared.open().get(&request).map(|open| open.bytes.load(Ordering::Relaxed))
    }

    /// Number of the last flush when the region was joined.
    #[must_use]
    pub fn joined_at_flush(&self) -> u64 {
        self.shared.region.joined_at_flush()
    }

    /// How caches are kept coherent.
    #[must_use]
    pub fn coherence(&self) -> Coherence {
        self.shared.region.fabric().coherence()
    }

    /// Number that distinguishes successive regions of the same name.
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

/// Maps the region's memory ahead of use, because a first access costs more than copying a page. Where that fails, pages
/// are mapped one by one.
fn populate(shared: &Arc<Shared>) -> Result<()> {
    let shared = Arc::downgrade(shared);
    let step = move || {
        let mut at = 0;
        // The thread ends with the desk, because no caller waits for it.
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
            // A panic over undetected damage in the index costs one request, not the thread.
            let done = catch_unwind(AssertUnwindSafe(|| self.run(work, &open)));
            let outcome = done.unwrap_or_else(|_| {
                // A process that lost the lock between hosts gets that error instead.
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
            Work::Fetch(targets) => return self.fetch(&targets, open),
            Work::Take(kept) => return self.take(&kept, open),
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

    fn fetch(&self, targets: &Targets, open: &Open) -> Outcome {
        let packed = targets.items.iter().map(|target| &target.packed_key);
        let pins = self.pins(targets.namespace, packed)?;
        let items: Vec<_> = targets.items.iter().zip(pins.records()).collect();
        let answer = bring(&items, open, |(target, pinned)| {
            pinned.as_ref().map(|pinned| moves::fetch(pinned, targets, target)).transpose()
        })?;
        Ok((answer, pins.release()?))
    }

    fn take(&self, kept: &Kept, open: &Open) -> Outcome {
        let pins = self.pins(kept.namespace, kept.keys.iter())?;
        let items: Vec<_> = kept.keys.iter().zip(pins.records()).enumerate().collect();
        let answer = bring(&items, open, |(at, (key, pinned))| {
            let Some(pinned) = pinned else { return Ok(None) };
            moves::take(pinned, kept, *at, key)
        })?;
        Ok((answer, pins.release()?))
    }

    fn pins<'a>(
        &self,
        namespace: Hash,
        packed: impl Iterator<Item = &'a [u8; PACKED_KEY_BYTES]>,
    ) -> Result<Pins<'_, Mapping>> {
        self.region.pin_each(packed.map(|packed| RecordKey::from_packed(namespace, packed)))
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
                // The slot of a deferred record was released.
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

/// Processes records one by one; keeps the reason why the first refused one was refused.
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

/// Processes items one by one until the request is cancelled.
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
        // The last reference is gone, so that nothing of this process is open. Without the lock others find this process dead.
        let _ = self.region.leave();
    }
}
