// Owns the limits of the gateway: connections, bodies, waits and retries.

const KIB = 1024;
const MIB = 1024 * KIB;

/** Engines behind one gateway. */
export const GATEWAY_ENGINES_MAX = 256;
/** Data-parallel ranks of one engine whose events are followed; each has a publisher and a cache of its own. */
export const GATEWAY_RANKS_MAX = 64;
/** Pause before asking an engine again how many ranks it has, and time for its answer. */
export const GATEWAY_RANKS_RETRY_MS = 1_000;
export const GATEWAY_RANKS_MS = 5_000;
/** How long the events of an engine that left are still followed, for its return; and such engines. */
export const GATEWAY_PARKED_MS = 600_000;
export const GATEWAY_PARKED_MAX = 64;
/** Engines beyond that number of which each is logged. */
export const GATEWAY_LEFT_OUT_MAX = 1_024;
/** Client connections; a further one is closed at once. */
export const GATEWAY_CONNECTIONS_MAX = 8_192;
/** Headers of one request. */
export const GATEWAY_HEADER_BYTES_MAX: number = 64 * KIB;
/** Body of one request, kept whole until an engine answers, for a retry at another. */
export const GATEWAY_BODY_BYTES_MAX: number = 32 * MIB;
/** Texts, lists and objects in a JSON body, because parsing millions takes seconds and gigabytes. */
export const GATEWAY_BODY_PARTS_MAX = 250_000;
/** Memory of the bodies of all requests together, on a machine with plenty; above that a request is shed. */
export const GATEWAY_BODIES_BYTES_MAX: number = 2048 * MIB;
/** From the first byte of a request until its body is whole. */
export const GATEWAY_REQUEST_MS = 60_000;
/** Silence of a stream that has not begun after which its client gets a comment, and between comments. */
export const GATEWAY_COMMENT_MS = 15_000;
/** Answers of `/v1/responses` for which the gateway remembers the engine that holds them. */
export const GATEWAY_RESPONSES_KEPT_MAX = 65_536;
/** The file of them: twice as many lines, each with an id, an engine and a tenant. */
export const GATEWAY_RESPONSES_BYTES_MAX: number = 64 * MIB;
/** Characters of a model's name in a form, and bytes of one part's head. */
export const GATEWAY_FORM_MODEL_CHARS_MAX = 1_024;
/** Share of this process's memory that request bodies may take; a body is held GATEWAY_BODY_COPIES times: bytes, text, values. */
export const GATEWAY_BODIES_SHARE = 0.4;
export const GATEWAY_BODY_COPIES = 3;
/** A body up to this length is kept until its answer ends, because letting it go earlier costs more time. */
export const GATEWAY_BODY_KEPT_BYTES: number = 16 * KIB;
/** A refused client may go on sending its body for this long, to read the reason; the body is discarded. */
export const GATEWAY_LINGER_MS = 2_000;
/** A client that reads nothing of its answer for this long is disconnected. */
export const GATEWAY_CLIENT_STALL_MS = 60_000;
/** Time to connect to an engine. */
export const GATEWAY_CONNECT_MS = 2_000;
/** An idle connection to an engine is closed after this time, below vLLM's own 5 s. */
export const GATEWAY_KEEPALIVE_MS = 2_000;
/** Requests that wait for an engine with room, over all models. */
export const GATEWAY_WAITING_MAX = 1_024;
/** Requests in flight at one engine: default, and most in the configuration. */
export const GATEWAY_IN_FLIGHT_DEFAULT = 256;
export const GATEWAY_IN_FLIGHT_MAX = 65_536;
/** How long a request waits for room: default, and most in the configuration. */
export const GATEWAY_WAIT_MS_DEFAULT = 10_000;
export const GATEWAY_WAIT_MS_MAX = 600_000;
/** Retry-After of a shed request. */
export const GATEWAY_RETRY_AFTER_S = 1;
/** Attempts at engines for one request. */
export const GATEWAY_TRIES_MAX = 3;
/** Engines that one request may lose before its first byte and still be sent to another. */
export const GATEWAY_LOSSES_MAX = 1;
/** Interval and timeout of an engine's health checks. */
export const GATEWAY_HEALTH_MS = 1_000;
export const GATEWAY_HEALTH_TIMEOUT_MS = 5_000;
/** Timeout of asking an engine in use whether it is paused or asleep: its core answers between two steps. */
export const GATEWAY_PAUSE_TIMEOUT_MS = 1_000;
/** Consecutive unanswered health checks after which an engine is down; a refused connection counts at once. */
export const GATEWAY_HEALTH_FAILURES = 3;
/** An engine counts as down if requests wait there and it shows no progress for this time, or for 4 times the predicted first token if longer. */
export const GATEWAY_STALL_MS = 60_000;
export const GATEWAY_STALL_FACTOR = 4;
/** Health checks per query of an engine's models. */
export const GATEWAY_MODELS_EVERY = 10;
/** Models of one engine, with adapters, and bytes of its list. */
export const GATEWAY_MODELS_MAX = 1_024;
export const GATEWAY_MODELS_BYTES_MAX: number = 4 * MIB;
/** Time to finish open answers after the last request is taken: default, and most in the configuration. */
export const GATEWAY_DRAIN_MS_DEFAULT = 30_000;
export const GATEWAY_DRAIN_MS_MAX = 3_600_000;
/** Most in the configuration for how long requests are taken after a signal. */
export const GATEWAY_LEAVE_MS_MAX = 600_000;
/** Time to close the rest, such as to save the index, after the last answer. */
export const GATEWAY_END_MS = 10_000;
/** Answers cut at the end of which each is named in the log. */
export const GATEWAY_CUT_SHOWN = 16;
/** A command's timeout for one answer of a running gateway, and its polling interval. */
export const GATEWAY_CONTROL_MS = 5_000;
export const GATEWAY_CONTROL_POLL_MS = 250;
/** Blocks in the index, over all engines, once for each group that holds them. */
export const GATEWAY_INDEX_BLOCKS_MAX = 4_000_000;
/** One batch of events, and parts of one message. */
export const GATEWAY_EVENT_BYTES_MAX: number = 64 * MIB;
export const GATEWAY_EVENT_FRAMES_MAX = 8;
/** Batches queued during a replay of older ones; a further one counts as lost. */
export const GATEWAY_EVENTS_PENDING_MAX = 4_096;
/** Pause before subscribing to an engine's events again: random, up to twice this. */
export const GATEWAY_EVENTS_RETRY_MS = 1_000;
/** Silence of an engine's events after which the system probes whether its machine is still there. */
export const GATEWAY_EVENTS_KEEPALIVE_MS = 10_000;
/** Silence of a replay after which the rest is requested again. */
export const GATEWAY_REPLAY_SILENCE_MS = 300;
/** Time without progress after which a replay of an engine's batches is given up. */
export const GATEWAY_REPLAY_MS = 30_000;
/** Reasons of failed replays logged per engine, until a replay succeeds. */
export const GATEWAY_REPLAY_REASONS_MAX = 8;
/** How long an engine counts as holding a prompt just sent to it, until its events confirm it. */
export const GATEWAY_SPECULATION_MS = 2_000;
/** Shorter texts are not tokenized, because computing them costs less. */
export const GATEWAY_TOKENIZE_CHARS_MIN = 512;
/** Default time to tokenize a prompt; after it the engine is chosen without tokens. */
export const GATEWAY_TOKENIZE_MS = 500;
/** An engine's answer with the tokens of one prompt. */
export const GATEWAY_TOKENS_BYTES_MAX: number = 16 * MIB;
/** Cached tokens of prompts, for repeated ones: a retry, or choices of one prompt. */
export const GATEWAY_TOKENS_KEPT_MAX = 1_000_000;
/** Tokens of a block whose hash is made here: above that a pickle has several frames. */
export const GATEWAY_HASH_BLOCK_TOKENS_MAX = 8_192;
/** Hashes of a prompt computed before other requests get their turn: less than 1 ms. */
export const GATEWAY_HASHES_PER_SLICE = 2_048;
/** Events that begin a prompt, of which one is checked by making its hashes again. */
export const GATEWAY_HASH_CHECK_EVERY = 16;
/** Prompts hashed in each such interval for an engine whose form of hashes is unknown. */
export const GATEWAY_HASHES_EXPECT_MOST = 32;
export const GATEWAY_HASHES_EXPECT_MS = 1_000;
/** How long a decision waits for vaults' look-ups: default, and most in the configuration. */
export const GATEWAY_LOOKUP_MS_DEFAULT = 5;
export const GATEWAY_LOOKUP_MS_MAX = 1_000;
/** Timeout of a vault's look-up: an answer after the decision serves the next one. */
export const GATEWAY_LOOKUP_CALL_MS = 1_000;
/** Fewest tokens not known to be held for which vaults are asked, and most blocks of one prompt. */
export const GATEWAY_LOOKUP_TOKENS_MIN = 256;
export const GATEWAY_LOOKUP_BLOCKS_MAX = 8_192;
/** Keys of one look-up: shards and groups of these blocks. */
export const GATEWAY_LOOKUP_KEYS_MAX = 65_536;
/** Look-ups in flight, and vaults asked. */
export const GATEWAY_LOOKUPS_MAX = 64;
export const GATEWAY_LOOKUP_VAULTS_MAX = 64;
/** Pause before retrying a vault whose credentials on this machine cannot be read. */
export const GATEWAY_VAULT_RETRY_MS = 10_000;
/** Time before the same look-up is repeated, and look-ups remembered. */
export const GATEWAY_LOOKUP_AGAIN_MS = 5_000;
export const GATEWAY_LOOKUPS_KEPT_MAX = 4_096;
/** How long a vault's answer counts, and blocks remembered. */
export const GATEWAY_FOUND_MS = 30_000;
export const GATEWAY_FOUND_BLOCKS_MAX = 131_072;
/** Tokenizers that the gateway holds open, each with the memory of its vocabulary. */
export const GATEWAY_TOKENIZERS_MAX = 16;
/** A tokenizer unused for this long is closed, at the latest after twice this; above the longest `tokenize_ms`. */
export const GATEWAY_TOKENIZER_IDLE_MS = 900_000;
/** Pause before retrying a folder that could not be opened, doubling from least to most; and such folders remembered. */
export const GATEWAY_FOLDER_RETRY_MIN_MS = 1_000;
export const GATEWAY_FOLDER_RETRY_MAX_MS = 300_000;
export const GATEWAY_FOLDERS_FAILED_MAX = 256;
/** Texts tokenized at once: two of Node's four threads for files and names; and texts waiting. */
export const GATEWAY_ENCODES_AT_ONCE = 2;
export const GATEWAY_ENCODES_WAITING_MAX = 1_024;
/** The engine tokenizes longer texts, because each character takes up to 350 bytes of memory here. */
export const GATEWAY_ENCODE_CHARS_MAX: number = MIB;
/** Messages of a chat, and values in its tools or template, beyond which the engine renders it, because rendering blocks all other requests. */
export const GATEWAY_CHAT_MESSAGES_MAX = 256;
export const GATEWAY_CHAT_VALUES_MAX = 4_096;
/** Check that an engine makes the same tokens: timeout, pause before a retry, and special tokens in it. */
export const GATEWAY_PROBE_MS = 5_000;
export const GATEWAY_PROBE_RETRY_MS = 30_000;
export const GATEWAY_PROBE_MARKS_MAX = 64;
/** A tokenizer_config.json, or a chat template. */
export const GATEWAY_TOKENIZER_CONFIG_BYTES_MAX: number = 16 * MIB;
/** Predictions this close to the best, relative and absolute, count as equal, because they are inexact. */
export const GATEWAY_TIE_SHARE = 0.1;
export const GATEWAY_TIE_MS = 2;
/** Connections to an engine for tokenizing, besides those of requests. */
export const GATEWAY_SIDE_CONNECTIONS = 16;
/** Prefill rate assumed before an engine's own is known. */
export const GATEWAY_PREFILL_TOKENS_PER_S = 10_000;
/** Pull time assumed before an engine's own is known: this, and this share of computing the same tokens. */
export const GATEWAY_PULL_MS_MIN = 1;
export const GATEWAY_PULL_SHARE = 0.5;
/** API keys of the gateway, and characters of a name or tenant. */
export const GATEWAY_KEYS_MAX = 2_048;
export const GATEWAY_KEY_WORD_CHARS_MAX = 64;
/** Highest limit in a key's line, and tokens that an unfinished answer counts for at most. */
export const GATEWAY_KEY_LIMIT_MAX = 1_000_000_000;
export const GATEWAY_ANSWER_TOKENS_MAX = 1_000_000;
/** Memory for new objects of JavaScript, beyond which it does not grow: at most twice as much. */
export const GATEWAY_YOUNG_BYTES: number = 8 * MIB;
/** Time to start: every engine is queried once, even a silent one. */
export const GATEWAY_START_MS = 30_000;
/** Fewest tokens that an engine computes for another: default, and most in the configuration. */
export const GATEWAY_PREFILL_TOKENS_DEFAULT = 2_048;
export const GATEWAY_PREFILL_TOKENS_MAX = 10_000_000;
/** The answer of an engine that computed a prompt for another one. */
export const GATEWAY_HANDOFF_BYTES_MAX: number = MIB;
/** Pause after an engine computed a prompt without handing it over. */
export const GATEWAY_HANDOFF_RETRY_MS = 30_000;
/** Decisions kept for `tierkv gateway explain`, and characters of a request's id in them. */
export const GATEWAY_DECISIONS_KEPT_MAX = 1_024;
export const GATEWAY_REQUEST_ID_CHARS_MAX = 128;
/** Decisions shown where no request is named. */
export const GATEWAY_DECISIONS_SHOWN = 10;
/** Interval of resolving a name of engines. */
export const GATEWAY_DISCOVER_MS = 5_000;
/** A starting gateway's wait for the first list of engines; it serves without the list afterwards. */
export const GATEWAY_DISCOVER_FIRST_MS = 1_000;
/** Timeout of resolving it. */
export const GATEWAY_RESOLVE_MS = 10_000;
/** One event of an engine's stream, where the gateway reads it: for `/generate`. */
export const GATEWAY_EVENT_TEXT_MAX: number = MIB;
/** Pieces of a body sent back to Envoy: below the 64 KiB after which it stops reading. */
export const GATEWAY_PIECE_BYTES: number = 62 * KIB;
/** Interval of saving the index, bytes written at a time, and bytes of the file: blocks with names, and engines' entries. */
export const GATEWAY_SAVE_MS = 60_000;
export const GATEWAY_SAVED_CHUNK: number = 256 * KIB;
export const GATEWAY_SAVED_BYTES_MAX: number = 32 * GATEWAY_INDEX_BLOCKS_MAX + 4 * MIB;
/** A key idle for this long has no share of the queue; keys remembered. */
export const GATEWAY_FAIR_MS = 10_000;
export const GATEWAY_FAIR_KEYS_MAX = 2_048;
/** Share of `ttft_ms` for a request that may be shed, or whose key exceeds its share. */
export const GATEWAY_SHED_SHARE = 0.5;
/** Objectives with a priority, and the largest absolute priority. */
export const GATEWAY_OBJECTIVES_MAX = 64;
export const GATEWAY_PRIORITY_MAX = 1_000;
/** Computed prompts after which an engine's own times replace those of all. */
export const GATEWAY_PREFILL_SAMPLES = 32;

/** Characters of a client's input shown in a refusal. */
export const GATEWAY_SHOWN_CHARS_MAX = 100;
