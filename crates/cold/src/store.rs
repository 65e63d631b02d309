//! Owns the interface of a store, and one open call to it: its deadline, its end by the caller, its bytes and refusals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::lane::client::{Content, Outgoing};
use tierkv_core::lane::wire::{Alive, Bytes};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use crate::goal::Goal;

/// Block hash, group and shard, as on the wire.
pub type PackedKey = [u8; PACKED_KEY_BYTES];

/// A store of records that another program runs. Methods block, and end soon after the call's deadline whatever the store does.
pub trait Store: Send + Sync {
    /// Says for each key whether its record is there.
    ///
    /// # Errors
    /// `LANE_FAILED` where the store does not answer, or refuses all keys; likewise for all methods.
    fn look_up(&self, namespace: &Hash, keys: &[PackedKey], call: &Arc<Call>) -> Result<Vec<bool>>;

    /// Brings records to their places; the status of each is `Accepted` once it is verified and in its place.
    ///
    /// # Errors
    /// As `look_up`.
    fn fetch(&self, goal: &Goal, call: &Arc<Call>) -> Result<Vec<ItemStatus>>;

    /// Stores records that are not there yet.
    ///
    /// # Errors
    /// As `look_up`.
    fn store(
        &self,
        namespace: &Hash,
        records: &[Outgoing],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>>;

    /// Removes records that did not verify.
    ///
    /// # Errors
    /// As `look_up`.
    fn remove(
        &self,
        namespace: &Hash,
        keys: &[PackedKey],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>>;

    /// Succeeds if the store answers.
    ///
    /// # Errors
    /// As `look_up`.
    fn ping(&self, call: &Arc<Call>) -> Result<()>;

    /// Refusals so far, by name.
    fn refusals(&self) -> Vec<(&'static str, u64)>;

    /// Cost of its requests so far, by name; of a store whose requests have a price.
    fn spent(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Puts the records of a scope out of reach for all clients. Returns what it did with the models' names that it knows.
    ///
    /// # Errors
    /// As `look_up`; `BAD_ARGUMENT` for a store that others must flush.
    fn flush(&self, _scope: Scope, _call: &Arc<Call>) -> Result<Flushed> {
        let text = "this store is not flushed by tierKV; use its own tools";
        Err(Error::bad_argument(text))
    }

    /// Learns flushes of other clients.
    ///
    /// # Errors
    /// As `look_up`.
    fn heed(&self, call: &Arc<Call>) -> Result<()> {
        self.ping(call)
    }

    /// Flushes learnt since the first contact, after the first `known`, and their number so far.
    fn news(&self, _known: u64) -> (u64, Vec<Scope>) {
        (0, Vec::new())
    }

    /// Notes a namespace's model, without a request.
    fn learn_model(&self, _namespace: &Hash, _model: &str) {}

    /// Names a namespace's model for all clients, for flushes by model.
    ///
    /// # Errors
    /// As `look_up`.
    fn name_model(&self, _namespace: &Hash, _model: &str, _call: &Arc<Call>) -> Result<()> {
        Ok(())
    }

    /// Memory of the store's nodes, as they tell it.
    ///
    /// # Errors
    /// As `look_up`.
    fn nodes(&self, _call: &Arc<Call>) -> Result<Vec<NodeFacts>> {
        Ok(Vec::new())
    }
}

/// Records that a flush takes; a condition that is left out takes all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Number of the class; 0: both.
    pub class: u8,
    /// Namespace.
    pub namespace: Option<Hash>,
    /// Name of the model.
    pub model: Option<String>,
    /// Tenant; 0: all.
    pub tenant: u64,
}

/// Outcome of a flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flushed {
    /// Whether the scope names a model that no client has named.
    pub is_unknown: bool,
    /// The models that clients have named.
    pub models: Vec<String>,
    /// Copies of the list of flushes that took note, of all.
    pub copies: (usize, usize),
    /// Whether everything was flushed, where the list was full.
    pub is_everything: bool,
    /// Objects that were removed, of a store without a list of flushes.
    pub removed: usize,
    /// Whether more are there than there was time for, so that the flush is to be repeated.
    pub is_left: bool,
}

/// Memory of a node, as it tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// `host:port`.
    pub address: String,
    /// Bytes that it uses.
    pub used_bytes: u64,
    /// Most bytes; 0: no limit.
    pub max_bytes: u64,
    /// Its rule of eviction, `maxmemory-policy`.
    pub policy: String,
    /// Keys, and keys that expire.
    pub keys: u64,
    /// Keys that expire.
    pub expiring: u64,
    /// Why it does not say it; empty: it does.
    pub trouble: String,
}

/// The bytes of a record, encoded now where it was deferred; of whatever length, because no store is told one before.
///
/// # Errors
/// As `DeferredRecord::make`.
pub fn made(content: &Content) -> Result<Arc<dyn Bytes>> {
    Ok(match content {
        Content::Made(bytes) => Arc::clone(bytes),
        Content::Deferred(deferred) => Arc::new(deferred.make()?),
    })
}

/// For whom a request is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asker {
    /// Tenant of all records; 0: nobody in particular.
    pub tenant: u64,
    /// Number of the last flush that was known when the records were made; none: they are not held against flushes.
    pub flushed: Option<u64>,
}

/// One request while it is open, or a part of it.
#[derive(Debug, Clone)]
pub struct Call {
    until: Instant,
    /// Longest time without a byte.
    silence: Option<Duration>,
    asker: Asker,
    shared: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    is_cancelled: AtomicBool,
    bytes: AtomicU64,
    reason: Mutex<Option<String>>,
}

impl Call {
    /// A call that ends after `within`.
    #[must_use]
    pub fn new(within: Duration, asker: Asker) -> Arc<Self> {
        let until = Instant::now() + within;
        Arc::new(Self { until, silence: None, asker, shared: Arc::default() })
    }

    /// A part of the call that leaves a third of the time to the rest of it, and ends after `silence` without a byte.
    #[must_use]
    pub fn part(&self, silence: Option<Duration>) -> Self {
        Self { until: Instant::now() + self.rest() * 2 / 3, silence, ..self.clone() }
    }

    /// Longest time without a byte.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.silence
    }

    /// For whom it is.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.asker
    }

    /// Gives the call up; it ends at its next step.
    pub fn cancel(&self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Time that is left.
    #[must_use]
    pub fn rest(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Counts bytes of records moved.
    pub fn moved(&self, bytes: u64) {
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of records moved so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Notes why the first bad record was refused.
    pub fn refused(&self, text: &str) {
        let mut reason = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert_with(|| text.to_owned());
    }

    /// Why the first bad record was refused.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Alive for Call {
    fn tick(&self) -> Result<()> {
        if self.shared.is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(Code::Cancelled, "the request was given up"));
        }
        if self.rest().is_zero() {
            return Err(Error::lane_failed("the store did not answer in time"));
        }
        Ok(())
    }
}
