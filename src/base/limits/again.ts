// Owns the limits of offering blocks again: how often vaults are asked, and the shares of links and vaults for copies.

const MIB = 1024 * 1024;

/** Pause between two checks whether vaults still hold arenas' blocks: random, from half of this to all of it. */
export const AGAIN_PAUSE_MS = 10_000;
/** How long a vault's answer counts. */
export const AGAIN_ASK_MS = 60_000;
/** Keys of one look-up. */
export const AGAIN_KEYS = 1024;
/** Share of time one sidecar sends copies to one vault: ten sidecars at a returning vault still leave room for restores. */
export const AGAIN_LINK_SHARE = 0.25;
/** Most bytes a second of such copies. */
export const AGAIN_BYTES_PER_S: number = 64 * MIB;
/** Share of a full vault that one check may displace with blocks the vault evicted. */
export const AGAIN_EVICTED_SHARE = 0.125;

// Events: engines audit vaults' blocks periodically.
/** Hashes of one audit of an engine that publishes events; one a second. */
export const AUDIT_HASHES_MAX = 4096;
/** A vault that answers an audit later counts as holding nothing. */
export const AUDIT_TIMEOUT_MS = 2000;
