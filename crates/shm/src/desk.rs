//! Owns the threads that work on a region for a program that must not block: requests in, one outcome for each.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, available_parallelism};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::limits::{
    LANE_KEYS_MAX, SHM_POPULATE_BYTES, SHM_REQUESTS_MAX, SHM_THREADS_MAX, SHM_THREADS_MIN,
};
use tierkv_core::record::Hash;

use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::opening::{self, Options};
use crate::region::Region;
pub use crate::requests::{Answer, Outcome, Work};
use crate::requests::{Open, Request, bitmap, unpacked};
use crate::visibility::{Coherence, Fabric};

/// Callback for every outcome, on a thread of the desk; it must not block.
pub type Sink = Arc<dyn Fn(u32, Outcome) + Send + Sync>;

struct Job {
    request: u32,
    work: Work,
    open: Arc<Open>,
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
            let carried = Request { region: &self.region, open: &open };
            let done = catch_unwind(AssertUnwindSafe(|| carried.run(work)));
            let outcome = done.unwrap_or_else(|_| {
                // A process that lost the lock between hosts gets that error instead.
                self.region.last_flush()?;
                Err(Error::new(Code::ArenaFailed, "the shared region is damaged: remove its file"))
            });
            self.open().remove(&request);
            (self.sink)(request, outcome);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last reference is gone, so that nothing of this process is open. Without the lock others find this process dead.
        let _ = self.region.leave();
    }
}
