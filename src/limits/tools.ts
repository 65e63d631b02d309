// Owns the ceilings of commands that look at a set-up from outside: reaching a vault, measuring it, showing it with models.
const GIB = 2 ** 30;

/** Everything a command does before it says that a vault cannot be reached fits into 5 s: a hello, then a connection, then its first bytes. */
export const REACH_HELLO_MS = 2_000;
export const REACH_CONNECT_MS = 1_000;
export const REACH_ANSWER_MS = 1_000;
/** Of an answer, this much is looked at. */
export const REACH_BYTES_MAX = 1_024;

/** A vault drops what a measuring command has stored after this time, should the command not do it; each round begins it anew. */
export const MEASURE_LEASE_MS = 300_000;
/** Measuring commands at one vault. */
export const MEASURES_MAX = 64;

/** A gateway that finds engines by itself gives each address this long to say its models, and looks so many processes above an engine's own. */
export const NEIGHBOUR_ANSWER_MS = 1_000;
export const NEIGHBOUR_ANCESTORS_MAX = 3;

// Demo: the trained model.
/** Characters of the text it goes on with: several blocks, up to the end of a line. */
export const DEMO_READ_CHARS = 859;
/** Tokens of the trained model's answers, long enough to be read; and the most it takes with its prompt. */
export const DEMO_READ_TOKENS = 48;
export const DEMO_READ_LEN_MAX = 4_096;

// Demo: a published model's KV.
/** Its text takes 2.1 GB in engine, arena and vault each; an arena keeps a part for saves, the vault what came before. */
export const DEMO_REAL_CACHE_GIB = 3;
export const DEMO_REAL_ARENA_BYTES: number = 3 * GIB;
export const DEMO_REAL_VAULT_BYTES: number = 4 * GIB;
/** All of it, and the engine's program. */
export const DEMO_REAL_MEMORY_BYTES: number = 12 * GIB;
/** A slow machine takes less of the text, so that a person waits about this long; never less than the warm-up. */
export const DEMO_REAL_COLD_MS = 90_000;
export const DEMO_REAL_WARMUP_CHARS = 2_048;

// Fidelity: what restored blocks change in answers.
export const FIDELITY_PROMPTS_DEFAULT = 50;
export const FIDELITY_PROMPTS_MAX = 1_000;
/** A piece of text has several blocks, whatever the tokenizer. */
export const FIDELITY_PROMPT_CHARS = 1_200;
export const FIDELITY_ANSWER_TOKENS = 32;
/** With its answer, at a token for each character; of an engine that is started for it. */
export const FIDELITY_MODEL_LEN = 2_048;
/** As many likeliest tokens as vLLM gives unless told otherwise. */
export const FIDELITY_LIKELIEST = 20;
/** Nats a token, on the mean: what a lossy codec may change. */
export const FIDELITY_KLD_MAX = 1e-4;
export const FIDELITY_REQUEST_MS = 300_000;
/** Saves of all prompts end within this, and are over when so many looks in a row find nothing new. */
export const FIDELITY_SAVE_MS = 300_000;
export const FIDELITY_POLL_MS = 250;
export const FIDELITY_QUIET_POLLS = 4;

// Doctor, of an engine without tierKV: computing prompts of twice as many tokens each ends within this.
export const FAR_PACE_MS = 30_000;
export const FAR_REQUEST_MS = 60_000;
export const FAR_TOKENS_MIN = 256;
/** Of the request that measures the way to it, and of each. */
export const FAR_BYTES = 8_388_608;
export const FAR_ROUNDS = 3;

// Warm: prompts that are computed before anybody asks for them.
export const WARM_FILE_BYTES_MAX = 268_435_456;
export const WARM_AT_ONCE_DEFAULT = 4;
export const WARM_AT_ONCE_MAX = 256;

// Bundles: records of a session or a prefix, in a directory or a registry.
/** Registries take manifests of 4 MiB: so many layers, of so many bytes unless one record is longer. */
export const BUNDLE_JSON_BYTES_MAX = 4_194_304;
export const BUNDLE_LAYERS_MAX = 12_288;
export const BUNDLE_LAYER_BYTES = 16_777_216;
export const BUNDLE_LAYER_RECORDS = 1_024;
/** What a layer has besides its records. */
export const BUNDLE_LAYER_SPARE = 1_048_576;
/** One request to a registry, and its answer's text that is shown. */
export const REGISTRY_REQUEST_MS = 600_000;
export const REGISTRY_TEXT_CHARS = 200;
/** What a program with a registry's credentials may take, in ms. */
export const REGISTRY_HELPER_MS = 10_000;

// Plan: what a vault of some size would hold, and give back.
/** A config.json is a few kB. */
export const PLAN_CONFIG_BYTES_MAX = 1_048_576;
/** Of one request of a trace: 8 million tokens in Mooncake's blocks. */
export const PLAN_REQUEST_BLOCKS_MAX = 16_384;
export const PLAN_LINE_CHARS_MAX = 1_048_576;
/** Different blocks of a trace: about 600 MB of memory. */
export const PLAN_TRACE_BLOCKS_MAX = 4_194_304;
/** Rates that --links takes at once: columns of a table. */
export const PLAN_LINKS_MAX = 4;

/** A command that goes on for longer shows how far it is. */
export const PROGRESS_AFTER_MS = 2_000;
export const PROGRESS_EVERY_MS = 200;

/** systemd waits so long for a process to drain (TimeoutStopSec), and a little more. */
export const SERVICE_CALL_MS = 45_000;
