// Owns the limits of offering again: how often vaults are asked, and how much of a link and of a vault copies may take.

const MIB = 1024 * 1024;

/** Pause between two looks at whether vaults still hold what lies in arenas: a random time between half of this and all of it. */
export const AGAIN_PAUSE_MS = 10_000;
/** What a vault said it holds is believed this long. */
export const AGAIN_ASK_MS = 60_000;
/** Keys of one question. */
export const AGAIN_KEYS = 1024;
/** Share of its time in which one sidecar sends copies to one vault: ten that see it return leave room for who restores. */
export const AGAIN_LINK_SHARE = 0.25;
/** And at most so many bytes in a second. */
export const AGAIN_BYTES_PER_S: number = 64 * MIB;
/** Share of a full vault that one look may displace by what that vault evicted. */
export const AGAIN_EVICTED_SHARE = 0.125;

// Events: what vaults hold is asked again and again.
/** Hashes of one question of an engine that publishes events; it asks one a second. */
export const AUDIT_HASHES_MAX = 4096;
/** A vault that takes longer to answer it holds nothing, as far as events go. */
export const AUDIT_TIMEOUT_MS = 2000;
