// Owns the ceilings of what shows a running set-up: `tierkv top` and what the sidecar keeps for it.

/** What a vault says of itself is asked again at most so often, and only while somebody looks. */
export const VAULT_SEEN_MS = 1_000;
/** Latest restores in a sidecar's account of itself. */
export const RESTORES_SHOWN_MAX = 64;
/** Between two pictures of `tierkv top`, unless asked otherwise. */
export const TOP_INTERVAL_S_DEFAULT = 1;
export const TOP_INTERVAL_S_MAX = 3_600;
/** `tierkv top --once` waits so long for two pictures, because rates need two. */
export const TOP_ONCE_MS = 1_100;
/** A machine that computes takes no more. */
export const LEDGER_WATTS_MAX = 100_000;
