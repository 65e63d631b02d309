//! Owns when the thread lets pieces gather: waking for each one alone costs more than reading and writing it.

use std::time::{Duration, Instant};

use crate::limits::{BUSY_EVENTS_PER_S, BUSY_WINDOW, GATHERED, GATHERING};

/// Counts readiness events over windows of time.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    events: u64,
    /// Events served last, at once.
    last: usize,
    is_busy: bool,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { since: now, events: 0, last: 0, is_busy: false }
    }

    /// Counts events that were served by now.
    pub fn served(&mut self, events: usize, now: Instant) {
        self.events += events as u64;
        self.last = events;
        let took = now.duration_since(self.since);
        if took < BUSY_WINDOW {
            return;
        }
        let rate = u128::from(self.events) * 1_000_000 / took.as_micros();
        self.is_busy = rate >= BUSY_EVENTS_PER_S;
        (self.since, self.events) = (now, 0);
    }

    /// How long to wait before looking for more; `None`: not at all.
    pub fn pause(&self) -> Option<Duration> {
        (self.is_busy && self.last < GATHERED).then_some(GATHERING)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Pace;
    use crate::limits::{BUSY_WINDOW, GATHERED, GATHERING};

    /// Whether it waits after a second with so many events, each served alone.
    fn waits_at(rate: u32) -> bool {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        for event in 1..=rate {
            pace.served(1, begin + Duration::from_secs(1) * event / rate);
        }
        pace.pause().is_some()
    }

    #[test]
    fn pieces_gather_only_where_many_come() {
        assert!(!waits_at(100));
        assert!(!waits_at(3_000));
        assert!(waits_at(6_000));
        assert!(waits_at(100_000));
    }

    #[test]
    fn gathering_ends_with_the_rush() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        pace.served(1_000, begin + BUSY_WINDOW);
        assert_eq!(pace.pause(), None, "so many have gathered already");
        pace.served(GATHERED - 1, begin + BUSY_WINDOW);
        assert_eq!(pace.pause(), Some(GATHERING));
        pace.served(1, begin + 3 * BUSY_WINDOW);
        assert_eq!(pace.pause(), None);
    }
}
