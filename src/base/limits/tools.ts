// Owns the ceilings of commands that inspect a set-up from outside: reaching a vault, measuring it, demos with models.
const GIB = 2 ** 30;

/** Steps before a command reports a vault as unreachable, within 5 s: a hello, then a connection, then its first bytes. */
export const REACH_HELLO_MS = 2_000;
export const REACH_CONNECT_MS = 1_000;
export const REACH_ANSWER_MS = 1_000;
/** Bytes of an answer that are examined. */
export const REACH_BYTES_MAX = 1_024;

/** A vault drops a measuring command's records after this time, renewed by each round, in case the command does not. */
export const MEASURE_LEASE_MS = 300_000;
/** Measuring commands at one vault. */
export const MEASURES_MAX = 64;

/** Timeout of an address's models when a gateway finds engines by itself, and processes searched above an engine's own. */
export const NEIGHBOUR_ANSWER_MS = 1_000;
export const NEIGHBOUR_ANCESTORS_MAX = 3;

// Demo: the model whose answers people read.
/** Characters of the code that the small trained model continues: several blocks, up to the end of a line. */
export const DEMO_READ_CHARS = 859;
/** Tokens of an answer, enough to read; and the longest prompt with answer. */
export const DEMO_READ_TOKENS = 48;
export const DEMO_READ_LEN_MAX = 4_096;
/** A vault that gets no record for this time holds all of a prompt. */
export const DEMO_STILL_MS = 1_000;
/** Longest download of a model, and longest conversion of the package's on two busy cores. */
export const DEMO_FETCH_MS = 60_000;
export const DEMO_CONVERT_MS = 600_000;
/** Weights of a model in the hub's cache that the demo takes: 1.5 billion parameters in bfloat16. */
export const DEMO_HUB_MODEL_BYTES_MAX: number = 4 * GIB;

// Demo: a published model's KV.
/** Its text takes 2.1 GB in engine, arena and vault each; the arena reserves a part for saves, and the vault holds earlier records. */
export const DEMO_REAL_CACHE_GIB = 3;
export const DEMO_REAL_ARENA_BYTES: number = 3 * GIB;
export const DEMO_REAL_VAULT_BYTES: number = 4 * GIB;
/** Memory for all of it, and for the engine's program. */
export const DEMO_REAL_MEMORY_BYTES: number = 12 * GIB;
/** A slow machine uses less of the text, to compute for about this long; at least the warm-up's length. */
export const DEMO_REAL_COLD_MS = 90_000;
export const DEMO_REAL_WARMUP_CHARS = 2_048;

// Fidelity: changes of answers by restored blocks.
export const FIDELITY_PROMPTS_DEFAULT = 50;
export const FIDELITY_PROMPTS_MAX = 1_000;
/** A piece of text has several blocks, whatever the tokenizer. */
export const FIDELITY_PROMPT_CHARS = 1_200;
export const FIDELITY_ANSWER_TOKENS = 16;
/** Prompts between two judgements: a codec that is clearly within or beyond the bound needs no more than a few. */
export const FIDELITY_ROUND_PROMPTS = 8;
/** Prompts that a float32 engine answers at once; in 16 bits, other requests of a step would change the answers. */
export const FIDELITY_AT_ONCE = 4;
/** Time after which no round begins, unless the number of prompts is given. */
export const FIDELITY_JUDGE_MS = 120_000;
/** Time of starting vLLM on a CPU, for the forecast. */
export const FIDELITY_START_MS = 60_000;
/** Prompt with answer, at a token per character, in an engine started for it. */
export const FIDELITY_MODEL_LEN = 2_048;
/** Likeliest tokens: vLLM's default. */
export const FIDELITY_LIKELIEST = 20;
export const FIDELITY_REQUEST_MS = 300_000;
/** Timeout of all saves, polling interval, and polls without news that end the wait. */
export const FIDELITY_SAVE_MS = 300_000;
export const FIDELITY_POLL_MS = 250;
export const FIDELITY_QUIET_POLLS = 4;

// Doctor, of an engine without tierKV: time for computing prompts of doubling length.
export const FAR_PACE_MS = 30_000;
export const FAR_REQUEST_MS = 60_000;
export const FAR_TOKENS_MIN = 256;
/** Tokens of a block, where an engine's metrics do not say. */
export const FAR_BLOCK_TOKENS = 16;
/** Bytes of the request that measures the link, and rounds. */
export const FAR_BYTES = 8_388_608;
export const FAR_ROUNDS = 3;

// Warm: prompts computed in advance.
export const WARM_FILE_BYTES_MAX = 268_435_456;
export const WARM_AT_ONCE_DEFAULT = 4;
export const WARM_AT_ONCE_MAX = 256;

// Bundles: records of a session or a prefix, in a directory or a registry.
/** Registries accept manifests of 4 MiB: layers, and bytes of each unless one record is longer. */
export const BUNDLE_JSON_BYTES_MAX = 4_194_304;
export const BUNDLE_LAYERS_MAX = 12_288;
export const BUNDLE_LAYER_BYTES = 16_777_216;
export const BUNDLE_LAYER_RECORDS = 1_024;
/** Bytes of a layer besides its records. */
export const BUNDLE_LAYER_SPARE = 1_048_576;
/** Timeout of a request to a registry, and characters shown of its answer. */
export const REGISTRY_REQUEST_MS = 600_000;
export const REGISTRY_TEXT_CHARS = 200;
/** Timeout of a registry's credential helper, in ms. */
export const REGISTRY_HELPER_MS = 10_000;

// Plan: forecasts for a vault's size.
/** A config.json is a few kB. */
export const PLAN_CONFIG_BYTES_MAX = 1_048_576;
/** Blocks of one request in a trace: 8 million tokens in Mooncake's blocks. */
export const PLAN_REQUEST_BLOCKS_MAX = 16_384;
export const PLAN_LINE_CHARS_MAX = 1_048_576;
/** Distinct blocks of a trace: about 600 MB of memory. */
export const PLAN_TRACE_BLOCKS_MAX = 4_194_304;
/** Rates in --links: columns of a table. */
export const PLAN_LINKS_MAX = 4;

/** A command that runs longer shows its progress, at this interval. */
export const PROGRESS_AFTER_MS = 2_000;
export const PROGRESS_EVERY_MS = 200;
/** Interval of progress lines where there is no terminal. */
export const PROGRESS_SAY_MS = 5_000;

/** Timeout of a systemctl call: TimeoutStopSec, and a little more. */
export const SERVICE_CALL_MS = 45_000;
