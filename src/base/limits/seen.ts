// Owns the ceilings of observing a running set-up: `tierkv top`, the page, spans and samples.

/** Least interval of asking a vault for its status, only while a viewer is open. */
export const VAULT_SEEN_MS = 250;
/** Latest restores in a sidecar's status. */
export const RESTORES_SHOWN_MAX = 64;
/** Interval of `tierkv top`: default, and most. */
export const TOP_INTERVAL_S_DEFAULT = 1;
export const TOP_INTERVAL_S_MAX = 3_600;
/** `tierkv top --once` waits this long between two samples, because rates need two. */
export const TOP_ONCE_MS = 1_100;
/** Highest `[ledger] watts`. */
export const LEDGER_WATTS_MAX = 100_000;
/** Update interval of an open page; without viewers, updates per point of its charts. */
export const PAGE_SAMPLE_MS = 1_000;
export const PAGE_IDLE_SAMPLES = 5;
/** Points of the page's charts. */
export const PAGE_POINTS_MAX = 900;
/** Open pages, and connections of all of them. */
export const PAGE_VIEWERS_MAX = 16;
export const PAGE_CONNECTIONS_MAX = 64;
/** Unread bytes at which a slow page is disconnected. */
export const PAGE_BEHIND_BYTES_MAX = 1_048_576;
export const PAGE_HEADER_BYTES_MAX = 8_192;
/** Idle time that ends a connection, except for the page's events. */
export const PAGE_TIMEOUT_MS = 10_000;
/** Requests shown by one click. */
export const PAGE_REQUESTS_MAX = 64;
/** Spans queued for the collector, spans per call, and the time to gather them. */
export const SPANS_QUEUED_MAX = 2_048;
export const SPANS_PER_CALL_MAX = 512;
export const SPANS_GATHER_MS = 1_000;
/** Timeout of a call to the collector, and at the process's end. */
export const SPANS_TIMEOUT_MS = 10_000;
export const SPANS_CLOSE_MS = 1_000;
/** Fewest characters of the page's token. */
export const PAGE_TOKEN_CHARS_MIN = 16;
/** One in this many requested blocks is sampled for its time of reuse; samples kept. */
export const REUSE_SAMPLED_EVERY = 16;
export const REUSE_KEPT_MAX = 32_768;
