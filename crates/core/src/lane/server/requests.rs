//! Owns the open state of one client at a vault: fetches in order, stores by number, and unsent answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fetching::{Claim, FetchJob};
use super::storing::StoreJob;
use crate::error::{Error, Result};
use crate::lane::frame::Frame;
use crate::lane::standing::Standing;
use crate::lane::stream::Stream;

/// One lane; a thread holds `sending` while it sends on it.
pub struct Lane {
    pub stream: Arc<dyn Stream>,
    pub sending: Mutex<()>,
    /// Number of lanes of the session behind this one.
    pub behind: u16,
    /// Records that the client has not read yet.
    pub standing: Arc<Standing>,
}

impl Lane {
    pub fn new(stream: &Arc<dyn Stream>, behind: u16) -> Self {
        Self {
            stream: Arc::clone(stream),
            sending: Mutex::default(),
            behind,
            standing: Arc::default(),
        }
    }
}

#[derive(Default)]
pub struct State {
    pub closed: Option<Error>,
    pub lanes: Vec<Arc<dyn Stream>>,
    /// Number of lanes announced behind each of them.
    pub behind: Vec<u16>,
    pub answers: VecDeque<(Frame, Vec<u8>)>,
    pub answers_bytes: usize,
    pub fetches: VecDeque<FetchJob>,
    /// Number of the last fetch.
    pub last_fetch: u64,
    pub stores: HashMap<u32, StoreJob>,
    /// Records that stand on each lane.
    pub standing: Vec<Arc<Standing>>,
    /// Lanes whose thread has sent what it took, and waits for more.
    pub idle: usize,
}

impl State {
    pub fn check(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    /// Takes the next part for a lane with `behind` lanes behind it, from the first fetch that has one.
    pub fn claim(&mut self, lane: &Lane) -> Option<(u32, Claim)> {
        let has_room = lane.standing.has_room();
        let claim = |job: &mut FetchJob| {
            let may = job.lanes == 0 || lane.behind < job.lanes;
            (may && (has_room || !job.stands))
                .then(|| job.claim())
                .flatten()
                .map(|claim| (job.request, claim))
        };
        let claimed = self.fetches.iter_mut().find_map(claim);
        if let Some((request, Claim::Chunk(_) | Claim::Stand(_) | Claim::Missing(_))) = claimed {
            self.forget_when_over(request);
        }
        claimed
    }

    pub fn fetch(&mut self, request: u32) -> Option<&mut FetchJob> {
        self.fetches.iter_mut().find(|job| job.request == request)
    }

    /// The open fetch of a number.
    pub fn job(&mut self, number: u64) -> Option<&mut FetchJob> {
        self.fetches.iter_mut().find(|job| job.number == number)
    }

    pub fn forget_when_over(&mut self, request: u32) {
        self.fetches.retain(|job| job.request != request || !job.is_over());
    }

    /// Number of lanes for a fetch that asks for `asked`; 0 (any) if none of these has connected, so that the fetch cannot wait for ever.
    pub fn bringing(&self, asked: u16) -> u16 {
        if self.behind.iter().any(|behind| *behind < asked) { asked } else { 0 }
    }

    /// Removes the offers that got no byte for `idle`; returns their requests.
    pub fn take_idle_stores(&mut self, idle: Duration) -> Vec<u32> {
        let now = Instant::now();
        self.stores.extract_if(|_, job| now > job.touched + idle).map(|(id, _)| id).collect()
    }

    /// Bytes charged to the session's own reserve.
    pub fn own_bytes(&self) -> usize {
        let fetches = self.fetches.iter().map(|job| job.kept.own_bytes()).sum::<usize>();
        fetches + self.stores.values().map(|job| job.kept.own_bytes()).sum::<usize>()
    }

    pub fn open_bytes(&self) -> u64 {
        self.stores.values().map(|job| job.open_bytes).sum()
    }
}
