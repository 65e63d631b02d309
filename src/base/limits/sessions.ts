// Owns the ceilings of sessions: named conversations, which vaults keep for a while.

/** Bytes of a session's name. */
export const SESSION_NAME_BYTES_MAX = 128;
/** Sessions that one vault knows; above it the oldest that is not kept is forgotten. */
export const SESSIONS_MAX = 4_096;
/** The longest time a session is kept without renewal: a week. */
export const KEEP_S_MAX = 604_800;
/** Default time to keep a session. */
export const KEEP_S_DEFAULT = 3_600;
/** Share of a vault's memory for kept sessions, in percent: the rest must take new records. */
export const KEPT_PERCENT_DEFAULT = 25;
export const KEPT_PERCENT_MAX = 90;
/** Ends of requests not yet sent to vaults; more are dropped and counted. */
export const SESSION_TELLS_MAX = 256;
/** Such calls in flight. */
export const SESSION_TELLS_AT_ONCE = 8;
/** Timeout of such a call, in ms: long, because no request waits for it, and a lost call costs a conversation. */
export const SESSION_TELL_TIMEOUT_MS = 30_000;
