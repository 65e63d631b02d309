//! Owns the sum of bytes that came recently, over the last one to two spans.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Lately {
    span: Duration,
    since: Instant,
    /// Bytes of this span and of the one before.
    bytes: [u64; 2],
}

impl Lately {
    /// With a span of zero the sum is always zero.
    pub(super) fn new(span: Duration) -> Self {
        Self { span, since: Instant::now(), bytes: [0; 2] }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.turn(Instant::now());
        self.bytes[0] += bytes;
    }

    pub(super) fn bytes(&mut self) -> u64 {
        self.turn(Instant::now());
        self.bytes.iter().sum()
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed < self.span {
            return;
        }
        let last = if passed < self.span * 2 { self.bytes[0] } else { 0 };
        (self.since, self.bytes) = (now, [0, last]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_counts_for_one_to_two_spans() {
        let span = Duration::from_secs(60);
        let mut lately = Lately::new(span);
        lately.add(3);
        let start = lately.since;
        for (at, bytes) in [(59, 3), (60, 3), (119, 3), (120, 0)] {
            lately.turn(start + Duration::from_secs(at));
            assert_eq!(lately.bytes.iter().sum::<u64>(), bytes, "after {at} s");
        }
        lately.bytes = [7, 0];
        lately.turn(lately.since + span * 2);
        assert_eq!(lately.bytes, [0, 0], "nobody asked for two spans");
        let mut never = Lately::new(Duration::ZERO);
        never.add(5);
        assert_eq!(never.bytes(), 0);
    }
}
