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
/** The page is brought up to date so often while somebody looks; its charts get a point in every so many of these otherwise. */
export const PAGE_SAMPLE_MS = 1_000;
export const PAGE_IDLE_SAMPLES = 5;
/** Points of the page's charts: what it shows of the past. */
export const PAGE_POINTS_MAX = 900;
/** Pages that are open at a time, and connections of all of them. */
export const PAGE_VIEWERS_MAX = 16;
export const PAGE_CONNECTIONS_MAX = 64;
/** A page that reads so slowly that this much waits for it is cut off. */
export const PAGE_BEHIND_BYTES_MAX = 1_048_576;
export const PAGE_HEADER_BYTES_MAX = 8_192;
/** A connection that asks nothing for so long ends; that of a page's events does not ask. */
export const PAGE_TIMEOUT_MS = 10_000;
/** Requests that one click shows. */
export const PAGE_REQUESTS_MAX = 64;
/** Spans that wait for the collector, those that one call takes, and how long they wait for others. */
export const SPANS_QUEUED_MAX = 2_048;
export const SPANS_PER_CALL_MAX = 512;
export const SPANS_GATHER_MS = 1_000;
/** A collector that answers no sooner has not taken them; at the sidecar's end it gets less. */
export const SPANS_TIMEOUT_MS = 10_000;
export const SPANS_CLOSE_MS = 1_000;
/** A token of the page: what cannot be guessed. */
export const PAGE_TOKEN_CHARS_MIN = 16;
/** Of the blocks that are asked for, one in so many is remembered to see when it is asked for again; so many are. */
export const REUSE_SAMPLED_EVERY = 16;
export const REUSE_KEPT_MAX = 32_768;
