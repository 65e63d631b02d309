// Owns the ceilings of the check of truth: restores per check, and distrusted names.

/** With `[restore] verify = "sampled"`: one restore in this many recomputes a block, only on an idle engine. */
export const VERIFY_SAMPLED_EVERY = 64;
/** Distrusted names; the oldest is forgotten. */
export const QUARANTINED_MAX = 256;
