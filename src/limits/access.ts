// Owns the limits of who gets in: secrets, certificates, failed attempts, and what is written down of them.

/** Random bytes of a token that we make, and characters below which a token of somebody else's is refused. */
export const TOKEN_BYTES = 32;
export const TOKEN_CHARS_MIN = 32;
export const TOKEN_CHARS_MAX = 512;
/** Tokens that hold at a time: one a client and role, twice while they are changed. */
export const TOKENS_MAX = 256;
/** A file of tokens or certificates; a larger one is something else. */
export const SECRET_FILE_BYTES_MAX = 262_144;
/** How often a file of tokens is looked at for a change. */
export const TOKEN_FILE_POLL_MS = 1_000;
/** A vault's own certificate is good for this long, in days; one that `tierkv certs` makes likewise. */
export const CERTIFICATE_DAYS = 3_650;
/** It begins this long before it was made: clocks differ. */
export const CERTIFICATE_EARLY_S = 86_400;
/** A certificate with fewer days left is warned about at every start. */
export const CERTIFICATE_WARN_DAYS = 30;
/** From the first packet of a connection until it is let in: handshake, hello, first call. */
export const LISTENER_DEADLINE_MS = 5_000;
/** Failed attempts of one address in a row, and the pause after which one more is allowed. */
export const AUTH_FAILURES_MAX = 10;
export const AUTH_REFILL_MS = 1_000;
/** An answer to the last of them still leaves within this time. */
export const AUTH_LINGER_MS = 100;
/** Addresses of which failures are remembered. */
export const AUTH_PEERS_MAX = 4_096;
/** What `tierkv join` waits for a vault. */
export const JOIN_TIMEOUT_MS = 5_000;
/** A longer join code is something else. */
export const JOIN_CODE_CHARS_MAX = 2_048;
/** One file of the audit log, and how many older ones are kept beside it. */
export const AUDIT_FILE_BYTES_MAX = 16_777_216;
export const AUDIT_FILES_KEPT = 4;
/** Lines of the audit log that clients cause in a second, and strangers: at once, then in a second. What comes above is counted in the next line. */
export const AUDIT_LINES_PER_S_MAX = 50;
export const AUDIT_STRANGER_LINES_MAX = 50;
export const AUDIT_STRANGER_LINES_PER_S = 1;
/** How often counters that belong into the audit log are looked at. */
export const AUDIT_POLL_MS = 1_000;
/** An invitation is good for this long unless its maker says otherwise, and never longer than the second. */
export const INVITATION_S_DEFAULT = 86_400;
export const INVITATION_S_MAX = 2_592_000;
/** Invitations open at a time. */
export const INVITATIONS_MAX = 64;
/** Machines that have a credential of a vault. */
export const MEMBERS_MAX = 256;
/** Characters of a machine's name that are kept. */
export const MACHINE_NAME_CHARS_MAX = 64;
/** When machines were seen last is written down at most this often. */
export const MEMBERS_SAVE_MS = 60_000;
/** The greatest number of a credential's account: two bytes. */
export const ACCOUNTS_MAX = 65_535;
/** Lines of one kind that are logged at once, and after which time one more is; those in between are counted. */
export const LOG_LINES_BURST = 100;
export const LOG_REFILL_MS = 1_000;
/** Kinds of lines that are told apart. */
export const LOG_KINDS_MAX = 512;
/** Causes for which shims were refused that are logged, each once; all others are counted. */
export const REFUSALS_SAID_MAX = 256;
