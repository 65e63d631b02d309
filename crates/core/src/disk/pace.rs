//! Owns the measured time of reads from an archive: of a single read, and between records when reads overlap.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::{ARCHIVE_PACE_FADE_MS, ARCHIVE_PACE_READS};

/// Times of recent reads, with a resolution of microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Time of one read, from request to arrival.
    pub first: Duration,
    /// Time between the arrivals of two records.
    pub next: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    first_s: f64,
    next_s: f64,
    reads: f64,
    ended: Instant,
}

/// Learns the pace from each read.
#[derive(Debug, Default)]
pub struct Paces {
    last: Mutex<Option<Measured>>,
}

impl Paces {
    /// Counts a read from `begun` to `ended`, also a failed one, because its caller waited, too.
    pub fn read(&self, begun: Instant, ended: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let first_s = ended.saturating_duration_since(begun).as_secs_f64();
        let Some(known) = last.as_mut() else {
            *last = Some(Measured { first_s, next_s: first_s, reads: 1.0, ended });
            return;
        };
        // Overlapping reads share the time since the previous arrival.
        let next_s = ended.saturating_duration_since(known.ended.max(begun)).as_secs_f64();
        known.reads = (known.reads + 1.0).min(ARCHIVE_PACE_READS);
        known.first_s += (first_s - known.first_s) / known.reads;
        known.next_s += (next_s - known.next_s) / known.reads;
        known.ended = known.ended.max(ended);
    }

    /// Returns the pace; `None` before the first read. The pace fades while nothing is read, because an archive believed slow is
    /// not asked and may have become fast.
    #[must_use]
    pub fn at(&self, now: Instant) -> Option<Pace> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|known| {
            let age_ms = now.saturating_duration_since(known.ended).as_secs_f64() * 1e3;
            let fade = 0.5_f64.powf(age_ms / ARCHIVE_PACE_FADE_MS);
            let faded = |seconds: f64| Duration::from_secs_f64(seconds * fade);
            Pace { first: faded(known.first_s), next: faded(known.next_s) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Pace, Paces};
    use crate::limits::ARCHIVE_PACE_FADE_MS;
    use std::time::{Duration, Instant};

    const MS: Duration = Duration::from_millis(1);

    fn near(found: Option<Pace>, first_ms: f64, next_ms: f64) {
        let Some(Pace { first, next }) = found else { panic!("nothing is known") };
        // The mean depends on which reads were last, so it is compared loosely.
        let is_near = |found: Duration, ms: f64| (found.as_secs_f64() * 1e3 / ms - 1.0).abs() < 0.2;
        assert!(is_near(first, first_ms) && is_near(next, next_ms), "{first:?} {next:?}");
    }

    #[test]
    fn one_after_the_other_each_takes_as_long() {
        let (paces, start) = (Paces::default(), Instant::now());
        assert_eq!(paces.at(start), None);
        for at in 0..5 {
            // Pauses between reads do not count.
            paces.read(start + MS * (at * 100), start + MS * (at * 100 + 20));
        }
        near(paces.at(start + MS * 420), 20.0, 20.0);
    }

    #[test]
    fn side_by_side_they_share_the_time() {
        let (paces, start) = (Paces::default(), Instant::now());
        for at in 0..40 {
            for _ in 0..4 {
                paces.read(start + MS * (at * 20), start + MS * (at * 20 + 20));
            }
        }
        near(paces.at(start + MS * 800), 20.0, 5.0);
    }

    #[test]
    fn what_nobody_asks_for_any_more_fades() {
        let (paces, start) = (Paces::default(), Instant::now());
        paces.read(start, start + MS * 80);
        let later = Duration::from_secs_f64(ARCHIVE_PACE_FADE_MS / 1e3);
        near(paces.at(start + MS * 80 + later), 40.0, 40.0);
        paces.read(start + later * 9, start + later * 9 + MS * 20);
        near(paces.at(start + later * 9 + MS * 20), 50.0, 50.0);
    }
}
