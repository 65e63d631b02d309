// Owns the limits of access: secrets, certificates, failed attempts, and the audit log.

/** Random bytes of a generated token; fewest and most characters of a given one. */
export const TOKEN_BYTES = 32;
export const TOKEN_CHARS_MIN = 32;
export const TOKEN_CHARS_MAX = 512;
/** Valid tokens at a time: one per client and role, two while they are changed. */
export const TOKENS_MAX = 256;
/** A file of tokens or certificates; a larger one is refused. */
export const SECRET_FILE_BYTES_MAX = 262_144;
/** Interval of checks of a file of tokens for changes. */
export const TOKEN_FILE_POLL_MS = 1_000;
/** Validity in days of a vault's own certificate, and of one from `tierkv certs`. */
export const CERTIFICATE_DAYS = 3_650;
/** The validity begins this long before creation, because clocks differ. */
export const CERTIFICATE_EARLY_S = 86_400;
/** Days left below which every start warns about a certificate. */
export const CERTIFICATE_WARN_DAYS = 30;
/** From a connection's first packet until it is admitted: handshake, hello, first call. */
export const LISTENER_DEADLINE_MS = 5_000;
/** Failed attempts of one address after which each of its connections has one, and the time that forgives one. */
export const AUTH_FAILURES_MAX = 10;
export const AUTH_REFILL_MS = 1_000;
/** Time to send the answer to the last failed attempt. */
export const AUTH_LINGER_MS = 100;
/** Addresses whose failures are remembered. */
export const AUTH_PEERS_MAX = 4_096;
/** How long `tierkv join` waits for a vault. */
export const JOIN_TIMEOUT_MS = 5_000;
/** Longest join code. */
export const JOIN_CODE_CHARS_MAX = 2_048;
/** One file of the audit log, and the older ones kept beside it. */
export const AUDIT_FILE_BYTES_MAX = 16_777_216;
export const AUDIT_FILES_KEPT = 4;
/** Audit lines per second caused by clients; by unauthenticated peers, in a burst, then per second. The next line counts the excess. */
export const AUDIT_LINES_PER_S_MAX = 50;
export const AUDIT_STRANGER_LINES_MAX = 50;
export const AUDIT_STRANGER_LINES_PER_S = 1;
/** Interval of reading counters for the audit log. */
export const AUDIT_POLL_MS = 1_000;
/** Lifetime of an invitation by default, and at most. */
export const INVITATION_S_DEFAULT = 86_400;
export const INVITATION_S_MAX = 2_592_000;
/** Invitations open at a time. */
export const INVITATIONS_MAX = 64;
/** Machines with a credential of a vault. */
export const MEMBERS_MAX = 256;
/** Characters kept of a machine's name. */
export const MACHINE_NAME_CHARS_MAX = 64;
/** Least interval of saving when machines were last seen. */
export const MEMBERS_SAVE_MS = 60_000;
/** The greatest number of a credential's account: two bytes. */
export const ACCOUNTS_MAX = 65_535;
/** Log lines of one kind in a burst, and the time until one more; the others are counted. */
export const LOG_LINES_BURST = 100;
export const LOG_REFILL_MS = 1_000;
/** Kinds of log lines distinguished. */
export const LOG_KINDS_MAX = 512;
/** Causes of shims' refusals that are logged, each once; others are counted. */
export const REFUSALS_SAID_MAX = 256;
