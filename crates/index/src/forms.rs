//! Owns the forms in which vLLM releases hash a prompt's blocks: canonical CBOR, and pickle protocol 5 as Python's own pickler writes it.

use ring::digest::{SHA256, digest};

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;

/// A whole hash.
pub type Hash = [u8; HASH_BYTES];

/// Tokens of a block whose hash is made here: above that a pickle has several frames.
pub const TOKENS_MAX: usize = 8_192;

/// Values of vLLM's `--prefix-caching-hash-algo` whose hashes engines share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// `sha256`: over a pickle.
    Pickle,
    /// `sha256_cbor`.
    Cbor,
}

/// Inputs of a block's hash besides its tokens: texts, or tuples of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A text that stands alone, as in 0.28.
    Bare(String),
    /// A text with its kind, as in 0.32.
    Tagged(Vec<String>),
}

/// Inputs that tell a prompt's blocks apart besides tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Apart {
    /// Adapter: its name, and where the engine reads it.
    pub adapter: Option<(String, String)>,
    /// Salt of the first block, and so of the whole chain.
    pub salt: Option<String>,
    /// Whether each text stands with its kind.
    pub is_tagged: bool,
}

impl Apart {
    fn keys(&self, is_first: bool) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut push = |kind: &str, texts: &[&String]| {
            let all = texts.iter().map(|text| (*text).clone());
            keys.push(if self.is_tagged {
                Key::Tagged(std::iter::once(kind.into()).chain(all).collect())
            } else {
                Key::Bare(texts[0].clone())
            });
        };
        if let Some((name, path)) = &self.adapter {
            push("lora", &[name, path]);
        }
        if let (Some(salt), true) = (&self.salt, is_first) {
            push("cache_salt", &[salt]);
        }
        keys
    }
}

fn sha256(bytes: &[u8]) -> Hash {
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// vLLM's `NONE_HASH` of a seed: parent of first blocks.
#[must_use]
pub fn root_of(algorithm: Algorithm, seed: &str) -> Hash {
    let mut out = Vec::new();
    match algorithm {
        Algorithm::Cbor => cbor_text(&mut out, seed),
        Algorithm::Pickle => pickled(&mut out, |out| pickle_text(out, seed)),
    }
    sha256(&out)
}

/// Hashes all full blocks of `tokens` behind `parent`; `is_first`: the first of them begins the prompt. Ends at a token that no
/// engine has, and makes none of blocks whose form is not known.
#[must_use]
pub fn hashes_of(
    algorithm: Algorithm,
    parent: &Hash,
    tokens: &[u32],
    block_size: usize,
    apart: &Apart,
    is_first: bool,
) -> Vec<u8> {
    if block_size == 0 || block_size > TOKENS_MAX {
        return Vec::new();
    }
    let mut hashes = Vec::with_capacity(tokens.len() / block_size * HASH_BYTES);
    let (first, others) = (apart.keys(is_first), apart.keys(false));
    let mut above = *parent;
    let mut out = Vec::with_capacity(64 + 5 * block_size);
    for (at, block) in tokens.chunks_exact(block_size).enumerate() {
        if block.iter().any(|token| *token > i32::MAX.unsigned_abs()) {
            break;
        }
        out.clear();
        let keys = if at == 0 { &first } else { &others };
        match algorithm {
            Algorithm::Cbor => cbor_block(&mut out, &above, block, keys),
            Algorithm::Pickle => pickle_block(&mut out, &above, block, keys),
        }
        above = sha256(&out);
        hashes.extend_from_slice(&above);
    }
    hashes
}

// RFC 8949: a major type, and its length or value in as few bytes as hold it.

const UNSIGNED: u8 = 0x00;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const CBOR_NULL: u8 = 0xf6;
const ONE_BYTE: u8 = 0x18;
const TWO_BYTES: u8 = 0x19;
const FOUR_BYTES: u8 = 0x1a;

#[expect(clippy::cast_possible_truncation, reason = "each arm holds its value")]
fn cbor_head(out: &mut Vec<u8>, major: u8, value: usize) {
    match value {
        0..24 => out.push(major | value as u8),
        24..0x100 => out.extend([major | ONE_BYTE, value as u8]),
        0x100..0x1_0000 => {
            out.push(major | TWO_BYTES);
            out.extend((value as u16).to_be_bytes());
        }
        _ => {
            out.push(major | FOUR_BYTES);
            out.extend((value as u32).to_be_bytes());
        }
    }
}

fn cbor_text(out: &mut Vec<u8>, text: &str) {
    cbor_head(out, TEXT, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn cbor_block(out: &mut Vec<u8>, parent: &Hash, tokens: &[u32], keys: &[Key]) {
    cbor_head(out, ARRAY, 3);
    cbor_head(out, BYTES, HASH_BYTES);
    out.extend_from_slice(parent);
    cbor_head(out, ARRAY, tokens.len());
    for token in tokens {
        cbor_head(out, UNSIGNED, *token as usize);
    }
    if keys.is_empty() {
        out.push(CBOR_NULL);
        return;
    }
    cbor_head(out, ARRAY, keys.len());
    for key in keys {
        match key {
            Key::Bare(text) => cbor_text(out, text),
            Key::Tagged(texts) => {
                cbor_head(out, ARRAY, texts.len());
                for text in texts {
                    cbor_text(out, text);
                }
            }
        }
    }
}

// Opcodes as in Python's Lib/pickletools.py. Each bytes, text and tuple is memoized as Python does, though none repeats.

const MEMOIZE: u8 = 0x94;
const STOP: u8 = 0x2e;
const NONE: u8 = 0x4e;
const MARK: u8 = 0x28;
const TUPLE: u8 = 0x74;
/// Tuples of 0 to 3 members, which need no mark.
const SHORT_TUPLES: [u8; 4] = [0x29, 0x85, 0x86, 0x87];
const SHORT_BYTES: u8 = 0x43;
const SHORT_TEXT: u8 = 0x8c;
const LONG_TEXT: u8 = 0x58;
const BYTE_INT: u8 = 0x4b;
const SHORT_INT: u8 = 0x4d;
const INT: u8 = 0x4a;
/// Protocol 5, then one frame around the rest, whose length follows.
const HEAD: [u8; 3] = [0x80, 0x05, 0x95];
const LENGTH_BYTES: usize = 8;

fn pickle_int(out: &mut Vec<u8>, value: u32) {
    match value.to_le_bytes() {
        [low, 0, 0, 0] => out.extend([BYTE_INT, low]),
        [low, high, 0, 0] => out.extend([SHORT_INT, low, high]),
        all => {
            out.push(INT);
            out.extend(all);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "texts are far below 4 GiB")]
fn pickle_text(out: &mut Vec<u8>, text: &str) {
    if let Ok(length) = u8::try_from(text.len()) {
        out.extend([SHORT_TEXT, length]);
    } else {
        out.push(LONG_TEXT);
        out.extend((text.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(text.as_bytes());
    out.push(MEMOIZE);
}

fn pickle_tuple(out: &mut Vec<u8>, length: usize, members: impl FnOnce(&mut Vec<u8>)) {
    let short = SHORT_TUPLES.get(length);
    if short.is_none() {
        out.push(MARK);
    }
    members(out);
    out.push(*short.unwrap_or(&TUPLE));
    if length > 0 {
        out.push(MEMOIZE);
    }
}

fn pickled(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend(HEAD);
    out.extend([0; LENGTH_BYTES]);
    let from = out.len();
    write(out);
    out.push(STOP);
    let length = (out.len() - from) as u64;
    out[from - LENGTH_BYTES..from].copy_from_slice(&length.to_le_bytes());
}

fn pickle_block(out: &mut Vec<u8>, parent: &Hash, tokens: &[u32], keys: &[Key]) {
    pickled(out, |out| {
        pickle_tuple(out, 3, |out| {
            out.extend([SHORT_BYTES, 32]);
            out.extend_from_slice(parent);
            out.push(MEMOIZE);
            pickle_tuple(out, tokens.len(), |out| {
                for token in tokens {
                    pickle_int(out, *token);
                }
            });
            if keys.is_empty() {
                out.push(NONE);
                return;
            }
            pickle_tuple(out, keys.len(), |out| {
                for key in keys {
                    match key {
                        Key::Bare(text) => pickle_text(out, text),
                        Key::Tagged(texts) => pickle_tuple(out, texts.len(), |out| {
                            for text in texts {
                                pickle_text(out, text);
                            }
                        }),
                    }
                }
            });
        });
    });
}

/// Returns the low 64 bits of each of some hashes, as events have them.
#[must_use]
pub fn lows_of(hashes: &[u8]) -> Vec<u64> {
    let (hashes, _) = hashes.as_chunks::<HASH_BYTES>();
    let low = |hash: &Hash| hash.last_chunk::<8>().map_or(0, |low| u64::from_be_bytes(*low));
    hashes.iter().map(low).collect()
}
