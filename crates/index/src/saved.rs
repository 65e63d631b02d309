//! Owns the bytes in which an engine's part of the index is saved, and reading them again.

use std::collections::VecDeque;

use crate::batch::{Spec, Tier};
use crate::hit::Part;
use crate::holder::Shelf;
use crate::index::Index;
use crate::limits::GROUPS_MAX;
use crate::names::Names;
use crate::table::{HolderId, Tag};

const WORD: usize = 8;

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn list(&mut self, values: impl Iterator<Item = u64>) {
        let at = self.0.len();
        self.put(0);
        values.for_each(|value| self.put(value));
        let count = (self.0.len() - at) / WORD - 1;
        self.0[at..at + WORD].copy_from_slice(&(count as u64).to_le_bytes());
    }
}

struct Words<'a>(std::slice::Iter<'a, [u8; WORD]>);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        self.0.next().map(|word| u64::from_le_bytes(*word))
    }

    fn number(&mut self) -> Option<u32> {
        self.next()?.try_into().ok()
    }

    /// Reads what an empty group is.
    fn shelf(&mut self) -> Option<Shelf> {
        let tier = if self.next()? == 1 { Tier::Vault } else { Tier::Gpu };
        let group = u16::try_from(self.next()?).ok()?;
        let (spec, window) = (self.next()?, self.number()?);
        let spec = match spec {
            0 => Spec::Whole,
            1 => Spec::Window(window),
            2 => Spec::State,
            _ => Spec::Apart,
        };
        let part = Part { spec, size: self.number()? };
        let order = VecDeque::new();
        Some(Shelf { tier, group, tag: Tag::new(tier, group), part, order, held: 0 })
    }

    fn list(&mut self) -> Option<Vec<u64>> {
        let count = usize::try_from(self.next()?).ok()?;
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| self.next()).collect()
    }
}

impl Index {
    /// Returns an engine's part of the index; empty where there is no such engine.
    #[must_use]
    pub fn save(&self, id: HolderId) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        let Some(holder) = self.holder(id) else { return out.0 };
        out.put(holder.unit.into());
        out.put(holder.pulls.into());
        out.put(holder.shelves.len() as u64);
        for shelf in &holder.shelves {
            let (spec, window) = match shelf.part.spec {
                Spec::Whole => (0, 0),
                Spec::Window(window) => (1, window),
                Spec::State => (2, 0),
                Spec::Apart => (3, 0),
            };
            out.put(u64::from(shelf.tier == Tier::Vault));
            out.put(shelf.group.into());
            out.put(spec);
            out.put(window.into());
            out.put(shelf.part.size.into());
            let held = shelf.order.iter().copied();
            out.list(held.filter(|hash| self.has(shelf.tag, *hash, id)));
        }
        out.list(holder.copies.iter().flat_map(|(key, count)| [*key, (*count).into()]));
        out.list(holder.names.entries().flat_map(|(hash, name)| [hash, name]));
        out.list(holder.apart.entries().flat_map(|(hash, name)| [hash, name]));
        out.list(holder.implied.members());
        out.list(holder.gone.members());
        out.0
    }

    /// Restores a saved part into an engine that has nothing yet; requests rely on it only once it is trusted. Returns false
    /// where the bytes are not such a part, and leaves the engine empty.
    pub fn load(&mut self, id: HolderId, bytes: &[u8]) -> bool {
        self.clear(id);
        let (words, rest) = bytes.as_chunks::<WORD>();
        let is_loaded = rest.is_empty() && self.fill(id, Words(words.iter())).is_some();
        if !is_loaded {
            self.clear(id);
        }
        self.make_room();
        is_loaded
    }

    fn fill(&mut self, id: HolderId, mut words: Words) -> Option<()> {
        let (holder, table) = self.parts_of(id)?;
        holder.unit = words.number()?;
        holder.is_unit_old = holder.unit == 0;
        holder.pulls = words.next()? == 1;
        let shelves = usize::try_from(words.next()?).ok().filter(|count| *count <= GROUPS_MAX)?;
        for at in 0..shelves {
            holder.shelves.push(words.shelf()?);
            for hash in words.list()? {
                holder.put(at, hash, table);
            }
        }
        for [key, count] in words.list()?.as_chunks::<2>().0 {
            holder.copies.insert(*key, u32::try_from(*count).ok()?);
        }
        fill_names(&mut holder.names, &words.list()?);
        fill_names(&mut holder.apart, &words.list()?);
        words.list()?.into_iter().for_each(|hash| holder.implied.insert(hash));
        words.list()?.into_iter().for_each(|hash| holder.gone.insert(hash));
        Some(())
    }
}

fn fill_names(names: &mut Names, pairs: &[u64]) {
    for [hash, name] in pairs.as_chunks::<2>().0 {
        names.set(*hash, *name);
    }
}
