//! Owns the detection of stalled fetches: one thread per session, which sleeps until the earliest could have stalled.

use std::sync::PoisonError;
use std::time::Duration;

use super::requests::{Request, State};
use super::session::Session;
use crate::error::{Code, Error, Result};

/// State of the open fetches.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    /// Fetches without a byte for too long, and for how long, in ms.
    stalled: Vec<(u32, u64)>,
    /// Time until the next one could stall; `None`: no fetch is watched.
    next: Option<Duration>,
}

impl State {
    /// A vault that reads its archive sends nothing else meanwhile, so the most patient open fetch counts for all.
    fn look(&self, now_ms: u64) -> Look {
        let open = || {
            self.requests.iter().filter_map(|(id, open)| match &open.request {
                Request::Fetch(fetch) => fetch.stall_ms().map(|times| (*id, times)),
                _ => None,
            })
        };
        let Some(most) = open().map(|(_, (stall, _))| stall).max() else { return Look::default() };
        let mut look = Look::default();
        for (id, (_, moved)) in open() {
            let silent = now_ms.saturating_sub(moved);
            if silent > most {
                look.stalled.push((id, silent));
            } else {
                let left = Duration::from_millis(most - silent + 1);
                look.next = Some(look.next.map_or(left, |next| next.min(left)));
            }
        }
        look
    }
}

impl Session {
    /// Ends stalled fetches until the session ends.
    pub(super) fn watch(&self) -> Result<()> {
        let mut state = self.state();
        let mut idle = None;
        loop {
            state.check()?;
            let Look { stalled, next } = state.look(self.now_ms());
            if !stalled.is_empty() {
                drop(state);
                for (request, ms) in stalled {
                    let text = format!("no byte came for {ms} ms");
                    self.give_up(request, Error::new(Code::FetchStalled, text));
                }
                state = self.state();
                continue;
            }
            // The thread stays awake once more after the last fetch, so that small fetches in a row do not wake it each.
            let wait = next.or_else(|| idle.take());
            if next.is_some() {
                idle = next;
            }
            state.is_watching = wait.is_some();
            state = match wait {
                Some(wait) => {
                    let waited = self.watched.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.watched.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
