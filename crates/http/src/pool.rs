//! Owns the connections to one engine: those without a request, how many there are, and the calls that wait for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::address::Address;
use crate::client::CallId;

/// Connections to one engine.
#[derive(Debug)]
pub struct Pool {
    pub address: Address,
    /// Most connections at once.
    pub most: usize,
    /// Connections that are open or being made.
    pub open: usize,
    /// Places of the idle ones, the last used at the end.
    pub idle: Vec<usize>,
    pub waiting: VecDeque<CallId>,
    /// Pieces of answers that came.
    pub signs: Arc<AtomicU64>,
}

impl Pool {
    pub fn new(address: Address, most: usize, signs: Arc<AtomicU64>) -> Self {
        let (idle, waiting) = (Vec::new(), VecDeque::new());
        Self { address, most, open: 0, idle, waiting, signs }
    }

    pub fn has_room(&self) -> bool {
        self.open < self.most
    }

    /// Forgets an idle connection.
    pub fn lose(&mut self, place: usize) {
        self.idle.retain(|idle| *idle != place);
    }
}
