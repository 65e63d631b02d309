//! Owns the spans of traced requests at a vault: each begins and ends with its request, and is kept until it is taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lane::frame::{OFFER_ITEM_BYTES, TraceContext};
use crate::limits::LANE_SPANS_MAX;
use crate::record::{HASH_BYTES, PACKED_KEY_BYTES};

/// Kind of a traced request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Look-up of keys.
    Lookup,
    /// Fetch of records.
    Fetch,
    /// Store of records.
    Store,
}

/// Span of one request of a client that traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Context of the client's span.
    pub context: TraceContext,
    /// Kind of the request.
    pub asked: Asked,
    /// Start, since 1970.
    pub begun: Duration,
    /// Duration of the request.
    pub took: Duration,
    /// Records requested.
    pub records: u32,
    /// Records held, sent, or stored.
    pub done: u32,
    /// Record bytes sent or stored.
    pub bytes: u64,
}

/// Ended spans.
#[derive(Default)]
pub struct Spans(Mutex<Ended>);

#[derive(Default)]
struct Ended {
    spans: Vec<Span>,
    dropped: u64,
}

impl Spans {
    /// Begins a span; `None` for a body without a trace context behind its items.
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

    /// Takes the spans that ended since the last call, and the number dropped.
    pub fn take(&self) -> (Vec<Span>, u64) {
        let mut ended = self.ended();
        (std::mem::take(&mut ended.spans), std::mem::take(&mut ended.dropped))
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Span of an open request; dropping it ends the span.
pub struct OpenSpan {
    spans: Arc<Spans>,
    since: Instant,
    span: Span,
}

impl OpenSpan {
    /// Adds records and bytes done.
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
