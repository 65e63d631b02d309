//! Owns the index's own names of blocks, for engines whose form of hashes is not known: a hash chain over token ids.

use std::collections::HashMap;

use ring::digest::{Context, SHA256};

use crate::table::Spread;

/// Parent of the first block.
pub const ROOT: u64 = 0;

/// Returns the name of a block; `extra` holds the inputs of its hash besides tokens.
pub fn name_of<T: AsRef<str>>(parent: u64, tokens: &[u32], extra: &[T]) -> u64 {
    let mut bytes = Vec::with_capacity(8 + 4 * tokens.len());
    bytes.extend(parent.to_le_bytes());
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    let mut context = Context::new(&SHA256);
    context.update(&bytes);
    for text in extra {
        // No token list ends so, because a length takes eight bytes and its complement follows.
        let length = text.as_ref().len() as u64;
        context.update(&length.to_le_bytes());
        context.update(&(!length).to_le_bytes());
        context.update(text.as_ref().as_bytes());
    }
    let made = context.finish();
    made.as_ref().first_chunk::<8>().map_or(0, |low| u64::from_le_bytes(*low))
}

/// Returns the names of a prompt's full blocks; `everywhere` enters each block, `salt` the first and so all.
#[must_use]
pub fn names_of(
    tokens: &[u32],
    block_size: usize,
    everywhere: &[String],
    salt: Option<&str>,
) -> Vec<u64> {
    let all: Vec<&str> = everywhere.iter().map(String::as_str).collect();
    let first: Vec<&str> = all.iter().copied().chain(salt).collect();
    let mut parent = ROOT;
    let blocks = tokens.chunks_exact(block_size.max(1)).enumerate();
    let name = |(at, block): (usize, &[u32])| {
        parent = name_of(parent, block, if at == 0 { &first } else { &all });
        parent
    };
    blocks.map(name).collect()
}

/// One engine's hashes and the names of the same blocks.
#[derive(Debug, Default)]
pub struct Names {
    by_hash: HashMap<u64, u64, Spread>,
    by_name: HashMap<u64, u64, Spread>,
}

impl Names {
    /// Whether nothing has a name.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Returns the name of a block.
    pub fn name(&self, hash: u64) -> Option<u64> {
        self.by_hash.get(&hash).copied()
    }

    /// Returns the engine's hash of a named block.
    pub fn hash(&self, name: u64) -> Option<u64> {
        self.by_name.get(&name).copied()
    }

    pub fn set(&mut self, hash: u64, name: u64) {
        if let Some(before) = self.by_hash.insert(hash, name)
            && before != name
        {
            self.by_name.remove(&before);
        }
        self.by_name.insert(name, hash);
    }

    pub fn remove(&mut self, hash: u64) {
        if let Some(name) = self.by_hash.remove(&hash)
            && self.by_name.get(&name) == Some(&hash)
        {
            self.by_name.remove(&name);
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_hash.iter().map(|(hash, name)| (*hash, *name))
    }
}
