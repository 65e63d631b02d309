// Owns the ceilings of sessions: conversations that somebody named, which vaults keep for a while.

/** Bytes of a session's name. */
export const SESSION_NAME_BYTES_MAX = 128;
/** Sessions that one vault knows; above it the oldest that is not kept is forgotten. */
export const SESSIONS_MAX = 4_096;
/** The longest time a session is kept without another word: a week. */
export const KEEP_S_MAX = 604_800;
/** How long one is kept where somebody only says that it is to be. */
export const KEEP_S_DEFAULT = 3_600;
/** Share of a vault's memory that may be kept, in percent: what is left must still take what arrives. */
export const KEPT_PERCENT_DEFAULT = 25;
export const KEPT_PERCENT_MAX = 90;
/** Ends of requests of which a sidecar has yet to tell its vaults; what comes above it is dropped, and counted. */
export const SESSION_TELLS_MAX = 256;
/** Of these, those it tells at the same time. */
export const SESSION_TELLS_AT_ONCE = 8;
/** How long a vault may take to hear of one, in ms: nobody waits for it, and an order that is lost costs a conversation. */
export const SESSION_TELL_TIMEOUT_MS = 30_000;
