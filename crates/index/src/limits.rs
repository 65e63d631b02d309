//! Owns the limits of the index.

/// Groups of one engine's blocks, in its own memory and in vaults.
pub const GROUPS_MAX: usize = 64;

/// Parents of one engine that no event has stored, and removed blocks that were not known.
pub const STRANGERS_MAX: usize = 65_536;

/// Hashes of prompts sent to an engine whose form of hashes is being learnt.
pub const EXPECTED_MAX: usize = 65_536;

/// Blocks that came, after which earlier ones count half in an engine's pressure.
pub const PRESSURE_BLOCKS: f64 = 4_096.0;

/// Blocks of an event that are shown to whom checks its hashes.
pub const SAMPLE_BLOCKS: usize = 2;

/// Entries of an order that were removed before it is made anew, besides as many as are held.
pub const STALE_MIN: usize = 1_024;

/// Tokens of one block.
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;

/// Shards of one block: ranks of an engine.
pub const SHARDS_MAX: u32 = 1_024;
