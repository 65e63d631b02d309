// Owns the limits of stores that others run, and the sizes by which they are planned.

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

// Plan: sizes in stores. Those of a bucket are the core's (`limits.rs`, `s3/object.rs`).
/** Bytes before each record. */
export const RECORD_HEADER_BYTES = 192;
/** Memory of a record's key in Valkey or Redis, with its entries in the tables of keys and of times to live. */
export const VALKEY_KEY_BYTES = 320;
/** Primaries of which two can agree that one is lost. */
export const VALKEY_PRIMARIES_MIN = 3;
/** Most replicas of a primary in a plan. */
export const VALKEY_REPLICAS_MAX = 5;
/** Records of a run in a bucket, on average. */
export const BUCKET_RUN_RECORDS = 16;
export const BUCKET_OBJECT_BYTES = 16_777_216;
export const BUCKET_RANGE_BYTES = 4_194_304;
/** Of the index at an object's front: each record's entry, and the rest. */
export const BUCKET_INDEX_ENTRY_BYTES = 44;
export const BUCKET_INDEX_HEAD_BYTES = 16;
