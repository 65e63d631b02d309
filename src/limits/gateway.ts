// Owns the limits of the gateway: connections, bodies, waits and retries.

const KIB = 1024;
const MIB = 1024 * KIB;

/** Engines behind one gateway: each is a bit of a number. */
export const GATEWAY_ENGINES_MAX = 32;
/** Client connections; one above that is closed at once. */
export const GATEWAY_CONNECTIONS_MAX = 8_192;
/** Headers of one request. */
export const GATEWAY_HEADER_BYTES_MAX: number = 64 * KIB;
/** Body of one request: it is kept whole until an engine answers, because another engine may have to be asked. */
export const GATEWAY_BODY_BYTES_MAX: number = 32 * MIB;
/** Bodies of all requests together; above that a request is shed. */
export const GATEWAY_BODIES_BYTES_MAX: number = 512 * MIB;
/** From the first byte of a request until its body is whole. */
export const GATEWAY_REQUEST_MS = 60_000;
/** From sending a request to an engine until its answer begins: a long prompt in a long queue. */
export const GATEWAY_ANSWER_MS = 600_000;
/** An engine that sends nothing of an answer it began for this long is given up. */
export const GATEWAY_SILENCE_MS = 300_000;
/** A client that was refused may go on with its body for this long, to read why; nothing of it is kept. */
export const GATEWAY_LINGER_MS = 2_000;
/** A client that takes nothing of its answer for this long is cut off. */
export const GATEWAY_CLIENT_STALL_MS = 60_000;
/** To connect to an engine. */
export const GATEWAY_CONNECT_MS = 2_000;
/** A connection to an engine that lies idle for this long is closed: below the 5 s after which vLLM closes it. */
export const GATEWAY_KEEPALIVE_MS = 2_000;
/** Requests that wait for an engine with room, over all models. */
export const GATEWAY_WAITING_MAX = 1_024;
/** Requests in flight at one engine, unless the configuration says otherwise, and the most it may say. */
export const GATEWAY_IN_FLIGHT_DEFAULT = 256;
export const GATEWAY_IN_FLIGHT_MAX = 65_536;
/** How long a request waits for room, unless the configuration says otherwise, and the most it may say. */
export const GATEWAY_WAIT_MS_DEFAULT = 10_000;
export const GATEWAY_WAIT_MS_MAX = 600_000;
/** What a client that was shed is told to wait. */
export const GATEWAY_RETRY_AFTER_S = 1;
/** Engines that one request tries. */
export const GATEWAY_TRIES_MAX = 3;
/** How often an engine's health is asked, and how long it has to answer. */
export const GATEWAY_HEALTH_MS = 1_000;
export const GATEWAY_HEALTH_TIMEOUT_MS = 5_000;
/** Unanswered questions in a row after which an engine counts as down; a refused connection counts at once. */
export const GATEWAY_HEALTH_FAILURES = 3;
/** How often an engine is asked for its models, in questions for its health. */
export const GATEWAY_MODELS_EVERY = 10;
/** Models of one engine, with adapters, and bytes of its list. */
export const GATEWAY_MODELS_MAX = 1_024;
export const GATEWAY_MODELS_BYTES_MAX: number = 4 * MIB;
/** A gateway that ends finishes open answers for this long. */
export const GATEWAY_DRAIN_MS = 30_000;
/** A command gives a running gateway this long for one answer, and asks again this often. */
export const GATEWAY_CONTROL_MS = 5_000;
export const GATEWAY_CONTROL_POLL_MS = 250;
/** Blocks of which it is known who holds them, over all engines: up to 100 bytes each, 58 once they are full. */
export const GATEWAY_INDEX_BLOCKS_MAX = 2_000_000;
/** One batch of events, and parts of one message. */
export const GATEWAY_EVENT_BYTES_MAX: number = 64 * MIB;
export const GATEWAY_EVENT_FRAMES_MAX = 8;
/** Batches that come while older ones are replayed; one above that is taken for lost. */
export const GATEWAY_EVENTS_PENDING_MAX = 4_096;
/** Until the events of an engine are asked for again; drawn up to twice this. */
export const GATEWAY_EVENTS_RETRY_MS = 1_000;
/** For all that an engine kept: 10,000 batches. */
export const GATEWAY_REPLAY_MS = 30_000;
/** Reasons of failed replays that one engine's log tells of, until one ends well. */
export const GATEWAY_REPLAY_REASONS_MAX = 8;
/** How long an engine is believed to hold what was just sent to it, until its events say so. */
export const GATEWAY_SPECULATION_MS = 2_000;
/** Shorter texts are not turned into tokens: computing them anew costs less than asking. */
export const GATEWAY_TOKENIZE_CHARS_MIN = 512;
/** What turning one prompt into tokens may take, unless the configuration says otherwise; then the engine is chosen without. */
export const GATEWAY_TOKENIZE_MS = 500;
/** An engine's answer with the tokens of one prompt. */
export const GATEWAY_TOKENS_BYTES_MAX: number = 16 * MIB;
/** Tokens of prompts that are kept in case the same prompt comes again. */
export const GATEWAY_TOKENS_KEPT_MAX = 4_000_000;
/** Tokens of a block whose hash is made here: above that a pickle has several frames. */
export const GATEWAY_HASH_BLOCK_TOKENS_MAX = 8_192;
/** Hashes of a prompt that are made before others are served: less than a millisecond. */
export const GATEWAY_HASHES_PER_SLICE = 256;
/** Blocks of an event that begins a prompt whose hashes are made anew, and of so many such events one. */
export const GATEWAY_HASHES_CHECKED = 2;
export const GATEWAY_HASH_CHECK_EVERY = 16;
/** Until the form of an engine's hashes is known, those of a prompt on its way there are made this often, and so many kept. */
export const GATEWAY_HASHES_EXPECT_MS = 1_000;
export const GATEWAY_HASHES_EXPECTED_MAX = 65_536;
/** Shards of a block: ranks of an engine. */
export const GATEWAY_SHARDS_MAX = 1_024;
/** How long a decision waits for what vaults hold, unless the configuration says otherwise, and the most it may say. */
export const GATEWAY_LOOKUP_MS_DEFAULT = 5;
export const GATEWAY_LOOKUP_MS_MAX = 1_000;
/** A vault has this long to answer: what comes later than a decision is for the next one. */
export const GATEWAY_LOOKUP_CALL_MS = 1_000;
/** Tokens that nobody is known to hold from which on vaults are asked, and blocks of one prompt that they are asked for. */
export const GATEWAY_LOOKUP_TOKENS_MIN = 256;
export const GATEWAY_LOOKUP_BLOCKS_MAX = 8_192;
/** Keys of one question: shards and groups of these blocks. */
export const GATEWAY_LOOKUP_KEYS_MAX = 65_536;
/** Questions that vaults have not answered, and vaults that are asked. */
export const GATEWAY_LOOKUPS_MAX = 64;
export const GATEWAY_LOOKUP_VAULTS_MAX = 64;
/** A vault that may not be asked, because this machine's credentials for it cannot be read, is tried again so often. */
export const GATEWAY_VAULT_RETRY_MS = 10_000;
/** The same is not asked again before this; so many questions are remembered. */
export const GATEWAY_LOOKUP_AGAIN_MS = 5_000;
export const GATEWAY_LOOKUPS_KEPT_MAX = 4_096;
/** How long a vault is believed to hold what it said, and blocks of that. */
export const GATEWAY_FOUND_MS = 30_000;
export const GATEWAY_FOUND_BLOCKS_MAX = 131_072;
/** Tokenizers that the gateway holds open, each with the memory of its vocabulary. */
export const GATEWAY_TOKENIZERS_MAX = 16;
/** One whose model no prompt names for this long is closed, at the latest after twice this; above the longest `tokenize_ms`. */
export const GATEWAY_TOKENIZER_IDLE_MS = 900_000;
/** Until a folder that could not be opened is tried again: doubles from the first to the second; and such folders that are remembered. */
export const GATEWAY_FOLDER_RETRY_MIN_MS = 1_000;
export const GATEWAY_FOLDER_RETRY_MAX_MS = 300_000;
export const GATEWAY_FOLDERS_FAILED_MAX = 256;
/** Texts that it turns into tokens at once: two of the four threads that Node has for files and names; and those that wait. */
export const GATEWAY_ENCODES_AT_ONCE = 2;
export const GATEWAY_ENCODES_WAITING_MAX = 1_024;
/** A longer text the engine is asked for: each character takes up to 350 bytes of memory while it becomes tokens. */
export const GATEWAY_ENCODE_CHARS_MAX: number = MIB;
/** Messages of a chat, and values in its tools or for its template, beyond which the engine renders it: while it is rendered here, nobody else is served. */
export const GATEWAY_CHAT_MESSAGES_MAX = 256;
export const GATEWAY_CHAT_VALUES_MAX = 4_096;
/** Whether an engine makes the same tokens: one question of that, until it is asked again when it did not answer, and special tokens in it. */
export const GATEWAY_PROBE_MS = 5_000;
export const GATEWAY_PROBE_RETRY_MS = 30_000;
export const GATEWAY_PROBE_MARKS_MAX = 64;
/** A tokenizer_config.json, or a chat template. */
export const GATEWAY_TOKENIZER_CONFIG_BYTES_MAX: number = 16 * MIB;
/** Predictions this close to the best, relative and absolute, are the same: they are not that good. */
export const GATEWAY_TIE_SHARE = 0.1;
export const GATEWAY_TIE_MS = 2;
/** Connections to an engine besides those of requests: for turning prompts into tokens. */
export const GATEWAY_SIDE_CONNECTIONS = 16;
/** Before an engine's own pace is known. */
export const GATEWAY_PREFILL_TOKENS_PER_S = 10_000;
/** Before an engine's pulls from vaults are known: this, and this share of what computing the same tokens takes. */
export const GATEWAY_PULL_MS_MIN = 1;
export const GATEWAY_PULL_SHARE = 0.5;
/** API keys of the gateway, and characters of a name or tenant. */
export const GATEWAY_KEYS_MAX = 2_048;
export const GATEWAY_KEY_WORD_CHARS_MAX = 64;
/** The most that a key's line may allow of each, and what an answer counts for at most until it has ended. */
export const GATEWAY_KEY_LIMIT_MAX = 1_000_000_000;
export const GATEWAY_ANSWER_TOKENS_MAX = 1_000_000;
/** To ask every engine once, also one that takes a connection and says nothing, and to listen. */
export const GATEWAY_START_MS = 30_000;
/** Fewest tokens that an engine computes for another one, unless the configuration says otherwise, and the most it may say. */
export const GATEWAY_PREFILL_TOKENS_DEFAULT = 2_048;
export const GATEWAY_PREFILL_TOKENS_MAX = 10_000_000;
/** The answer of an engine that computed a prompt for another one. */
export const GATEWAY_HANDOFF_BYTES_MAX: number = MIB;
/** An engine that computed a prompt and handed nothing over is not asked again for so long. */
export const GATEWAY_HANDOFF_RETRY_MS = 30_000;
/** Decisions that `tierkv gateway explain` can show, and characters of a request's id in them. */
export const GATEWAY_DECISIONS_KEPT_MAX = 1_024;
export const GATEWAY_REQUEST_ID_CHARS_MAX = 128;
/** Those that it shows where no request is named. */
export const GATEWAY_DECISIONS_SHOWN = 10;
/** How often a name of engines is resolved again. */
export const GATEWAY_DISCOVER_MS = 5_000;
/** How long that may take. */
export const GATEWAY_RESOLVE_MS = 10_000;
/** One event of an engine's stream, where the gateway reads it: for `/generate`. */
export const GATEWAY_EVENT_TEXT_MAX: number = MIB;
/** A body goes back to Envoy in pieces of this: below the 64 KiB after which it stops to read. */
export const GATEWAY_PIECE_BYTES: number = 62 * KIB;
/** How often the index is saved for the next gateway, blocks written at a time, and bytes of the file: all blocks, and what engines are told by. */
export const GATEWAY_SAVE_MS = 60_000;
export const GATEWAY_SAVED_CHUNK = 8_192;
export const GATEWAY_SAVED_BYTES_MAX: number = 16 * GATEWAY_INDEX_BLOCKS_MAX + 4 * MIB;
/** A key that sent nothing for so long has no share of what waits; keys that are remembered. */
export const GATEWAY_FAIR_MS = 10_000;
export const GATEWAY_FAIR_KEYS_MAX = 2_048;
/** Of `ttft_ms`: what a request may take that may be shed, and one whose key has more than its share. */
export const GATEWAY_SHED_SHARE = 0.5;
/** Objectives with a priority, and the highest and lowest of these. */
export const GATEWAY_OBJECTIVES_MAX = 64;
export const GATEWAY_PRIORITY_MAX = 1_000;
/** Blocks that come to an engine until what went before counts half. */
export const GATEWAY_PRESSURE_BLOCKS = 4_096;
/** Prompts that an engine computed until its own times are taken for it, instead of those of all. */
export const GATEWAY_PREFILL_SAMPLES = 32;

/** Of what a client sent, in a refusal. */
export const GATEWAY_SHOWN_CHARS_MAX = 100;
