// Owns the ceilings of the check of truth: how often a restore is checked, and how many names may be distrusted.

/** With `[restore] verify = "sampled"`: one restore in so many costs one block's computing, on an idle engine only. */
export const VERIFY_SAMPLED_EVERY = 64;
/** Names whose stored blocks are believed by nobody; the oldest is forgotten. */
export const QUARANTINED_MAX = 256;
