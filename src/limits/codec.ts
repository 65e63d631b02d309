// Owns the limits of `[codec] kv = "auto"`: how many blocks are tried, what an exact one may cost, and from when on a vault's room counts.

/** Blocks of each group that codecs are tried on; the worst counts. */
export const WEIGHED_BLOCKS = 4;
/** Groups of engines whose weights are remembered; the oldest is forgotten. */
export const WEIGHED_GROUPS_MAX = 256;
/** Blocks come back nearly the same only where that takes at most this share of the quickest exact way's time. */
export const EXACT_TIME_SHARE = 0.8;
/** Another codec than the last must be quicker by this much: rates of links waver. */
export const CHANGE_TIME_SHARE = 0.9;
/** Nats a token over the share of noise in a block's K or V: the trained model's, with and without outlier channels (docs/fidelity.md). */
export const DIVERGENCE_OF_NOISE = 0.15;
/** From this share of a vault's memory on, fewer bytes come before exact ones. */
export const VAULT_FULL_SHARE = 0.5;
/** How often a vault is asked how full it is, while blocks go there. */
export const VAULT_ROOM_MS = 5_000;
export const MAX_KLD_DEFAULT = 1e-4;
export const MAX_KLD_MAX = 1;
