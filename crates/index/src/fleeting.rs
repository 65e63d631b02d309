//! Owns short-lived beliefs about blocks: of which engines, until when, and bounded in number.

use std::collections::{HashMap, VecDeque};

use crate::table::{Bits, HolderId, Spread};

/// All beliefs last equally long, so the oldest come first.
#[derive(Debug)]
pub struct Fleeting {
    beliefs: HashMap<u64, Vec<(HolderId, f64)>, Spread>,
    /// Ends of beliefs, oldest first; one that was renewed stands here twice.
    ends: VecDeque<(f64, u64)>,
    kept_ms: f64,
    most: usize,
}

impl Fleeting {
    /// Keeps beliefs for `kept_ms`, and at most so many.
    #[must_use]
    pub fn new(kept_ms: f64, most: usize) -> Self {
        Self { beliefs: HashMap::default(), ends: VecDeque::new(), kept_ms, most }
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.beliefs.len()
    }

    /// Whether nothing is believed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.beliefs.is_empty()
    }

    /// Believes a block of these holders, besides those believed before.
    pub fn add(&mut self, key: u64, holders: &[HolderId], now: f64) {
        let until = now + self.kept_ms;
        let all = self.beliefs.entry(key).or_default();
        for holder in holders {
            match all.iter_mut().find(|(each, _)| each == holder) {
                Some((_, end)) => *end = until,
                None => all.push((*holder, until)),
            }
        }
        self.ends.push_back((until, key));
        self.expire(now);
    }

    /// Drops what has ended, and what is too much.
    pub fn expire(&mut self, now: f64) {
        while let Some(&(end, key)) = self.ends.front() {
            let is_over = end <= now;
            if !is_over && self.ends.len() <= self.most {
                break;
            }
            self.ends.pop_front();
            if let Some(all) = self.beliefs.get_mut(&key) {
                all.retain(|(_, until)| *until > if is_over { now } else { end });
                if all.is_empty() {
                    self.beliefs.remove(&key);
                }
            }
        }
    }

    /// Whether a block is believed of this holder.
    #[must_use]
    pub fn has(&self, key: u64, holder: HolderId, now: f64) -> bool {
        let all = self.beliefs.get(&key).map_or(&[][..], Vec::as_slice);
        all.iter().any(|(each, until)| *each == holder && *until > now)
    }

    /// Adds all holders of whom a block is believed to a set.
    pub fn add_to(&self, key: u64, bits: &mut Bits, now: f64) {
        for (holder, until) in self.beliefs.get(&key).map_or(&[][..], Vec::as_slice) {
            if *until > now {
                bits.insert(*holder);
            }
        }
    }

    /// Drops all beliefs about a block.
    pub fn remove(&mut self, key: u64) {
        self.beliefs.remove(&key);
    }

    /// Drops all beliefs about a holder.
    pub fn forget(&mut self, holder: HolderId) {
        self.beliefs.retain(|_, all| {
            all.retain(|(each, _)| *each != holder);
            !all.is_empty()
        });
    }
}
