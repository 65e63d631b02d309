//! Owns reading one batch of vLLM's KV-cache events: lists or maps, with fields that vary between releases.

use crate::limits::{BLOCK_TOKENS_MAX, SHARDS_MAX};
use crate::reader::{Reader, Result, Value};

/// Where blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tier {
    /// An engine's own memory.
    #[default]
    Gpu,
    /// Vaults, from which engines can pull.
    Vault,
}

/// How much a group's cached blocks say of the prompt before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spec {
    /// A block is of use only behind all before it.
    #[default]
    Whole,
    /// The blocks of so many tokens before a boundary are of use without those before.
    Window(u32),
    /// One block holds the state at its end.
    State,
    /// No part of prefix caching.
    Apart,
}

/// Kind of change that an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Blocks are held now.
    Stored,
    /// Blocks are held no more.
    Removed,
    /// The engine's own memory is empty.
    Cleared,
    /// Nothing that is known.
    #[default]
    Other,
}

/// Inputs of a block's hash besides its tokens, by the block's index in its event.
pub type Extras = Vec<(usize, Vec<String>)>;

/// One event. Blocks of other media, and those of other programs' storage, are `Other`.
#[derive(Debug, Default)]
pub struct Event {
    /// Kind of change that the event reports.
    pub kind: Kind,
    /// Where the blocks are.
    pub tier: Tier,
    /// Low 64 bits of the engine's hashes.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first one, or before the first token.
    pub parent: Option<u64>,
    /// Tokens from the parent's end on, in some groups of more blocks than have a hash here.
    pub tokens: Vec<u32>,
    /// Tokens of a block.
    pub block_size: u32,
    /// Inputs of the hashes besides tokens.
    pub extras: Extras,
    /// Group of layers.
    pub group: u16,
    /// How the group's blocks are used.
    pub spec: Spec,
    adapter: Option<String>,
    window: Option<u32>,
    medium: Medium,
    is_foreign: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Medium {
    #[default]
    Gpu,
    Storage,
    Other,
}

/// How vaults name an engine's blocks; empty: no vault is reachable.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VaultName {
    /// Namespace, in hexadecimal digits.
    pub namespace: String,
    /// Shards of a block.
    pub shards: u32,
    /// Root of the engine's hashes, in hexadecimal digits.
    pub root: String,
}

/// Owner of blocks in vaults.
const OURS: &str = "tierkv";
const HEX_32: usize = 64;

const STORED: [&str; 13] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
];
const REMOVED: [&str; 5] = ["block_hashes", "medium", "group_idx", "locality", "ownership"];

impl Event {
    fn clear(&mut self) {
        let (hashes, tokens) = (std::mem::take(&mut self.hashes), std::mem::take(&mut self.tokens));
        *self = Self { hashes, tokens, ..Self::default() };
        self.hashes.clear();
        self.tokens.clear();
    }

    /// Whether the event carries the name of the engine's blocks in vaults, in place of blocks.
    #[must_use]
    pub fn is_naming(&self) -> bool {
        self.kind == Kind::Stored && self.tier == Tier::Vault && self.hashes.is_empty()
    }

    /// Returns the name of a naming event; `None`: it is another program's.
    #[must_use]
    pub fn name(&self) -> Option<VaultName> {
        let texts = self.extras.iter().flat_map(|(_, texts)| texts).map(String::as_str);
        let texts: Vec<&str> = texts.collect();
        let [mark, name @ ..] = texts.as_slice() else { return None };
        if *mark != OURS || self.block_size == 0 {
            return None;
        }
        let is_hex =
            |text: &str| text.len() == HEX_32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let [namespace, shards, root, ..] = name else { return Some(VaultName::default()) };
        let shards = shards.parse().unwrap_or(0);
        if !is_hex(namespace) || !is_hex(root) || !(1..=SHARDS_MAX).contains(&shards) {
            return Some(VaultName::default());
        }
        Some(VaultName { namespace: (*namespace).into(), shards, root: (*root).into() })
    }

    /// Texts of one block besides its tokens.
    #[must_use]
    pub fn extra(&self, block: usize) -> &[String] {
        let found = self.extras.iter().find(|(at, _)| *at == block);
        found.map_or(&[], |(_, texts)| texts)
    }

    /// Tokens of one block.
    #[must_use]
    pub fn block(&self, at: usize) -> &[u32] {
        let size = self.block_size as usize;
        self.tokens.get(at * size..(at + 1) * size).unwrap_or(&[])
    }

    /// Reads the next event in either form.
    fn read(&mut self, reader: &mut Reader) -> Result<()> {
        self.clear();
        match reader.value()? {
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    match reader.value()? {
                        Value::Text(name) => self.field(name, reader)?,
                        _ => return Err("a field has no name"),
                    }
                }
            }
            Value::List(count) if count > 0 => {
                self.field("type", reader)?;
                let names: &[&str] = match self.kind {
                    Kind::Stored => &STORED,
                    Kind::Removed => &REMOVED,
                    Kind::Cleared | Kind::Other => &[],
                };
                for at in 0..count - 1 {
                    self.field(names.get(at).copied().unwrap_or(""), reader)?;
                }
            }
            _ => return Err("no event"),
        }
        self.settle()
    }

    fn field(&mut self, name: &str, reader: &mut Reader) -> Result<()> {
        match name {
            "type" => {
                self.kind = match reader.value()? {
                    Value::Text("BlockStored") => Kind::Stored,
                    Value::Text("BlockRemoved") => Kind::Removed,
                    Value::Text("AllBlocksCleared") => Kind::Cleared,
                    Value::Text(_) => Kind::Other,
                    _ => return Err("an event has no type"),
                };
            }
            "block_hashes" => reader.hashes(&mut self.hashes)?,
            "token_ids" => self.read_tokens(reader)?,
            "parent_block_hash" => {
                let value = reader.value()?;
                self.parent = match value {
                    Value::Nil => None,
                    _ => Some(crate::reader::hash_of(&value).ok_or("a parent is no hash")?),
                };
            }
            "block_size" => self.block_size = number(reader, BLOCK_TOKENS_MAX)?.unwrap_or(0),
            "group_idx" => {
                let group = number(reader, u16::MAX.into())?.unwrap_or(0);
                self.group = u16::try_from(group).map_err(|_| "a group is out of range")?;
            }
            "kv_cache_spec_sliding_window" => self.window = number(reader, u32::MAX)?,
            "medium" => {
                self.medium = match reader.value()? {
                    Value::Nil | Value::Text("GPU") => Medium::Gpu,
                    Value::Text("STORAGE") => Medium::Storage,
                    Value::Text(_) => Medium::Other,
                    _ => return Err("a medium is no text"),
                };
            }
            "ownership" => {
                let owner = reader.value()?;
                self.is_foreign = !matches!(owner, Value::Nil | Value::Text(OURS));
            }
            "lora_name" => {
                if let Value::Text(name) = reader.value()? {
                    self.adapter = Some(name.into());
                }
            }
            "kv_cache_spec_kind" => self.spec = spec_of(&reader.value()?),
            "extra_keys" => self.read_extras(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn read_tokens(&mut self, reader: &mut Reader) -> Result<()> {
        let from = reader.at;
        if reader.value()? == Value::Nil {
            return Ok(());
        }
        reader.at = from;
        reader.tokens(&mut self.tokens)
    }

    fn read_extras(&mut self, reader: &mut Reader) -> Result<()> {
        let Value::List(blocks) = reader.value()? else { return Ok(()) };
        for block in 0..blocks {
            let mut texts = Vec::new();
            read_texts(reader, &mut texts)?;
            if !texts.is_empty() {
                self.extras.push((block, texts));
            }
        }
        Ok(())
    }

    /// Decides what the event means, once all its fields are known.
    fn settle(&mut self) -> Result<()> {
        if !matches!(self.kind, Kind::Stored | Kind::Removed) {
            return Ok(());
        }
        self.tier = match self.medium {
            Medium::Gpu => Tier::Gpu,
            Medium::Storage if !self.is_foreign => Tier::Vault,
            Medium::Storage | Medium::Other => {
                self.kind = Kind::Other;
                return Ok(());
            }
        };
        if self.kind == Kind::Removed {
            return Ok(());
        }
        if let (Spec::Window(_), window) = (self.spec, self.window) {
            self.spec = window.map_or(Spec::Whole, Spec::Window);
        }
        let is_left_out = self.tier == Tier::Vault && self.spec != Spec::Whole;
        if self.spec == Spec::Apart || is_left_out {
            self.kind = Kind::Other;
            return Ok(());
        }
        if self.is_naming() {
            return Ok(());
        }
        if self.block_size == 0 {
            return Err("blocks of no tokens");
        }
        let blocks = self.block_size as usize * self.hashes.len();
        if self.spec == Spec::Whole && self.tokens.len() != blocks {
            return Err("the tokens are not those of its blocks");
        }
        self.adopt_adapter();
        Ok(())
    }

    /// Puts the adapter's name before the other inputs of each block, where the event does not name it among them.
    fn adopt_adapter(&mut self) {
        let Some(adapter) = self.adapter.take() else { return };
        let mut extras = std::mem::take(&mut self.extras).into_iter().peekable();
        for block in 0..self.hashes.len() {
            let mut texts = extras.next_if(|(at, _)| *at == block).map_or(vec![], |(_, all)| all);
            if !texts.contains(&adapter) {
                texts.insert(0, adapter.clone());
            }
            self.extras.push((block, texts));
        }
    }
}

fn number(reader: &mut Reader, most: u32) -> Result<Option<u32>> {
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Int(read) => match u32::try_from(read) {
            Ok(read) if read <= most => Ok(Some(read)),
            _ => Err("a number is out of range"),
        },
        _ => Err("a number is missing"),
    }
}

/// Kinds of vLLM's `KVCacheSpecKind`; a kind that is not known counts as the strictest one.
fn spec_of(kind: &Value) -> Spec {
    match kind {
        Value::Text("sliding_window" | "sliding_window_mla") => Spec::Window(0),
        Value::Text("mamba") => Spec::State,
        Value::Text("encoder_only_attention" | "cross_attention") => Spec::Apart,
        _ => Spec::Whole,
    }
}

/// Reads the values of a nested list as texts, in order.
fn read_texts(reader: &mut Reader, into: &mut Vec<String>) -> Result<()> {
    let mut left = 1_usize;
    while left > 0 {
        left -= 1;
        match reader.value()? {
            Value::Nil => {}
            Value::List(count) => left = left.checked_add(count).ok_or("a list is cut off")?,
            Value::Text(text) => into.push(text.into()),
            Value::Bytes(bytes) => into.push(hex(bytes)),
            Value::Int(number) => into.push(number.to_string()),
            Value::Float(number) => into.push(number.to_string()),
            Value::Bool(is_so) => into.push(is_so.to_string()),
            Value::Map(_) | Value::Other => return Err("an input of a hash is no text"),
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Calls `each` with the events of a batch in order; `scratch` is used again for each. An event of stored blocks that cannot
/// be read is left out, and its blocks count as not held; returns why the last such one was.
///
/// # Errors
/// The payload is no batch, or another event cannot be read: its removals are lost.
pub fn read_batch(
    payload: &[u8],
    scratch: &mut Event,
    mut each: impl FnMut(&Event),
) -> Result<Option<&'static str>> {
    let mut reader = Reader::new(payload);
    let Ok(Value::List(2..)) = reader.value() else { return Err("no batch of events") };
    reader.skip()?;
    let count = reader.list().map_err(|_| "no batch of events")?;
    let mut skipped = None;
    for _ in 0..count {
        let from = reader.at;
        match scratch.read(&mut reader) {
            Ok(()) => each(scratch),
            Err(reason) if scratch.kind == Kind::Stored => {
                skipped = Some(reason);
                reader.at = from;
                reader.skip()?;
            }
            Err(reason) => return Err(reason),
        }
    }
    Ok(skipped)
}
