//! Owns the spans of traced requests at a vault: begun with a request, ended with it however that ends, kept until they are taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lane::frame::{OFFER_ITEM_BYTES, TraceContext};
use crate::limits::LANE_SPANS_MAX;
use crate::record::{HASH_BYTES, PACKED_KEY_BYTES};

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Which of its keys are here.
    Lookup,
    /// Records, to be sent.
    Fetch,
    /// To take records.
    Store,
}

/// One request of a client that traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Of the span that asked.
    pub context: TraceContext,
    /// What it asked.
    pub asked: Asked,
    /// Since 1970.
    pub begun: Duration,
    /// How long it took.
    pub took: Duration,
    /// Records that it was about.
    pub records: u32,
    /// Of these: held, sent, or taken.
    pub done: u32,
    /// Record bytes that were sent or taken.
    pub bytes: u64,
}

/// Those that have ended.
#[derive(Default)]
pub struct Spans(Mutex<Ended>);

#[derive(Default)]
struct Ended {
    spans: Vec<Span>,
    dropped: u64,
}

impl Spans {
    /// Begins one; none for a body without a context behind its items.
    pub fn begin(self: &Arc<Self>, asked: Asked, body: &[u8], records: usize) -> Option<OpenSpan> {
        let item_bytes = match asked {
            Asked::Lookup | Asked::Fetch => PACKED_KEY_BYTES,
            Asked::Store => OFFER_ITEM_BYTES,
        };
        let rest = body.get(HASH_BYTES..)?.len() % item_bytes;
        let context = body[body.len() - rest..].try_into().ok()?;
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        let took = Duration::ZERO;
        let span = Span { context, asked, begun, took, records, done: 0, bytes: 0 };
        Some(OpenSpan { spans: Arc::clone(self), since: Instant::now(), span })
    }

    /// Those that ended since the last time, and how many were too many.
    pub fn take(&self) -> (Vec<Span>, u64) {
        let mut ended = self.ended();
        (std::mem::take(&mut ended.spans), std::mem::take(&mut ended.dropped))
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One whose request is open. Dropped = ended.
pub struct OpenSpan {
    spans: Arc<Spans>,
    since: Instant,
    span: Span,
}

impl OpenSpan {
    /// So many of its records, and bytes, more.
    pub fn add(&mut self, records: u32, bytes: u64) {
        self.span.done += records;
        self.span.bytes += bytes;
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let span = Span { took: self.since.elapsed(), ..self.span.clone() };
        let mut ended = self.spans.ended();
        if ended.spans.len() < LANE_SPANS_MAX {
            ended.spans.push(span);
        } else {
            ended.dropped += 1;
        }
    }
}
