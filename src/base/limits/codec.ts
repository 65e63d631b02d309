// Owns the limits of `[codec] kv = "auto"`: blocks tried, certificates read, and the fill level at which a vault's room counts.

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
/** Used share of a vault's memory above which smaller records go before exact ones. */
export const VAULT_FULL_SHARE = 0.5;
/** Interval of asking a vault for its fill level while saving to it. */
export const VAULT_ROOM_MS = 5_000;
export const MAX_KLD_DEFAULT = 1e-4;
export const MAX_KLD_MAX = 1;
/** Prompts that a certificate is judged on, at least. */
export const CERTIFIED_PROMPTS_MIN = 16;
/** Certificate files that are read; more are refused, because every connecting engine has them read. */
export const CERTIFICATES_MAX = 256;
export const CERTIFICATE_BYTES_MAX = 4096;
/** Bytes of an engine's name of its weights. */
export const WEIGHTS_NAME_BYTES_MAX = 160;
/** Namespaces whose codecs are remembered; the oldest is forgotten, and its blocks are no longer saved lossily. */
export const NAMESPACES_KNOWN_MAX = 1024;
