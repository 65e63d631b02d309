// Owns the ceilings of restore receipts: how large one is, how many are made at a time, how many are kept.

/** Blocks whose digests one names, spread over all that were restored; at least one of each group. */
export const RECEIPT_SAMPLE_MAX = 32;
/** Decoded bytes of these, beyond the first of each group. */
export const RECEIPT_SAMPLE_BYTES_MAX = 33_554_432;
/** Being made at a time; a restore beyond gets none. */
export const RECEIPTS_AT_ONCE = 8;
/** A file of one. */
export const RECEIPT_BYTES_MAX = 262_144;
export const RECEIPTS_KEPT_DEFAULT = 1_000;
export const RECEIPTS_KEPT_MAX = 100_000;
/** Files are counted once in so many that were written: that many there may be above the limit. */
export const RECEIPTS_SCANNED_EVERY = 64;
