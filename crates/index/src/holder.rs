//! Owns the state of one engine, or of one of its ranks: its groups, the order in which blocks came, and what only it knows.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::batch::{Event, Spec, Tier, VaultName};
use crate::hit::Part;
use crate::limits::{GROUPS_MAX, PRESSURE_BLOCKS, SAMPLE_BLOCKS, STALE_MIN, STRANGERS_MAX};
use crate::names::Names;
use crate::table::{HolderId, Spread, Table, Tag};

/// A bounded set; the oldest member goes first.
#[derive(Debug, Default)]
pub struct Few {
    members: HashSet<u64, Spread>,
    order: VecDeque<u64>,
}

impl Few {
    pub fn insert(&mut self, member: u64) {
        if !self.members.insert(member) {
            return;
        }
        self.order.push_back(member);
        while self.order.len() > STRANGERS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.members.remove(&oldest);
            }
        }
    }

    pub fn has(&self, member: u64) -> bool {
        self.members.contains(&member)
    }

    pub fn remove(&mut self, member: u64) -> bool {
        self.members.remove(&member)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn members(&self) -> impl Iterator<Item = u64> + '_ {
        self.members.iter().copied()
    }
}

/// Blocks of one tier and group.
#[derive(Debug)]
pub struct Shelf {
    pub tier: Tier,
    pub group: u16,
    pub tag: Tag,
    pub part: Part,
    /// Hashes in the order of their coming; what was removed since still stands here.
    pub order: VecDeque<u64>,
    pub held: usize,
}

/// Evidence of how an engine hashes: the first blocks of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample {
    /// Tokens of a block.
    pub block_size: u32,
    /// Hashes of the first blocks.
    pub hashes: Vec<u64>,
    /// Tokens of these blocks.
    pub tokens: Vec<u32>,
    /// Inputs besides tokens, of each of these blocks.
    pub extras: Vec<Vec<String>>,
}

/// News of a batch besides blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why an event was left out.
    pub skipped: Option<&'static str>,
    /// Names of the engine's blocks in vaults: group, tokens of a block, and the name.
    pub names: Vec<(u16, u32, VaultName)>,
    /// The first blocks of a prompt, where they are wanted.
    pub sample: Option<Sample>,
    /// Number of the form whose expected hash the engine reported.
    pub met: Option<u32>,
}

impl Report {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else of the engine")]
pub struct Holder {
    pub id: HolderId,
    pub shelves: Vec<Shelf>,
    /// Tokens between two hashes; 0: not known.
    pub unit: u32,
    /// Whether the next event may tell another unit.
    pub is_unit_old: bool,
    pub pulls: bool,
    pub is_trusted: bool,
    /// Number of copies of a block, where there are several.
    pub copies: HashMap<u64, u32, Spread>,
    /// Names of blocks whose hashes have no inputs but tokens, in the whole chain.
    pub names: Names,
    /// Names of the other blocks.
    pub apart: Names,
    /// Whether all blocks get names, or only blocks whose hashes have other inputs than tokens.
    pub are_all_named: bool,
    /// Parents of stored blocks that no event has stored: they, and all before them, were held before the first event.
    pub implied: Few,
    /// Removed blocks that were not known.
    pub gone: Few,
    /// Low hashes of prompts on their way there, by the number of a form.
    pub expected: HashMap<u64, u32, Spread>,
    /// Each so many prompts one is shown; 0: none.
    pub sample_every: u32,
    pub are_extras_sampled: bool,
    pub begun: u32,
    /// Blocks of its own memory that came and went lately.
    pub came: f64,
    pub went: f64,
}

impl Holder {
    pub fn new(id: HolderId) -> Self {
        Self {
            id,
            shelves: Vec::new(),
            unit: 0,
            is_unit_old: true,
            pulls: false,
            is_trusted: false,
            copies: HashMap::default(),
            names: Names::default(),
            apart: Names::default(),
            are_all_named: true,
            implied: Few::default(),
            gone: Few::default(),
            expected: HashMap::default(),
            sample_every: 0,
            are_extras_sampled: false,
            begun: 0,
            came: 0.0,
            went: 0.0,
        }
    }

    /// Number of blocks in the largest group of a tier.
    pub fn blocks(&self, tier: Tier) -> usize {
        let of = self.shelves.iter().filter(|shelf| shelf.tier == tier);
        of.map(|shelf| shelf.held).max().unwrap_or(0)
    }

    /// Number of entries in all tiers and groups.
    pub fn entries(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.held).sum()
    }

    /// Groups in its own memory; before any is known, as models usually have them.
    pub fn parts(&self) -> Vec<(Tag, Part)> {
        let own = self.shelves.iter().filter(|shelf| shelf.tier == Tier::Gpu);
        let parts: Vec<_> = own.map(|shelf| (shelf.tag, shelf.part)).collect();
        if parts.is_empty() {
            return vec![(Tag::new(Tier::Gpu, 0), Part { spec: Spec::Whole, size: self.unit })];
        }
        parts
    }

    /// Returns the name of a block, and whether its hash has other inputs than tokens.
    pub fn name(&self, hash: u64) -> Option<(u64, bool)> {
        let plain = self.names.name(hash).map(|name| (name, false));
        plain.or_else(|| Some((self.apart.name(hash)?, true)))
    }

    /// Returns the hash of a named block.
    pub fn named(&self, name: u64) -> Option<u64> {
        self.names.hash(name).or_else(|| self.apart.hash(name))
    }

    /// The first group that holds whole prefixes.
    pub fn whole(&self) -> Option<Tag> {
        let is_whole = |shelf: &&Shelf| shelf.tier == Tier::Gpu && shelf.part.spec == Spec::Whole;
        self.shelves.iter().find(is_whole).map(|shelf| shelf.tag)
    }

    /// Tags of its groups in vaults.
    pub fn vaulted(&self) -> Vec<Tag> {
        let of = self.shelves.iter().filter(|shelf| shelf.tier == Tier::Vault);
        of.map(|shelf| shelf.tag).collect()
    }

    /// Whether the group at this index is the first whole one of its tier.
    pub fn is_first(&self, at: usize) -> bool {
        let Shelf { tier, part, .. } = &self.shelves[at];
        let is_before = |shelf: &Shelf| shelf.tier == *tier && shelf.part.spec == Spec::Whole;
        part.spec == Spec::Whole && !self.shelves[..at].iter().any(is_before)
    }

    /// Index of a group, which is new where it was not known; `None`: there are too many.
    pub fn shelf(&mut self, event: &Event) -> Option<usize> {
        let (tier, group) = (event.tier, event.group);
        let is_it = |shelf: &Shelf| shelf.tier == tier && shelf.group == group;
        if let Some(at) = self.shelves.iter().position(is_it) {
            let part = &mut self.shelves[at].part;
            // A part of a block is reported as a block of its own.
            part.size = part.size.max(event.block_size);
            part.spec = event.spec;
            return Some(at);
        }
        if self.shelves.len() == GROUPS_MAX {
            return None;
        }
        let part = Part { spec: event.spec, size: event.block_size };
        let tag = Tag::new(tier, group);
        self.shelves.push(Shelf { tier, group, tag, part, order: VecDeque::new(), held: 0 });
        Some(self.shelves.len() - 1)
    }

    pub fn note_unit(&mut self, block_size: u32) {
        if self.is_unit_old || block_size < self.unit {
            self.unit = block_size;
            self.is_unit_old = false;
        }
    }

    pub fn count_come(&mut self, blocks: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a count of blocks of one event")]
        let blocks = blocks as f64;
        self.came += blocks;
        if self.came > PRESSURE_BLOCKS {
            self.came /= 2.0;
            self.went /= 2.0;
        }
    }

    /// Takes an event that begins a prompt, or continues one, for a sample of how the engine hashes.
    pub fn observe(&mut self, event: &Event, report: &mut Report) {
        if !self.expected.is_empty() && report.met.is_none() {
            let met = event.hashes.iter().find_map(|hash| self.expected.get(hash));
            report.met = met.copied();
        }
        if event.parent.is_some() || event.spec != Spec::Whole || event.hashes.is_empty() {
            return;
        }
        let is_wanted = if event.extra(0).is_empty() {
            self.begun = self.begun.wrapping_add(1);
            self.sample_every > 0 && self.begun.is_multiple_of(self.sample_every)
        } else {
            self.are_extras_sampled
        };
        if !is_wanted || report.sample.is_some() {
            return;
        }
        let blocks = event.hashes.len().min(SAMPLE_BLOCKS);
        report.sample = Some(Sample {
            block_size: event.block_size,
            hashes: event.hashes[..blocks].to_vec(),
            tokens: (0..blocks).flat_map(|at| event.block(at)).copied().collect(),
            extras: (0..blocks).map(|at| event.extra(at).to_vec()).collect(),
        });
    }

    /// Adds a block to a group; returns whether it is new there.
    #[inline]
    pub fn put(&mut self, at: usize, hash: u64, table: &mut Table) -> bool {
        let place = &mut self.shelves[at];
        if !table.insert(place.tag.key(hash), self.id) {
            return false;
        }
        place.held += 1;
        place.order.push_back(hash);
        if place.order.len() > 2 * place.held + STALE_MIN {
            renew(place, self.id, table);
        }
        true
    }

    /// Removes a block from a group; returns whether it was there.
    #[inline]
    pub fn take(&mut self, at: usize, hash: u64, table: &mut Table) -> bool {
        let place = &mut self.shelves[at];
        if !table.remove(place.tag.key(hash), self.id) {
            return false;
        }
        place.held -= 1;
        self.unname(hash, table);
        true
    }

    /// Drops the name of a block that no whole group holds any more.
    fn unname(&mut self, hash: u64, table: &Table) {
        if self.names.is_empty() && self.apart.is_empty() {
            return;
        }
        let has = |shelf: &Shelf| {
            shelf.part.spec == Spec::Whole && table.has(shelf.tag.key(hash), self.id)
        };
        if !self.shelves.iter().any(has) {
            self.names.remove(hash);
            self.apart.remove(hash);
        }
    }

    /// Empties a tier.
    pub fn empty(&mut self, tier: Tier, table: &mut Table) {
        for at in 0..self.shelves.len() {
            if self.shelves[at].tier != tier {
                continue;
            }
            for hash in std::mem::take(&mut self.shelves[at].order) {
                let key = self.shelves[at].tag.key(hash);
                if tier == Tier::Gpu {
                    self.copies.remove(&key);
                }
                self.take(at, hash, table);
            }
        }
        if tier == Tier::Gpu {
            self.implied = Few::default();
            self.gone = Few::default();
        }
    }

    /// Drops the oldest block of the group with the most; returns false where there is none.
    pub fn shed(&mut self, table: &mut Table) -> bool {
        let most = (0..self.shelves.len()).max_by_key(|at| self.shelves[*at].held);
        let Some(at) = most.filter(|at| self.shelves[*at].held > 0) else { return false };
        while let Some(hash) = self.shelves[at].order.pop_front() {
            let key = self.shelves[at].tag.key(hash);
            if self.take(at, hash, table) {
                self.copies.remove(&key);
                return true;
            }
        }
        false
    }
}

/// Makes the order anew of what is held, each block at its last place.
fn renew(shelf: &mut Shelf, holder: HolderId, table: &Table) {
    let mut seen: HashSet<u64, Spread> =
        HashSet::with_capacity_and_hasher(shelf.held, Spread::default());
    let mut order = VecDeque::with_capacity(shelf.held + shelf.held / 2);
    for hash in shelf.order.iter().rev().copied() {
        if table.has(shelf.tag.key(hash), holder) && seen.insert(hash) {
            order.push_front(hash);
        }
    }
    shelf.order = order;
}
