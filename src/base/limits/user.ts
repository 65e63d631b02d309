// Owns the limits of yielding to a machine's user: detection of use, and the vault's return.

/** Interval of checks for a user, and pause before a failed return to service is retried, in ms. */
export const YIELD_POLL_MS = 500;
export const YIELD_RETRY_MS = 10_000;
/** Interval and timeout of queries to the desktop, in ms. */
export const USER_ASK_MS = 1_000;
export const USER_ASK_TIMEOUT_MS = 3_000;
/** Share of all processors used by other programs, over this time in ms, that counts as a user's load. */
export const USER_LOAD_SHARE = 0.5;
export const USER_LOAD_SAMPLE_MS = 5_000;
/** Defaults and bounds of `[vault] yield_idle_s` and `yield_grace_s`: terminals' input is dated to 8 s. */
export const YIELD_IDLE_S_MIN = 10;
export const YIELD_IDLE_S_DEFAULT = 300;
export const YIELD_GRACE_S_DEFAULT = 60;
export const YIELD_S_MAX = 86_400;
/** Timeout of other vaults' answers before a vault falls silent, in ms; a late one is given no records. */
export const YIELD_HELLO_MS = 300;
/** Timeout of the vault's own answer over the socket by which its records then leave, in ms: a machine in use may be slow. */
export const YIELD_DOOR_MS = 10_000;
/** Rate and longest time, in ms, of then sending them hot records before its memory is released: a tenth of a 1 Gb/s link. */
export const YIELD_GIVE_BYTES_PER_S = 12_500_000;
export const YIELD_GIVE_MS = 120_000;
/** Interval of checks whether a vault is used, and how long `[vault] keep_awake` holds afterwards, in ms. */
export const AWAKE_POLL_MS = 10_000;
export const AWAKE_IDLE_MS = 900_000;
/** Port of wake-on-LAN packets, by custom the discard port; and the interval per machine, in ms. */
export const WAKE_PORT = 9;
export const WAKE_EVERY_MS = 60_000;
