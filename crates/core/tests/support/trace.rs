//! Owns seeded traces of keys: Zipf-distributed, with and without long scans in between.

use super::random::Random;

/// Key numbers 0..`keys`, the k-th with a probability proportional to 1/(k+1)^`skew`.
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// A distribution over `keys` keys.
    pub fn new(keys: u32, skew: f64) -> Self {
        let mut sum = 0.0;
        let cumulated = (0..keys).map(|key| {
            sum += (f64::from(key) + 1.0).powf(-skew);
            sum
        });
        Self(cumulated.collect())
    }

    /// The next key.
    pub fn sample(&self, random: &mut Random) -> u64 {
        let point = unit(random) * self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum <= point) as u64
    }
}

/// A trace of `length` keys; `scan_every` > 0: each second stretch of that length is a scan of keys used once.
pub fn trace(keys: u32, skew: f64, length: u64, scan_every: u64, seed: u64) -> Vec<u64> {
    let zipf = Zipf::new(keys, skew);
    let mut random = Random::new(seed);
    let mut scanned = u64::from(keys);
    let mut next = |at: u64| {
        if scan_every > 0 && (at / scan_every) % 2 == 1 {
            scanned += 1;
            return scanned;
        }
        zipf.sample(&mut random)
    };
    (0..length).map(&mut next).collect()
}

/// A number from 0 (inclusive) to 1 (exclusive).
#[expect(clippy::cast_precision_loss, reason = "53 bits are meant")]
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}
