//! Owns the bindings of the gateway's index, and of the hashes that engines make of a prompt.

use napi::bindgen_prelude::{Buffer, Uint32Array};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_index::forms::{self, Algorithm, Apart, HASH_BYTES};
use tierkv_index::{Bounds, HolderId, Index, Tier, VaultName, View, names_of};

use crate::ffi::{hash, run, size};

/// Bounds of an index: entries of all engines together, ms for which a prompt just sent counts as held, ms for which a
/// vault's answer counts, and blocks remembered of such answers.
#[napi(object)]
pub struct IndexBounds {
    pub blocks: u32,
    pub guess_ms: f64,
    pub found_ms: f64,
    pub found: u32,
}

/// The name of an engine's blocks in vaults, as hexadecimal digits; `namespace` is empty where no vault is reachable.
#[napi(object)]
pub struct IndexName {
    pub group: u32,
    pub block_size: u32,
    pub namespace: String,
    pub shards: u32,
    pub root: String,
}

/// The first blocks of a prompt as an engine hashed them: low hashes (8 bytes each, little-endian), tokens, and each
/// block's inputs besides tokens.
#[napi(object)]
pub struct IndexSample {
    pub block_size: u32,
    pub lows: Buffer,
    pub tokens: Uint32Array,
    pub extras: Vec<Vec<String>>,
}

/// News of a batch besides blocks. `lost`: why it cannot be read, so that its removals are lost; `skipped`: why one of its
/// events was left out; `met`: number of the form whose expected hash was reported.
#[napi(object)]
pub struct IndexReport {
    pub lost: Option<String>,
    pub skipped: Option<String>,
    pub names: Vec<IndexName>,
    pub sample: Option<IndexSample>,
    pub met: Option<u32>,
}

/// A prompt's blocks: hashes (32 bytes each), or names of the index's own (8 bytes each); tokens of a block and of the prompt.
#[napi(object)]
pub struct IndexView {
    pub blocks: Buffer,
    pub are_names: bool,
    pub unit: u32,
    pub tokens: u32,
}

impl IndexView {
    fn view(&self) -> View {
        let (unit, tokens) = (self.unit, self.tokens);
        if !self.are_names {
            return View::of_hashes(&self.blocks, unit, tokens);
        }
        let (names, _) = self.blocks.as_chunks::<8>();
        let blocks = names.iter().map(|name| u64::from_le_bytes(*name)).collect();
        View { blocks, are_names: true, unit, tokens }
    }
}

fn holder(id: u32) -> Result<HolderId> {
    let wrong = |_| Error::bad_argument(format!("engine {id}: there is no such number"));
    HolderId::try_from(id).map_err(wrong)
}

fn holders(ids: &[u32]) -> Result<Vec<HolderId>> {
    ids.iter().map(|id| holder(*id)).collect()
}

fn report_of(report: tierkv_index::Report) -> IndexReport {
    let names = report.names.into_iter().map(|(group, block_size, name)| {
        let VaultName { namespace, shards, root } = name;
        IndexName { group: group.into(), block_size, namespace, shards, root }
    });
    let sample = report.sample.map(|sample| IndexSample {
        block_size: sample.block_size,
        lows: sample.hashes.iter().flat_map(|low| low.to_le_bytes()).collect::<Vec<_>>().into(),
        tokens: sample.tokens.into(),
        extras: sample.extras,
    });
    let skipped = report.skipped.map(String::from);
    IndexReport { lost: None, skipped, names: names.collect(), sample, met: report.met }
}

/// Which engine holds which block, as their events report.
#[napi]
pub struct IndexCore(Index);

#[napi]
impl IndexCore {
    #[napi(constructor)]
    #[must_use]
    pub fn new(bounds: IndexBounds) -> Self {
        let IndexBounds { blocks, guess_ms, found_ms, found } = bounds;
        let (blocks, found) = (blocks as usize, found as usize);
        Self(Index::new(Bounds { blocks, guess_ms, found_ms, found }))
    }

    /// Makes room for an engine, or one of its ranks, and returns its number.
    #[napi]
    pub fn add(&mut self) -> napi::Result<u32> {
        run(|| {
            let full = || Error::bad_argument("the index has no number left: remove an engine");
            Ok(self.0.add().ok_or_else(full)?.into())
        })
    }

    /// Forgets an engine; idempotent.
    #[napi]
    pub fn remove(&mut self, id: u32) -> napi::Result<()> {
        run(|| {
            self.0.remove(holder(id)?);
            Ok(())
        })
    }

    /// Applies a batch of an engine's events; null: there is nothing to tell.
    #[napi(ts_return_type = "IndexReport | null")]
    pub fn apply(&mut self, id: u32, payload: &[u8]) -> napi::Result<Option<IndexReport>> {
        run(|| {
            Ok(match self.0.apply(holder(id)?, payload) {
                Ok(report) if report.is_empty() => None,
                Ok(report) => Some(report_of(report)),
                Err(reason) => Some(IndexReport {
                    lost: Some(reason.into()),
                    skipped: None,
                    names: Vec::new(),
                    sample: None,
                    met: None,
                }),
            })
        })
    }

    /// Drops all that an engine reported.
    #[napi]
    pub fn clear(&mut self, id: u32) -> napi::Result<()> {
        run(|| {
            self.0.clear(holder(id)?);
            Ok(())
        })
    }

    /// An engine whose events are incomplete counts as holding nothing.
    #[napi]
    pub fn trust(&mut self, id: u32, is_trusted: bool) -> napi::Result<()> {
        run(|| {
            self.0.trust(holder(id)?, is_trusted);
            Ok(())
        })
    }

    /// Says what is wanted of an engine's events: names for all blocks, or only for blocks whose hashes have inputs besides
    /// tokens; samples, of each so many prompts one (0: none), and of prompts with such inputs.
    #[napi]
    pub fn want(&mut self, id: u32, all_names: bool, every: u32, extras: bool) -> napi::Result<()> {
        run(|| {
            self.0.want(holder(id)?, all_names, every, extras);
            Ok(())
        })
    }

    /// Expects hashes of a prompt sent to an engine, made in the form of this number.
    #[napi]
    pub fn expect(&mut self, id: u32, form: u32, hashes: &[u8]) -> napi::Result<()> {
        run(|| {
            self.0.expect(holder(id)?, form, hashes);
            Ok(())
        })
    }

    /// Assumes that a prompt is held by an engine, because it is computed there now or shortly.
    #[napi]
    pub fn guess(&mut self, id: u32, view: IndexView, now: f64) -> napi::Result<()> {
        run(|| {
            self.0.guess(holder(id)?, &view.view(), now);
            Ok(())
        })
    }

    /// Notes blocks that a vault reported by their hashes, 32 bytes each, for the engines that can pull them.
    #[napi]
    pub fn found(&mut self, ids: &[u32], hashes: &[u8], now: f64) -> napi::Result<()> {
        run(|| {
            self.0.found(&holders(ids)?, &forms::lows_of(hashes), now);
            Ok(())
        })
    }

    /// Returns two numbers for each engine: tokens of the prompt that it holds itself, and those that it has after pulling
    /// from vaults behind its own. `peers`: engines of the same model, whose blocks in vaults each of them can pull.
    #[napi]
    pub fn spans(
        &mut self,
        ids: &[u32],
        peers: &[u32],
        view: IndexView,
        now: f64,
    ) -> napi::Result<Uint32Array> {
        run(|| {
            let spans = self.0.spans(&holders(ids)?, &holders(peers)?, &view.view(), now);
            Ok(spans.iter().flat_map(|span| [span.held, span.reach]).collect::<Vec<_>>().into())
        })
    }

    /// Number of blocks that an engine reported, in its own memory or in vaults.
    #[napi]
    pub fn blocks(&self, id: u32, in_vaults: bool) -> napi::Result<f64> {
        let tier = if in_vaults { Tier::Vault } else { Tier::Gpu };
        run(|| Ok(size(self.0.blocks(holder(id)?, tier))))
    }

    /// Number of blocks that vaults reported lately.
    #[napi]
    #[must_use]
    pub fn found_blocks(&self) -> f64 {
        size(self.0.found_blocks())
    }

    /// Blocks of an engine's own memory that go for each that comes: 0 while it has room, 1 once it is full.
    #[napi]
    pub fn pressure(&self, id: u32) -> napi::Result<f64> {
        run(|| Ok(self.0.pressure(holder(id)?)))
    }

    /// Whether an engine can pull from vaults, as its events show.
    #[napi]
    pub fn pulls(&self, id: u32) -> napi::Result<bool> {
        run(|| Ok(self.0.pulls(holder(id)?)))
    }

    /// Tokens between an engine's hashes; before it reports any, as another engine has them; null: none has.
    #[napi(ts_return_type = "number | null")]
    pub fn unit(&self, id: u32) -> napi::Result<Option<u32>> {
        run(|| Ok(self.0.unit(holder(id)?)))
    }

    /// Returns an engine's part of the index as bytes.
    #[napi]
    pub fn save(&self, id: u32) -> napi::Result<Buffer> {
        run(|| Ok(self.0.save(holder(id)?).into()))
    }

    /// Restores such a part; requests rely on it only once it is trusted. Returns false, and leaves the engine without
    /// blocks, where the bytes are no such part.
    #[napi]
    pub fn load(&mut self, id: u32, bytes: &[u8]) -> napi::Result<bool> {
        run(|| Ok(self.0.load(holder(id)?, bytes)))
    }
}

/// Inputs that tell a prompt's blocks apart besides tokens: adapter, the path that it has at the engine, salt; empty: none.
/// `isTagged`: whether each stands with its kind, as newer releases hash it.
#[napi(object)]
pub struct HashApart {
    pub adapter: String,
    pub path: String,
    pub salt: String,
    pub is_tagged: bool,
}

fn algorithm(name: &str) -> Result<Algorithm> {
    match name {
        "sha256" => Ok(Algorithm::Pickle),
        "sha256_cbor" => Ok(Algorithm::Cbor),
        _ => Err(Error::bad_argument(format!("algorithm {name:?}: sha256 or sha256_cbor"))),
    }
}

/// Returns the parent of first blocks, of a seed; `algorithm`: `sha256` or `sha256_cbor`.
#[napi]
pub fn hash_root(algorithm_name: String, seed: String) -> napi::Result<Buffer> {
    run(|| Ok(forms::root_of(algorithm(&algorithm_name)?, &seed).to_vec().into()))
}

/// Returns an engine's hashes of all full blocks of these tokens behind `parent`, 32 bytes each; `isFirst`: they begin the
/// prompt. Ends at a token that no engine has.
#[napi]
pub fn hash_blocks(
    algorithm_name: String,
    parent: &[u8],
    tokens: &[u32],
    block_size: u32,
    apart: HashApart,
    is_first: bool,
) -> napi::Result<Buffer> {
    run(|| {
        let parent: [u8; HASH_BYTES] = hash("the parent's hash", parent)?;
        let given = |text: String| (!text.is_empty()).then_some(text);
        let path = apart.path;
        let apart = Apart {
            adapter: given(apart.adapter).map(|name| (name, path)),
            salt: given(apart.salt),
            is_tagged: apart.is_tagged,
        };
        let made = algorithm(&algorithm_name)?;
        let block_size = block_size as usize;
        Ok(forms::hashes_of(made, &parent, tokens, block_size, &apart, is_first).into())
    })
}

/// Returns the index's own names of a prompt's full blocks, 8 bytes each: for engines whose form of hashes is not known.
/// `everywhere` enters each block, `salt` the first and so all.
#[napi]
pub fn name_blocks(
    tokens: &[u32],
    block_size: u32,
    everywhere: Vec<String>,
    salt: Option<String>,
) -> napi::Result<Buffer> {
    run(|| {
        let names = names_of(tokens, block_size as usize, &everywhere, salt.as_deref());
        Ok(names.iter().flat_map(|name| name.to_le_bytes()).collect::<Vec<_>>().into())
    })
}
