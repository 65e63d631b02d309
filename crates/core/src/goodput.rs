//! Owns the goodput of one direction of a link: bytes per second of busy time, over all transfers together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::{
    GOODPUT_BURST_BYTES_MIN, GOODPUT_GAP_MS, GOODPUT_MEMORY_MS, GOODPUT_PRIOR_MS,
    GOODPUT_SAMPLE_BYTES_MIN, GOODPUT_SPAN_MIN_MS,
};

/// Bytes of all transfers are counted together, because two transfers that share a link are each half as fast.
#[derive(Debug)]
pub struct Goodput {
    born: Instant,
    /// Bytes not yet passed to `meter`.
    moved: AtomicU64,
    meter: Mutex<Meter>,
}

impl Default for Goodput {
    fn default() -> Self {
        Self { born: Instant::now(), moved: AtomicU64::new(0), meter: Mutex::default() }
    }
}

impl Goodput {
    /// Begins a transfer whose first `wait_ms` are waiting; `is_far` says that it may also wait for an archive, for an
    /// unknown time. `end` must follow once.
    pub fn begin(&self, wait_ms: f64, is_far: bool) {
        self.meter().begin(self.now_ms(), wait_ms, is_far);
    }

    /// Counts bytes moved; never blocks.
    pub fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        if let Ok(mut meter) = self.meter.try_lock() {
            self.note(&mut meter);
        }
    }

    /// Leaves out `time`, because the bytes that follow waited so long for an archive.
    pub fn waited(&self, time: Duration) {
        self.meter().waited(self.now_ms(), time.as_secs_f64() * 1e3);
    }

    /// Ends a transfer; `is_cut` says that it was given up, `is_far` is as in `begin`.
    pub fn end(&self, is_cut: bool, is_far: bool) {
        self.meter().end(self.now_ms(), is_cut, is_far);
    }

    /// Bytes per second; `prior` stands in before the first measurement; `None` if nothing is known.
    #[must_use]
    pub fn rate(&self, prior: Option<f64>) -> Option<f64> {
        self.meter().rate(self.now_ms(), prior)
    }

    /// Milliseconds since the last measurement; `None` before the first.
    #[must_use]
    pub fn idle_ms(&self) -> Option<f64> {
        let measured_ms = self.meter().measured_ms?;
        Some(self.now_ms() - measured_ms)
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(&mut meter);
        meter
    }

    fn note(&self, meter: &mut Meter) {
        let bytes = self.moved.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            meter.moved(self.now_ms(), bytes);
        }
    }

    fn now_ms(&self) -> f64 {
        self.born.elapsed().as_secs_f64() * 1e3
    }
}

/// The measurement without a clock; each call passes the time.
#[derive(Debug, Default)]
pub struct Meter {
    open: u32,
    /// Open transfers that may wait for an archive.
    far: u32,
    /// Busy time not noted yet: its start, the waiting in it, and its bytes.
    since_ms: f64,
    wait_ms: f64,
    since_bytes: f64,
    /// Time of the last bytes, and of the current burst's start.
    moved_ms: f64,
    burst_ms: f64,
    /// Whether part of this busy time is noted already.
    is_noted: bool,
    /// Noted bytes and busy milliseconds; older ones fade with `GOODPUT_MEMORY_MS` of busy time.
    bytes: f64,
    span_ms: f64,
    measured_ms: Option<f64>,
}

impl Meter {
    /// As `Goodput::begin`.
    pub fn begin(&mut self, now_ms: f64, wait_ms: f64, is_far: bool) {
        if self.open == 0 {
            self.restart(now_ms, wait_ms);
            (self.moved_ms, self.burst_ms) = (now_ms, now_ms);
            self.is_noted = false;
        }
        self.open += 1;
        self.far += u32::from(is_far);
    }

    /// As `Goodput::moved`. Busy time is noted in parts, because a link may fail during a transfer. No part ends within a
    /// burst, because a burst's first bytes waited for all before them.
    #[expect(clippy::cast_precision_loss, reason = "byte counts stay far below 2^53")]
    pub fn moved(&mut self, now_ms: f64, bytes: u64) {
        let is_burst_over = now_ms - self.moved_ms >= GOODPUT_GAP_MS;
        if is_burst_over || self.moved_ms - self.burst_ms >= GOODPUT_PRIOR_MS {
            if self.open > 0 && self.busy_ms(self.moved_ms) >= GOODPUT_PRIOR_MS {
                self.note(self.moved_ms);
            }
            self.burst_ms = now_ms;
        }
        self.since_bytes += bytes as f64;
        self.moved_ms = now_ms;
    }

    /// As `Goodput::waited`. Shifts only the silent part of the time, because lanes wait side by side and bytes sent before
    /// are still on their way.
    pub fn waited(&mut self, now_ms: f64, ms: f64) {
        let silent_ms = (now_ms - self.moved_ms).min(ms).max(0.0);
        self.since_ms += silent_ms;
        self.moved_ms += silent_ms;
        self.burst_ms += silent_ms;
    }

    /// As `Goodput::end`. Few bytes in a long time also count as a rate, where the transfer was given up for it.
    pub fn end(&mut self, now_ms: f64, is_cut: bool, is_far: bool) {
        let until_ms = self.heard_ms(now_ms);
        self.open = self.open.saturating_sub(1);
        self.far = self.far.saturating_sub(u32::from(is_far));
        if self.open > 0 {
            self.waited(now_ms, now_ms - until_ms);
            return;
        }
        let busy_ms = self.busy_ms(until_ms);
        let is_long = busy_ms >= GOODPUT_PRIOR_MS;
        let expected = self.known().unwrap_or(0.0) * busy_ms;
        if is_cut && is_long && expected > 2.0 * self.since_bytes {
            // An average with the old rate would keep the link eligible for further requests, which would all wait in vain.
            (self.bytes, self.span_ms) = (0.0, 0.0);
            self.since_bytes = self.since_bytes.max(GOODPUT_SAMPLE_BYTES_MIN);
        }
        if if is_cut { is_long } else { self.since_bytes >= GOODPUT_SAMPLE_BYTES_MIN } {
            self.note(until_ms);
        }
    }

    /// As `Goodput::rate`. Open transfers count once they have taken a while.
    #[must_use]
    pub fn rate(&self, now_ms: f64, prior: Option<f64>) -> Option<f64> {
        let known = self.known().or(prior.map(|rate| rate / 1e3));
        if self.open == 0 {
            return known.map(|rate| rate * 1e3);
        }
        let busy_ms = self.busy_ms(self.heard_ms(now_ms)).max(0.0);
        let is_early = busy_ms < GOODPUT_PRIOR_MS;
        let rate = match known {
            None if is_early || self.since_bytes <= 0.0 => return None,
            None => self.since_bytes / busy_ms,
            // The first bytes are not due yet, because a vault may first look for the records.
            Some(known) if is_early && self.since_bytes <= 0.0 && !self.is_noted => known,
            Some(known) => {
                let believed = self.since_bytes + known * GOODPUT_PRIOR_MS;
                let now = believed / (busy_ms + GOODPUT_PRIOR_MS);
                // Early bytes do not prove a fast link.
                if is_early { now.min(known) } else { now }
            }
        };
        Some(rate * 1e3)
    }

    /// Noted bytes per millisecond.
    fn known(&self) -> Option<f64> {
        (self.span_ms > 0.0).then(|| self.bytes / self.span_ms)
    }

    /// Until when what came or did not is the link's own: whose silence it is shows by what comes after it.
    fn heard_ms(&self, now_ms: f64) -> f64 {
        if self.far > 0 { self.moved_ms } else { now_ms }
    }

    fn busy_ms(&self, now_ms: f64) -> f64 {
        now_ms - self.since_ms - self.wait_ms
    }

    fn restart(&mut self, now_ms: f64, wait_ms: f64) {
        (self.since_ms, self.wait_ms, self.since_bytes) = (now_ms, wait_ms, 0.0);
    }

    /// Notes busy time up to now. A whole transfer faster than all before counts at least half, because a small one may
    /// seem slow, but none is faster than the link.
    fn note(&mut self, now_ms: f64) {
        let span_ms = self.busy_ms(now_ms).max(GOODPUT_SPAN_MIN_MS);
        let mut keep = (-span_ms / GOODPUT_MEMORY_MS).exp();
        let is_faster = self.since_bytes * self.span_ms > self.bytes * span_ms;
        if !self.is_noted && is_faster && self.since_bytes >= GOODPUT_BURST_BYTES_MIN {
            keep = keep.min(span_ms / self.span_ms);
        }
        self.bytes = self.bytes * keep + self.since_bytes;
        self.span_ms = self.span_ms * keep + span_ms;
        self.measured_ms = Some(now_ms);
        self.is_noted = true;
        self.restart(now_ms, 0.0);
    }
}
