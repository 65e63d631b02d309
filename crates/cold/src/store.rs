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

/// One request while it is open.
#[derive(Debug)]
pub struct Call {
    until: Instant,
    is_cancelled: AtomicBool,
    bytes: AtomicU64,
    reason: Mutex<Option<String>>,
}

impl Call {
    /// A call that ends after `within`.
    #[must_use]
    pub fn new(within: Duration) -> Arc<Self> {
        Arc::new(Self {
            until: Instant::now() + within,
            is_cancelled: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            reason: Mutex::default(),
        })
    }

    /// Gives the call up; it ends at its next step.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Time that is left.
    #[must_use]
    pub fn rest(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Counts bytes of records moved.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of records moved so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes why the first bad record was refused.
    pub fn refused(&self, text: &str) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.get_or_insert_with(|| text.to_owned());
    }

    /// Why the first bad record was refused.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Alive for Call {
    fn tick(&self) -> Result<()> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(Code::Cancelled, "the request was given up"));
        }
        if self.rest().is_zero() {
            return Err(Error::lane_failed("the store did not answer in time"));
        }
        Ok(())
    }
}
