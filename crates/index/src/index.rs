//! Owns which engine holds which block, as its events report: removed blocks are never listed, and a bound drops the oldest.

use crate::batch::{Event, Kind, Spec, Tier, read_batch};
use crate::fleeting::Fleeting;
use crate::forms::lows_of;
use crate::hit::{Part, hit};
use crate::holder::{Holder, Report};
use crate::limits::EXPECTED_MAX;
use crate::names::{ROOT, name_of};
use crate::table::{Bits, HolderId, Table, Tag};

/// Bounds of an index.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Entries of all engines together; a block has one in each of its engine's groups.
    pub blocks: usize,
    /// How long a prompt just sent counts as held, in ms.
    pub guess_ms: f64,
    /// How long a vault's answer counts, in ms.
    pub found_ms: f64,
    /// Blocks that vaults reported, remembered at most.
    pub found: usize,
}

/// A prompt's blocks, named for some of the engines.
#[derive(Debug)]
pub struct View {
    /// Low hashes of the engines, or names of the index's own.
    pub blocks: Vec<u64>,
    /// Whether they are names.
    pub are_names: bool,
    /// Tokens of a block.
    pub unit: u32,
    /// Tokens of the prompt.
    pub tokens: u32,
}

impl View {
    /// A view of whole hashes, 32 bytes each.
    #[must_use]
    pub fn of_hashes(hashes: &[u8], unit: u32, tokens: u32) -> Self {
        Self { blocks: lows_of(hashes), are_names: false, unit, tokens }
    }

    /// Tokens that a hit may have: the last one is always computed.
    fn most(&self) -> u32 {
        let named = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX).saturating_mul(self.unit);
        self.tokens.saturating_sub(1).min(named)
    }
}

/// Tokens of a prompt that one engine holds itself, and that it has after pulling from vaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Held itself.
    pub held: u32,
    /// Held after pulling.
    pub reach: u32,
}

/// Places of beliefs beside the engines' own groups.
fn name_key(name: u64) -> u64 {
    name.rotate_left(17) ^ 0x5bd1_e995_9d1b_0b3f
}

/// The index of all engines.
#[derive(Debug)]
pub struct Index {
    holders: Vec<Option<Holder>>,
    table: Table,
    /// Blocks of requests just sent; their events come with the engine's next step.
    guesses: Fleeting,
    /// Blocks that vaults reported themselves, by the engines that can pull them.
    found: Fleeting,
    scratch: Event,
    most: usize,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            holders: Vec::new(),
            table: Table::default(),
            guesses: Fleeting::new(bounds.guess_ms, bounds.blocks),
            found: Fleeting::new(bounds.found_ms, bounds.found),
            scratch: Event::default(),
            most: bounds.blocks.max(1),
        }
    }

    /// Makes room for an engine or a rank; `None`: there are too many.
    pub fn add(&mut self) -> Option<HolderId> {
        let free = self.holders.iter().position(Option::is_none).unwrap_or(self.holders.len());
        let id = HolderId::try_from(free).ok()?;
        if free == self.holders.len() {
            self.holders.push(None);
        }
        self.holders[free] = Some(Holder::new(id));
        Some(id)
    }

    /// Forgets an engine; idempotent.
    pub fn remove(&mut self, id: HolderId) {
        self.clear(id);
        self.guesses.forget(id);
        if let Some(place) = self.holders.get_mut(usize::from(id)) {
            *place = None;
        }
    }

    pub(crate) fn holder(&self, id: HolderId) -> Option<&Holder> {
        self.holders.get(usize::from(id))?.as_ref()
    }

    fn holder_mut(&mut self, id: HolderId) -> Option<&mut Holder> {
        self.holders.get_mut(usize::from(id))?.as_mut()
    }

    /// Number of blocks that an engine reported in a tier.
    #[must_use]
    pub fn blocks(&self, id: HolderId, tier: Tier) -> usize {
        self.holder(id).map_or(0, |holder| holder.blocks(tier))
    }

    /// Blocks of an engine's own memory that go for each that comes: 0 while it has room, 1 once it is full.
    #[must_use]
    pub fn pressure(&self, id: HolderId) -> f64 {
        let came = |holder: &&Holder| holder.came > 0.0;
        self.holder(id).filter(came).map_or(0.0, |holder| (holder.went / holder.came).min(1.0))
    }

    /// Whether an engine can pull from vaults, as its events show.
    #[must_use]
    pub fn pulls(&self, id: HolderId) -> bool {
        self.holder(id).is_some_and(|holder| holder.pulls)
    }

    /// Says what is wanted of an engine's events: names for all blocks, or only for blocks whose hashes have inputs besides
    /// tokens; and samples, of each so many prompts one (0: none), and of prompts with such inputs.
    pub fn want(&mut self, id: HolderId, are_all_named: bool, sample_every: u32, extras: bool) {
        let Some(holder) = self.holder_mut(id) else { return };
        holder.are_all_named = are_all_named;
        if !are_all_named {
            holder.names.clear();
        }
        holder.sample_every = sample_every;
        holder.are_extras_sampled = extras;
        // The next prompt is a sample.
        holder.begun = sample_every.wrapping_sub(1);
        holder.expected.clear();
    }

    /// The holder and the table of blocks.
    pub(crate) fn parts_of(&mut self, id: HolderId) -> Option<(&mut Holder, &mut Table)> {
        Some((self.holders.get_mut(usize::from(id))?.as_mut()?, &mut self.table))
    }

    /// Whether an engine has a block under a tag.
    pub(crate) fn has(&self, tag: Tag, hash: u64, id: HolderId) -> bool {
        self.table.has(tag.key(hash), id)
    }

    /// Number of entries of all engines.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.holders.iter().flatten().map(Holder::entries).sum()
    }

    /// Number of blocks that vaults reported lately.
    #[must_use]
    pub fn found_blocks(&self) -> usize {
        self.found.len()
    }

    /// Tokens between an engine's hashes; before it reports any, as another engine has them; `None`: none has.
    #[must_use]
    pub fn unit(&self, id: HolderId) -> Option<u32> {
        let own = self.holder(id).map_or(0, |holder| holder.unit);
        let others = || self.holders.iter().flatten().map(|holder| holder.unit);
        std::iter::once(own).chain(others()).find(|unit| *unit > 0)
    }

    /// Drops all that an engine reported.
    pub fn clear(&mut self, id: HolderId) {
        let Some((holder, table)) = self.parts_of(id) else { return };
        holder.empty(Tier::Gpu, table);
        holder.empty(Tier::Vault, table);
        holder.shelves.clear();
        holder.names.clear();
        holder.apart.clear();
        holder.pulls = false;
        holder.is_unit_old = true;
        self.found.forget(id);
    }

    /// An engine whose events are incomplete counts as holding nothing.
    pub fn trust(&mut self, id: HolderId, is_trusted: bool) {
        if let Some(holder) = self.holder_mut(id) {
            holder.is_trusted = is_trusted;
        }
    }

    /// Expects hashes of a prompt sent to an engine, made in the form of this number.
    pub fn expect(&mut self, id: HolderId, form: u32, hashes: &[u8]) {
        let Some(holder) = self.holder_mut(id) else { return };
        if holder.expected.len() >= EXPECTED_MAX {
            holder.expected.clear();
        }
        let room = EXPECTED_MAX - holder.expected.len();
        holder.expected.extend(lows_of(hashes).into_iter().take(room).map(|low| (low, form)));
    }

    /// Applies a batch of an engine's events.
    ///
    /// # Errors
    /// The payload is no batch, or a removal cannot be read: the index may list blocks that are gone.
    pub fn apply(&mut self, id: HolderId, payload: &[u8]) -> Result<Report, &'static str> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut report = Report::default();
        let Self { holders, table, found, .. } = self;
        let Some(Some(holder)) = holders.get_mut(usize::from(id)) else {
            return Err("there is no such engine");
        };
        let read = read_batch(payload, &mut scratch, |event| match event.kind {
            Kind::Cleared => holder.empty(Tier::Gpu, table),
            Kind::Removed => remove(holder, event, table, found),
            Kind::Stored if event.is_naming() => name(holder, event, &mut report),
            Kind::Stored => {
                holder.observe(event, &mut report);
                store(holder, event, table);
            }
            Kind::Other => {}
        });
        self.scratch = scratch;
        report.skipped = read?;
        self.make_room();
        Ok(report)
    }

    /// Bounds all engines together; the largest drops its oldest blocks.
    pub(crate) fn make_room(&mut self) {
        let mut over = self.entries().saturating_sub(self.most);
        while over > 0 {
            let Self { holders, table, .. } = self;
            let largest = holders.iter_mut().flatten().max_by_key(|holder| holder.entries());
            let Some(holder) = largest else { return };
            // A share at a time, because there are many engines and the largest may change.
            let share = over.min(1 + over / 8);
            for _ in 0..share {
                if !holder.shed(table) {
                    return;
                }
            }
            over -= share;
        }
    }

    /// Assumes that a prompt is held by an engine, because it is computed there now or shortly.
    pub fn guess(&mut self, id: HolderId, view: &View, now: f64) {
        let Some(holder) = self.holder(id) else { return };
        if view.are_names {
            for block in &view.blocks {
                self.guesses.add(name_key(*block), &[id], now);
            }
            return;
        }
        for (tag, part) in holder.parts() {
            let per_block = (part.size.max(1) / view.unit.max(1)).max(1) as usize;
            let ends = (per_block..=view.blocks.len()).step_by(per_block);
            // Of windows and states an engine keeps what the same prompt needs once more.
            let last = view.most() / part.size.max(1);
            let kept = match part.spec {
                Spec::Window(window) => window.saturating_sub(1).div_ceil(part.size.max(1)),
                Spec::State => 1,
                Spec::Whole | Spec::Apart => u32::MAX,
            };
            let (from, until) = match part.spec {
                Spec::Whole | Spec::Apart => (0, usize::MAX),
                _ => (last.saturating_sub(kept) as usize, last as usize),
            };
            for end in ends.skip(from).take(until - from) {
                self.guesses.add(tag.key(view.blocks[end - 1]), &[id], now);
            }
        }
    }

    /// Notes blocks that a vault reported, for the engines that can pull them.
    pub fn found(&mut self, ids: &[HolderId], hashes: &[u64], now: f64) {
        for hash in hashes {
            self.found.add(*hash, ids, now);
        }
    }

    /// Returns for each engine what it holds of a prompt, and what it has after pulling from vaults behind its own. Blocks in
    /// vaults that one of the `peers` (same model) reported can be pulled by every peer that pulls.
    pub fn spans(
        &mut self,
        ids: &[HolderId],
        peers: &[HolderId],
        view: &View,
        now: f64,
    ) -> Vec<Span> {
        self.guesses.expire(now);
        self.found.expire(now);
        if view.unit == 0 {
            return vec![Span::default(); ids.len()];
        }
        for id in ids {
            self.adopt(*id, view);
        }
        let mut spans = self.held(ids, view, now);
        let pulls = |id: &HolderId| {
            peers.contains(id) && self.holder(*id).is_some_and(|holder| holder.pulls)
        };
        let pullers: Vec<bool> = ids.iter().map(pulls).collect();
        for span in &mut spans {
            span.reach = span.held;
        }
        if !pullers.contains(&true) {
            return spans;
        }
        let ends = self.runs_in_vaults(peers, view, now);
        let most = view.most() / view.unit * view.unit;
        for (span, _) in spans.iter_mut().zip(pullers).filter(|(_, is_puller)| *is_puller) {
            let end = ends.get((span.held / view.unit) as usize).copied().unwrap_or(0);
            span.reach = span.held.max(end.saturating_mul(view.unit)).min(most.max(span.held));
        }
        spans
    }

    /// Returns for each block the end of the run of blocks in vaults that begins with it.
    fn runs_in_vaults(&self, peers: &[HolderId], view: &View, now: f64) -> Vec<u32> {
        let told = peers.iter().filter_map(|id| self.holder(*id)).filter(|one| one.is_trusted);
        let told: Vec<(&Holder, Vec<Tag>)> = told.map(|one| (one, one.vaulted())).collect();
        let has = |block: u64| {
            told.iter().any(|(holder, tags)| {
                let hash = if view.are_names { holder.named(block) } else { Some(block) };
                let Some(hash) = hash else { return false };
                let is_found = !self.found.is_empty() && self.found.has(hash, holder.id, now);
                let is_there = |tag: &Tag| self.table.has(tag.key(hash), holder.id);
                is_found || (!tags.is_empty() && tags.iter().all(is_there))
            })
        };
        let mut ends = vec![0; view.blocks.len()];
        let mut end = u32::try_from(view.blocks.len()).unwrap_or(u32::MAX);
        for (at, block) in view.blocks.iter().enumerate().rev() {
            if !has(*block) {
                end = u32::try_from(at).unwrap_or(u32::MAX);
            }
            ends[at] = end;
        }
        ends
    }

    /// Takes the blocks before a known parent as held: an engine stored behind them, and has not said that they went.
    fn adopt(&mut self, id: HolderId, view: &View) {
        let Some((holder, table)) = self.parts_of(id) else { return };
        if view.are_names || holder.implied.is_empty() {
            return;
        }
        let is_it = |shelf: &crate::holder::Shelf| Some(shelf.tag) == holder.whole();
        let Some(at) = holder.shelves.iter().position(is_it) else { return };
        let per_block = (holder.shelves[at].part.size / view.unit).max(1) as usize;
        let last = view.blocks.iter().rposition(|block| holder.implied.has(*block));
        let Some(last) = last else { return };
        for end in (per_block..=last + 1).step_by(per_block) {
            let block = view.blocks[end - 1];
            holder.implied.remove(block);
            if !holder.gone.has(block) {
                holder.put(at, block, table);
            }
        }
    }

    fn held(&mut self, ids: &[HolderId], view: &View, now: f64) -> Vec<Span> {
        let mut spans = vec![Span::default(); ids.len()];
        let mut plain: Vec<(Tag, Vec<usize>)> = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            let Some(holder) = self.holder(*id) else { continue };
            let parts = holder.parts();
            let is_plain = matches!(parts.as_slice(), [(_, Part { spec: Spec::Whole, size })]
                if *size == view.unit || *size == 0);
            if view.are_names || !is_plain {
                spans[at].held = self.held_by(holder, &parts, view, now);
                continue;
            }
            let tag = parts[0].0;
            match plain.iter_mut().find(|(each, _)| *each == tag) {
                Some((_, all)) => all.push(at),
                None => plain.push((tag, vec![at])),
            }
        }
        for (tag, all) in plain {
            self.run(tag, ids, &all, view, now, &mut spans);
        }
        spans
    }

    /// Walks a prompt once for all engines that have a single group of whole prefixes.
    fn run(
        &self,
        tag: Tag,
        ids: &[HolderId],
        all: &[usize],
        view: &View,
        now: f64,
        spans: &mut [Span],
    ) {
        let mut trusted = Bits::default();
        let mut left = Bits::default();
        let mut places = vec![usize::MAX; self.holders.len()];
        for at in all {
            let id = ids[*at];
            left.insert(id);
            places[usize::from(id)] = *at;
            if self.holder(id).is_some_and(|holder| holder.is_trusted) {
                trusted.insert(id);
            }
        }
        let mut now_held = Bits::with_words(1);
        let blocks = (view.most() / view.unit) as usize;
        let mut depth = 0;
        for block in &view.blocks[..blocks.min(view.blocks.len())] {
            now_held.clear();
            let key = tag.key(*block);
            self.table.add_to(key, &mut now_held);
            now_held.retain(&trusted, |_| {});
            if !self.guesses.is_empty() {
                self.guesses.add_to(key, &mut now_held, now);
            }
            left.retain(&now_held, |id| spans[places[usize::from(id)]].held = depth);
            if left.is_empty() {
                return;
            }
            depth += view.unit;
        }
        left.each(|id| spans[places[usize::from(id)]].held = depth);
    }

    /// Tokens that one engine holds in all its groups.
    fn held_by(&self, holder: &Holder, parts: &[(Tag, Part)], view: &View, now: f64) -> u32 {
        let id = holder.id;
        let has_hash = |tag: &Tag, hash: u64| {
            let key = tag.key(hash);
            (holder.is_trusted && self.table.has(key, id)) || self.guesses.has(key, id, now)
        };
        let has = |at: usize, block: usize| {
            let (tag, part) = &parts[at];
            let block = view.blocks[block];
            if !view.are_names {
                return has_hash(tag, block);
            }
            let is_guessed = part.spec == Spec::Whole
                && parts.len() == 1
                && self.guesses.has(name_key(block), id, now);
            is_guessed || holder.named(block).is_some_and(|hash| has_hash(tag, hash))
        };
        let sized = |part: &Part| Part {
            size: if part.size == 0 { view.unit } else { part.size },
            ..*part
        };
        let all: Vec<Part> = parts.iter().map(|(_, part)| sized(part)).collect();
        hit(&all, view.unit, view.most(), has)
    }
}

fn name(holder: &mut Holder, event: &Event, report: &mut Report) {
    let Some(name) = event.name() else { return };
    holder.pulls = !name.namespace.is_empty();
    if holder.unit == 0 {
        holder.unit = event.block_size;
    }
    report.names.push((event.group, event.block_size, name));
}

fn store(holder: &mut Holder, event: &Event, table: &mut Table) {
    let Some(at) = holder.shelf(event) else { return };
    let is_own = event.tier == Tier::Gpu;
    if is_own {
        holder.note_unit(event.block_size);
    } else {
        holder.pulls = true;
        if holder.unit == 0 {
            holder.unit = event.block_size;
        }
    }
    let is_first = holder.is_first(at);
    if is_own && is_first {
        holder.count_come(event.hashes.len());
        note_parent(holder, at, event.parent, table);
    }
    let tag = holder.shelves[at].tag;
    for hash in &event.hashes {
        if !holder.put(at, *hash, table) && is_own {
            // Two requests that computed one block at once leave two copies, and each is removed on its own.
            *holder.copies.entry(tag.key(*hash)).or_insert(1) += 1;
        } else if is_own && is_first && !holder.gone.is_empty() {
            holder.gone.remove(*hash);
        }
    }
    if is_first {
        give_names(holder, event);
    }
}

/// A block is stored only behind blocks that are held, whether or not an event told of them.
fn note_parent(holder: &mut Holder, at: usize, parent: Option<u64>, table: &Table) {
    let Some(parent) = parent else { return };
    if !table.has(holder.shelves[at].tag.key(parent), holder.id) {
        holder.gone.remove(parent);
        holder.implied.insert(parent);
    }
}

fn give_names(holder: &mut Holder, event: &Event) {
    let above = event.parent.map(|parent| holder.name(parent));
    let is_apart =
        above.flatten().is_some_and(|(_, is_apart)| is_apart) || !event.extras.is_empty();
    if !holder.are_all_named && !is_apart {
        return;
    }
    // Blocks behind an unknown one cannot be named.
    let Some((mut name, _)) = above.unwrap_or(Some((ROOT, false))) else { return };
    for (at, hash) in event.hashes.iter().enumerate() {
        name = name_of(name, event.block(at), event.extra(at));
        let names = if is_apart { &mut holder.apart } else { &mut holder.names };
        names.set(*hash, name);
    }
}

fn remove(holder: &mut Holder, event: &Event, table: &mut Table, found: &mut Fleeting) {
    let is_it =
        |shelf: &crate::holder::Shelf| shelf.tier == event.tier && shelf.group == event.group;
    let Some(at) = holder.shelves.iter().position(is_it) else { return };
    let is_own = event.tier == Tier::Gpu;
    let is_first = holder.is_first(at);
    let tag = holder.shelves[at].tag;
    for hash in &event.hashes {
        if is_own && !holder.copies.is_empty() && leave_one(holder, tag.key(*hash)) {
            continue;
        }
        let was_held = holder.take(at, *hash, table);
        if !is_own {
            found.remove(*hash);
        } else if is_first {
            if was_held {
                holder.went += 1.0;
            } else {
                holder.implied.remove(*hash);
                holder.gone.insert(*hash);
            }
        }
    }
}

/// Takes one of several copies away; returns false where there is no second one.
fn leave_one(holder: &mut Holder, key: u64) -> bool {
    let Some(count) = holder.copies.get_mut(&key) else { return false };
    *count -= 1;
    if *count < 2 {
        holder.copies.remove(&key);
    }
    true
}
