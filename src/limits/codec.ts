// Owns the limits of `[codec] kv = "auto"`: blocks tried, the cost of exact ones, and the fill level at which a vault's room counts.

/** Restored blocks of a lossy namespace that a sidecar remembers, so that none is coded twice; 32 MB of names. */
export const DECODED_BLOCKS_MAX = 262_144;
/** Blocks of each group that codecs are tried on; the worst counts. */
export const WEIGHED_BLOCKS = 4;
/** Groups of engines whose weights are remembered; the oldest is forgotten. */
export const WEIGHED_GROUPS_MAX = 256;
/** A lossy codec must take at most this share of the fastest exact codec's time. */
export const EXACT_TIME_SHARE = 0.8;
/** A new codec must take at most this share of the last one's time, because link rates vary. */
export const CHANGE_TIME_SHARE = 0.9;
/** Nats a token over the share of noise in a block's K or V: the trained model's, with and without outlier channels (docs/fidelity.md). */
export const DIVERGENCE_OF_NOISE = 0.15;
/** Used share of a vault's memory above which smaller records go before exact ones. */
export const VAULT_FULL_SHARE = 0.5;
/** Interval of asking a vault for its fill level while saving to it. */
export const VAULT_ROOM_MS = 5_000;
export const MAX_KLD_DEFAULT = 1e-4;
export const MAX_KLD_MAX = 1;
