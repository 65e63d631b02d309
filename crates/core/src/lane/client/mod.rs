//! Owns a client's lanes to one vault: requests, the lanes that carry them, and one outcome per request.

mod dial;
mod fetching;
mod rails;
mod requests;
mod sender;
mod session;
mod standing;
mod storing;
mod watch;

use std::sync::Arc;

use self::fetching::FetchRequest;
pub use self::fetching::{Keep, Kept, Target, Targets};
pub use self::rails::Rail;
use self::requests::{Lent, Probe, Request};
use self::session::Session;
use self::storing::StoreRequest;
pub use self::storing::{Content, Outgoing};
use super::frame::{
    Frame, Kind, LOOKUP_FAR, LOOKUP_UNCOUNTED, OFFER_ITEM_BYTES, TOKEN_BYTES, TraceContext,
};
use super::tls;
use super::wire::Timing;
use crate::error::{Error, Result};
use crate::goodput::Goodput;
use crate::limits::{LANE_CHUNK_BYTES, LANE_KEYS_MAX, LANE_PROBE_CHUNKS_MAX, LANES_MAX, RAILS_MAX};
use crate::outbox::Outbox;
use crate::record::{Hash, PACKED_KEY_BYTES};
use crate::store::MADE_NOW;

/// Vault, credentials and settings of a client's lanes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Paths to the vault, at least one; lane `i` uses rail `i` modulo their number.
    pub rails: Vec<Rail>,
    /// Token from the vault's hello.
    pub token: [u8; TOKEN_BYTES],
    /// Number of lanes.
    pub lanes: u16,
    /// Trust in the vault; `None` for lanes in clear.
    pub tls: Option<tls::Client>,
    /// Time limits.
    pub timing: Timing,
    /// Goodput that counts fetched bytes.
    pub down: Arc<Goodput>,
    /// Goodput that counts stored bytes.
    pub up: Arc<Goodput>,
    /// Lends the memory of these records to a vault of our user on this machine, and reads records in the vault's; `None`: all
    /// bytes travel.
    pub lends: Option<Arc<Outbox>>,
}

/// Outcome of a request; each has exactly one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Request 0: all lanes are open.
    Up,
    /// Request 0: the session has ended or never began; all open requests have failed before.
    Down(Error),
    /// A look-up: bitmap over its keys.
    Found(Vec<u8>),
    /// A fetch or store: an `ItemStatus` number per item, the bytes of payload and headers transferred, and why the first
    /// bad record was refused here.
    Done(Vec<u8>, u64, Option<String>),
    /// The request failed as a whole: a status per item (none for a look-up), 9 (incomplete) where it is unknown.
    Failed(Error, Vec<u8>),
}

/// Callback for every outcome, on a lane's thread; it must not block.
pub type Sink = Arc<dyn Fn(u32, Outcome) + Send + Sync>;

/// The lanes to one vault, closed when dropped.
pub struct Client {
    session: Arc<Session>,
}

impl Client {
    /// Dials in the background. The outcomes of request 0 report that the lanes are up, and later that they ended.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` for a number of lanes; `LANE_FAILED` when no thread can be started.
    pub fn open(options: Options, sink: Sink) -> Result<Self> {
        if !(1..=LANES_MAX).contains(&usize::from(options.lanes)) {
            let text = format!("lanes is {}: it must be 1 to {LANES_MAX}", options.lanes);
            return Err(Error::bad_argument(text));
        }
        let rails = options.rails.len();
        if !(1..=RAILS_MAX).contains(&rails) || rails > usize::from(options.lanes) {
            let text = format!("{rails} rails: 1 to {RAILS_MAX}, and not more than lanes");
            return Err(Error::bad_argument(text));
        }
        Ok(Self { session: Session::open(options, sink)? })
    }

    /// Asks which of `keys` the vault holds. Returns the request's number; the outcome may come earlier.
    ///
    /// # Errors
    /// `LANE_FAILED` when the lanes are not up, `BAD_ARGUMENT` for too many keys.
    pub fn look_up(&self, namespace: &Hash, keys: &[[u8; PACKED_KEY_BYTES]]) -> Result<u32> {
        self.look_up_in(namespace, keys, true, None)
    }

    /// Like `look_up`, counted in the vault's hit rate or not, and as part of a trace.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn look_up_in(
        &self,
        namespace: &Hash,
        keys: &[[u8; PACKED_KEY_BYTES]],
        is_counted: bool,
        trace: Option<&TraceContext>,
    ) -> Result<u32> {
        let body = keys_body(namespace, keys, trace)?;
        let item = if is_counted { 0 } else { LOOKUP_UNCOUNTED };
        let frame = Frame { code: LOOKUP_FAR, item, ..Frame::new(Kind::Lookup, 0) };
        self.session.begin(Request::Lookup { keys: keys.len() }, frame, body)
    }

    /// Fetches records straight into slots. An item's status is 1 (accepted) once its record is verified and decoded in its
    /// slot. Slots may be written until the outcome.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn fetch(&self, targets: Targets) -> Result<u32> {
        let body = keys_body(&targets.namespace, &targets.keys(), targets.trace.as_ref())?;
        if targets.items.is_empty() {
            return Err(Error::bad_argument("a fetch of no record"));
        }
        let request = Request::Fetch(Arc::new(FetchRequest::new(targets)));
        self.session.begin(request, Frame::new(Kind::Fetch, 0), body)
    }

    /// Fetches records as they are: verified, but neither opened nor decoded.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn take(&self, kept: Kept) -> Result<u32> {
        let body = keys_body(&kept.namespace, &kept.keys, None)?;
        if kept.keys.is_empty() {
            return Err(Error::bad_argument("a fetch of no record"));
        }
        let request = Request::Fetch(Arc::new(FetchRequest::keeping(kept)));
        self.session.begin(request, Frame::new(Kind::Fetch, 0), body)
    }

    /// Offers records and sends those that the vault wants. A record that cannot be made, or has another length, ends as 9
    /// (incomplete). After the outcome the slots of deferred records may be released; a record still being encoded is discarded.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn store(&self, namespace: &Hash, records: Vec<Outgoing>) -> Result<u32> {
        self.store_for(0, MADE_NOW, namespace, records, None)
    }

    /// Like `store`, for a tenant, of records whose maker knew the flushes up to `known`, and as part of a trace.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn store_for(
        &self,
        tenant: u64,
        known: u64,
        namespace: &Hash,
        records: Vec<Outgoing>,
        trace: Option<&TraceContext>,
    ) -> Result<u32> {
        if records.is_empty() || records.len() > LANE_KEYS_MAX {
            let text = format!("{} records in one store: 1 to {LANE_KEYS_MAX}", records.len());
            return Err(Error::bad_argument(text));
        }
        let trace = trace.map_or([].as_slice(), |trace| trace);
        let length = namespace.len() + records.len() * OFFER_ITEM_BYTES + trace.len();
        let mut body = Vec::with_capacity(length);
        body.extend_from_slice(namespace);
        for Outgoing { packed_key, content } in &records {
            body.extend_from_slice(packed_key);
            body.extend_from_slice(&(content.length() as u64).to_le_bytes());
        }
        body.extend_from_slice(trace);
        let request = Request::Store(StoreRequest::new(records));
        let offer = Frame { offset: tenant, record_bytes: known, ..Frame::new(Kind::Offer, 0) };
        self.session.begin(request, offer, body)
    }

    /// Moves `chunks` full chunks that are no record, from the vault or to it, to measure the link alone. The bytes are
    /// discarded; the outcome has their number.
    ///
    /// # Errors
    /// As `look_up`.
    pub fn probe(&self, chunks: u32, to_vault: bool) -> Result<u32> {
        if !(1..=LANE_PROBE_CHUNKS_MAX).contains(&chunks) {
            let text = format!("a probe of {chunks} chunks: 1 to {LANE_PROBE_CHUNKS_MAX}");
            return Err(Error::bad_argument(text));
        }
        let request = if to_vault {
            let plain = Outgoing {
                packed_key: [0; PACKED_KEY_BYTES],
                content: Content::Made(Arc::new(vec![0xA5; LANE_CHUNK_BYTES])),
            };
            Request::Store(StoreRequest::new(vec![plain; chunks as usize]))
        } else {
            Request::Probe(Probe::new(chunks))
        };
        let frame = Frame { item: chunks, code: to_vault.into(), ..Frame::new(Kind::Probe, 0) };
        self.session.begin(request, frame, Vec::new())
    }

    /// Gives a request up; its outcome is `Failed`. A slot that a lane is still writing cannot be leased again before the
    /// write ends. Does nothing after the outcome.
    pub fn cancel(&self, request: u32) {
        self.session.cancel(request);
    }

    /// Bytes received or sent for a request; `None` after its outcome.
    #[must_use]
    pub fn progress(&self, request: u32) -> Option<u64> {
        self.session.progress(request)
    }

    /// Whether records of the vault, and ours, are read where they stand.
    #[must_use]
    pub fn lends(&self) -> [bool; 2] {
        let Lent { reads, is_read, .. } = self.session.state().lent;
        [reads, is_read]
    }

    /// Rails that ended the session or kept it from beginning.
    #[must_use]
    pub fn failed_rails(&self) -> Vec<usize> {
        self.session.state().failed_rails.clone()
    }

    /// Longest packet of the first rail, as far as the system knows.
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        self.session.state().lanes.first().and_then(|lane| lane.mtu())
    }

    /// Ends all lanes; open requests fail.
    pub fn close(&self) {
        self.session.close(&Error::lane_failed("the client closed its lanes"));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

fn keys_body(
    namespace: &Hash,
    keys: &[[u8; PACKED_KEY_BYTES]],
    trace: Option<&TraceContext>,
) -> Result<Vec<u8>> {
    if keys.len() > LANE_KEYS_MAX {
        let text = format!("{} keys in one request: {LANE_KEYS_MAX} at most", keys.len());
        return Err(Error::bad_argument(text));
    }
    let trace = trace.map_or([].as_slice(), |trace| trace);
    Ok([namespace.as_slice(), keys.as_flattened(), trace].concat())
}

fn cancel_frame(request: u32) -> Frame {
    Frame::new(Kind::Cancel, request)
}
