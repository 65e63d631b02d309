// Owns the limits of stores that others run.

/** Time that the core has to end a request after its caller has timed out. */
export const COLD_GRACE_MS = 100;

/** Calls of one flush of a bucket, each of which removes objects for as long as a flush of a vault may take. */
export const COLD_FLUSH_ROUNDS_MAX = 1000;

/** Pause between two questions whether another client has flushed a store: within it all sidecars drop their copies. */
export const COLD_WATCH_MS = 1000;

/** Fewest records that a bucket behind another place is asked for; a request there takes as long as computing a few blocks. */
export const TIER_KEYS_MIN = 8;

/** Weight of a new measurement of the bucket's time. */
export const TIER_COST_SMOOTHING = 0.2;

/** Characters of the beginning of all keys in Valkey. */
export const STORE_PREFIX_MAX = 64;

/** Characters of a store's address. */
export const STORE_ADDRESS_MAX = 1024;

/** Longest time to live of a record in a store: ten years. */
export const STORE_TTL_S_MAX = 315_360_000;
