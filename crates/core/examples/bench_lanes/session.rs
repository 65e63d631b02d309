//! Owns one session of the near side: its requests in turns, and their outcomes.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use tierkv_core::lane::client::{Client, Outcome};
use tierkv_core::store::ItemStatus;

use super::near::NAMESPACE;

/// One session and its outcomes.
pub struct Session {
    pub client: Client,
    pub outcomes: Receiver<(u32, Outcome)>,
}

impl Session {
    /// Begins each of `work`, at most `most` at a time; every item of every outcome must be accepted.
    pub fn pipelined<W>(
        &self,
        most: usize,
        work: impl Iterator<Item = W>,
        begin: impl Fn(&Client, W) -> u32,
    ) {
        let mut open = 0;
        for each in work {
            begin(&self.client, each);
            open += 1;
            if open == most {
                self.accepted();
                open -= 1;
            }
        }
        for _ in 0..open {
            self.accepted();
        }
    }

    /// Waits for the next outcome, asserts that all its items are accepted, and returns its request number.
    pub fn accepted(&self) -> u32 {
        match self.outcomes.recv().unwrap() {
            (request, Outcome::Done(statuses, ..)) => {
                assert!(statuses.iter().all(|status| *status == ItemStatus::Accepted as u8));
                request
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the milliseconds of one look-up of `keys`.
    pub fn look_up_ms(&self, keys: &[[u8; 36]]) -> f64 {
        let started = Instant::now();
        self.client.look_up(&NAMESPACE, keys).unwrap();
        let (_, outcome) = self.outcomes.recv().unwrap();
        assert!(matches!(outcome, Outcome::Found(_)));
        started.elapsed().as_secs_f64() * 1e3
    }
}
