// Owns the ceilings of restore receipts: size, number made at a time, number kept.

/** Blocks with digests in a receipt, spread over all restored ones; at least one of each group. */
export const RECEIPT_SAMPLE_MAX = 32;
/** Decoded bytes of those blocks, beyond the first of each group. */
export const RECEIPT_SAMPLE_BYTES_MAX = 33_554_432;
/** Receipts made at a time; a further restore gets none. */
export const RECEIPTS_AT_ONCE = 8;
/** Bytes of a receipt's file. */
export const RECEIPT_BYTES_MAX = 262_144;
export const RECEIPTS_KEPT_DEFAULT = 1_000;
export const RECEIPTS_KEPT_MAX = 100_000;
/** Receipts written between two counts of files, so as many may exceed the limit. */
export const RECEIPTS_SCANNED_EVERY = 64;
