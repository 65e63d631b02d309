// Owns every limit of the TypeScript side: sizes, counts and waits, each a named constant with its reason.

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

// Versions.
/** Versions of the calls between sidecar and vault: the first and the last that this release supports. */
export const PROTOCOL_MIN = 1;
export const PROTOCOL_MAX = 1;

// Bytes on the wire.
/** One record; larger records are refused when offered. */
export const RECORD_BYTES_MAX: number = 256 * MIB;
/** One gRPC message; the gRPC default, so that any client can talk to a vault. */
export const MESSAGE_BYTES_MAX: number = 4 * MIB;
/** HTTP/2 receive window of a client. */
export const FLOW_WINDOW_BYTES: number = 4 * MIB;
/** Share of a vault's budget that arriving records may reserve (at least one of the largest). */
export const RESERVED_SHARE_MAX = 0.5;
/** One frame of the local socket: keys and slot numbers only, payload lies in the arena. */
export const FRAME_BYTES_MAX: number = 4 * MIB;

// Counts.
/** Keys of one Lookup: a 64k-token prompt in blocks of 16. */
export const KEYS_MAX = 4096;
/** Connections of engines to one sidecar: an engine has one for its scheduler and one for each worker. */
export const SHIM_CONNECTIONS_MAX = 256;
/** Streams one vault serves to one connection at the same time. */
export const STREAMS_MAX = 100;
/** Connections one vault holds open, lanes and gRPC. */
export const VAULT_CONNECTIONS_MAX = 768;
/** Connections of one address: half, so that no address locks out all others. */
export const VAULT_PEER_CONNECTIONS_MAX = 384;
/** Connections waiting for admission, of unknown addresses, and as many of addresses admitted before. */
export const VAULT_WAITING_MAX = 256;
/** Waiting connections of one address: a further one replaces the oldest. */
export const VAULT_PEER_WAITING_MAX = 128;
/** Interval of checking connections, and bytes that one may send in it outside of calls. */
export const CONNECTION_SWEEP_MS = 500;
export const CONNECTION_IDLE_BYTES_MAX: number = 64 * KIB;
/** Streamed calls one vault serves at the same time, over all connections. */
export const VAULT_STREAMS_MAX = 256;
/** Calls one client has open to one vault at the same time; below STREAMS_MAX, so that none waits inside HTTP/2. */
export const CLIENT_CALLS_MAX = 64;
/** Keys of one Report, which reads and checks each record. */
export const REPORT_KEYS_MAX = 64;
/** Namespaces whose model a vault remembers. */
export const VAULT_MODELS_MAX = 4096;
/** Names of one namespace's model that a vault remembers: engines may be given one model under several. */
export const MODEL_NAMES_MAX = 4;
/** Counter names of one process, so that a peer cannot grow the table with new names. */
export const COUNTER_NAMES_MAX = 512;
/** KV-cache groups of one engine. */
export const GROUPS_MAX = 64;
/** Worker ranks of one engine. */
export const WORLD_MAX = 64;

// Waits, in ms.
/** A new connection must say hello within this time. */
export const HELLO_TIMEOUT_MS = 2_000;
/** Default deadline of a unary call to a vault. */
export const CALL_TIMEOUT_MS = 2_000;
/** A call without its first message for this long is ended. */
export const CALL_IDLE_MS = 10_000;
/** A vault ends any streamed call after this time, regardless of the client's deadline. */
export const STREAM_MS_MAX = 300_000;
/** Interval and timeout of pings, which detect a dead peer, and end a flooding connection that HTTP/2 has only stopped. */
export const KEEPALIVE_TIME_MS = 10_000;
export const KEEPALIVE_TIMEOUT_MS = 5_000;
/** Pause between two connection attempts, first and last. */
export const RECONNECT_MIN_MS = 100;
export const RECONNECT_MAX_MS = 1_000;
/** Retries at one vault: the budget when its lanes break, and its refill by answers and by time. */
export const RETRY_TOKENS_MAX = 32;
export const RETRY_TOKENS_PER_ANSWER = 0.1;
export const RETRY_TOKENS_PER_S = 1;
/** A vault counts as down after this many failures in a row. */
export const BREAKER_FAILURES = 2;
/** A call with less time, in ms, says nothing of the vault when it is late, because its caller was in a hurry. */
export const BREAKER_LATE_MS = 100;
/** Pause before a vault that is down is probed again: random between the two. */
export const PROBE_MIN_MS = 500;
export const PROBE_MAX_MS = 2_000;
/** A stopping vault finishes open calls for this long; below DRAIN_TIMEOUT_MS of the process. */
export const VAULT_DRAIN_MS = 4_000;
/** One named start step. */
export const START_STEP_TIMEOUT_MS = 10_000;
/** A stopping process finishes its work for at most this time. */
export const DRAIN_TIMEOUT_MS = 5_000;
/** `tierkv status` gives each target this long. */
export const STATUS_TIMEOUT_MS = 2_000;
/** Timed calls of `tierkv status` per target. */
export const STATUS_SAMPLES = 10;
/** `tierkv flush` gives a vault this long: freeing many records takes a while. */
export const FLUSH_TIMEOUT_MS = 30_000;
/** A flush waits this long for connected sidecars to confirm that they dropped their blocks. */
export const FLUSH_CONFIRM_MS = 5_000;
/** Flushes a vault remembers for absent sidecars; a sidecar that missed more drops all its blocks. */
export const FLUSHES_KEPT_MAX = 256;
/** Flushed namespaces in one answer to a returning sidecar; a sidecar that missed more drops all its blocks. */
export const FLUSH_NAMESPACES_TOLD_MAX = 4_096;
/** A vault holds a sidecar's call for flushes this long; then the sidecar repeats it. */
export const WATCH_HOLD_MS = 20_000;
/** Timeout of that call: longer than a working vault holds it. */
export const WATCH_TIMEOUT_MS = 30_000;
/** Pause before a sidecar repeats a failed call: random, up to twice this. */
export const WATCH_PAUSE_MS = 500;
/** An ending sidecar waits this long to tell a vault so. */
export const FLUSH_LEAVE_MS = 500;
/** Sidecars that a vault notifies of flushes; a sidecar counts once for each class of records. */
export const WATCHERS_MAX = 1_024;
/** A sidecar silent for a day is forgotten, because its arena will not return. */
export const WATCHERS_FORGET_MS = 86_400_000;
/** Stands for a record's last known flush: the record is new, not made from stored blocks. */
export const MADE_NOW: number = Number.MAX_SAFE_INTEGER;

// `tierkv bench`.
/** One call, even on a slow link. */
export const BENCH_CALL_MS = 60_000;
/** Timed empty calls and look-ups; of a bucket, look-ups. */
export const BENCH_SAMPLES = 50;
export const BENCH_BUCKET_SAMPLES = 3;
/** Keys of one look-up: a prompt of 32,000 tokens in blocks of 16. */
export const BENCH_LOOKUP_KEYS = 2000;
/** Plain bytes travel in chunks of this length; `LANE_CHUNK_BYTES` of the core. */
export const PROBE_CHUNK_BYTES: number = 1 * MIB;
/** Chunks sent to choose the size of a round, and most chunks of a round. */
export const BENCH_PROBE_CHUNKS = 8;
export const BENCH_PROBE_CHUNKS_MAX = 256;
/** Plain bytes sent in this time make one round, up to `--bytes`. */
export const BENCH_ROUND_MS = 1_000;
export const BENCH_BYTES_DEFAULT: number = 128 * MIB;
export const BENCH_BYTES_MAX: number = 1 * GIB;
export const BENCH_ROUNDS_DEFAULT = 5;
export const BENCH_ROUNDS_MAX = 100;
/** Seconds after which a Valkey expires the records of a bench. */
export const BENCH_STORE_TTL_S = 600;
/** Share of a vault's memory that a round may take, so that little is evicted. */
export const BENCH_VAULT_SHARE = 0.125;
/** The prompt whose restore is estimated, and the KV of one token: 36 layers, 8 KV heads of 128, bf16. */
export const BENCH_TOKENS_DEFAULT = 32_768;
export const BENCH_TOKEN_BYTES_DEFAULT = 147_456;

// Lanes: connections on which records travel; their own limits stand in crates/core/src/limits.rs.
/** Lanes to one vault. Fetches use up to one per processor, stores up to LANES_STORING_MAX. */
export const LANES_DEFAULT = 4;
export const LANES_MAX = 8;
/** Memory unused by a vault's records for this long goes back to the system. */
export const SPARE_TRIM_MS = 10_000;
/** A vault's rates cover about this time, and are sampled at this interval. */
export const RATE_SPAN_MS = 10_000;
export const RATE_SAMPLE_MS = 1_000;
/** Interval of checks whether a vault's disk fails. */
export const DISK_WATCH_MS = 500;
/** A first call waits this long for opening lanes; a refused connection fails at once. */
export const LANES_OPEN_WAIT_MS = 500;
/** Broken lanes that had worked are reopened after this time, jittered down to half, so that a fetch resumes before it counts as stalled. */
export const LANES_AGAIN_MS = 50;
/** A request waits this long for lanes that broke. */
export const LANES_BACK_MS = 2_000;
/** Failed attempts in a row after which no request waits for lanes, and the vault counts as down for records. */
export const LANES_FAILURES_MAX = 3;
/** Pause before other broken lanes are reopened: the first and the longest, each jittered down to half. */
export const LANES_PAUSE_MIN_MS = 1_000;
export const LANES_PAUSE_MAX_MS = 60_000;
/** Addresses of one vault that its lanes are spread over; at least two lanes each. */
export const RAILS_MAX = 4;
/** An address that accepts no connection within this time counts as down. */
export const RAIL_REACH_MS = 500;
/** Pause before an address that is down is retried: the first and the longest. */
export const RAIL_PAUSE_MIN_MS = 2_000;
export const RAIL_PAUSE_MAX_MS = 120_000;
/** Lanes move to returned addresses while idle; after the first time requests wait for that, at most the second. */
export const RAIL_JOIN_MS = 10_000;
export const RAIL_HOLD_MS = 1_000;
/** Polling interval for the end of a listener's last requests. */
export const LISTENER_POLL_MS = 20;

// Configuration.
/** A configuration file; a larger one is refused. */
export const CONFIG_FILE_BYTES_MAX: number = 1 * MIB;
/** Memory of a vault, least and most. */
export const VAULT_BYTES_MIN: number = 16 * MIB;
export const VAULT_BYTES_MAX: number = 65_536 * GIB;
/** A vault's directory, least (eight segments of 8 MiB) and most. */
export const DISK_BYTES_MIN: number = 64 * MIB;
export const DISK_BYTES_MAX: number = 65_536 * GIB;
/** An archive: most bytes, default as a multiple of the disk's, and how long a record waits for it. */
export const ARCHIVE_BYTES_MAX: number = 1_048_576 * GIB;
export const ARCHIVE_DISKS = 10;
export const ARCHIVE_AFTER_S_DEFAULT = 300;
export const ARCHIVE_AFTER_S_MAX = 86_400;
export const ARCHIVE_URL_BYTES_MAX = 1024;
/** Share of the room on its disk that a vault takes where nothing is configured. */
export const DISK_FREE_SHARE = 0.5;
/** Time to live of records on disk, at most: ten years. */
export const DISK_TTL_S_MAX = 315_360_000;
/** Shared memory of one engine: least and most. */
export const ARENA_BYTES_MIN: number = 16 * MIB;
export const ARENA_BYTES_MAX: number = 1024 * GIB;
/** Shared memory that an engine may take where nothing is configured, unless ARENA_FREE_SHARE is more. */
export const ARENA_BYTES_DEFAULT: number = 4 * GIB;
/** The same as a share of the memory free when the engine connects. */
export const ARENA_FREE_SHARE = 0.25;
/** How long a request waits for its blocks: in all, without progress, and the highest setting. */
export const RESTORE_WAIT_MS_DEFAULT = 5_000;
export const RESTORE_STALL_MS_DEFAULT = 400;
export const RESTORE_WAIT_MS_MAX = 60_000;
/** A Unix socket path, without its terminating zero (Linux sun_path is 108, macOS 104). */
export const SOCKET_PATH_BYTES_MAX = 103;
/** The same for a vault's, which is bound under a name seven characters longer. */
export const VAULT_SOCKET_BYTES_MAX = 96;
/** The same of a sidecar's socket, because the socket of its own vault has the same path with `.vault` behind it. */
export const SIDECAR_SOCKET_BYTES_MAX = 90;
/** Characters of an operator's name for a model's weights: as the shim's `limits.py` has it. */
export const MODEL_IDENTITY_CHARS_MAX = 256;
/** Any other path (Linux PATH_MAX, without its terminating zero). */
export const PATH_BYTES_MAX = 4095;

// A machine on its own.
/** Share of the memory free at start that a vault takes where no budget is configured. */
export const VAULT_FREE_SHARE = 0.5;
/** The same for the vault that a sidecar starts, because an engine and its arena share the memory. */
export const LOCAL_VAULT_FREE_SHARE = 0.25;
/** From the start of that vault's process until it serves; below START_STEP_TIMEOUT_MS. */
export const LOCAL_VAULT_START_MS = 8_000;
/** Grace period before that vault is killed, whose records are lost either way. */
export const LOCAL_VAULT_STOP_MS = 1_000;
/** Pause before that vault is restarted: the first and the longest, each jittered down to half. */
export const LOCAL_VAULT_PAUSE_MIN_MS = 500;
export const LOCAL_VAULT_PAUSE_MAX_MS = 30_000;
/** Lifetime of that vault after which the pause begins at the first again. */
export const LOCAL_VAULT_STABLE_MS = 60_000;
/** One line from that vault to its sidecar before it serves. */
export const LOCAL_VAULT_LINE_BYTES_MAX: number = 64 * KIB;
/** A sidecar started by an engine ends after this long without one; and the highest setting. */
export const IDLE_EXIT_S_DEFAULT = 600;
export const IDLE_EXIT_S_MAX = 604_800;
/** Interval of its checks for idleness. */
export const IDLE_POLL_MS = 250;
/** Least limit of open files for a vault or sidecar. */
export const OPEN_FILES_MIN = 256;

// Sidecar: the local socket.
/** One frame of a connection that is not yet an engine's, or a command's: a hello, or a query with one text. */
export const GREETING_BYTES_MAX: number = 128 * KIB;
/** Values (numbers, strings, arrays, maps) in one frame: a step that saves SAVE_ITEMS_MAX blocks, with room. */
export const FRAME_VALUES_MAX = 65_536;
/** Nesting of one frame; the deepest message, a sidecar's status with a vault's archive, has eight levels. */
export const FRAME_DEPTH_MAX = 16;
/** One text of a frame; request ids come from HTTP headers, which servers cut at 64 KiB. */
export const FRAME_TEXT_BYTES_MAX: number = 64 * KIB;
/** Names (engine, model, versions) kept for as long as an engine lives. */
export const NAME_BYTES_MAX = 512;
/** Frames waiting for a slow reader; above it the connection is closed. */
export const FRAMES_OUT_BYTES_MAX: number = 8 * MIB;
/** How long one connection may occupy the event loop before others. */
export const LOOP_SLICE_MS = 4;
/** A closing connection may still deliver sent bytes for this long. */
export const LINGER_MS = 500;
/** How long an existing socket file is probed; silence counts as alive. */
export const SOCKET_PROBE_MS = 1_000;
/** Distinct counter names taken from shims. */
export const SHIM_COUNTERS_MAX = 128;

// Sidecar: arena and credits.
/** Slots of the smallest useful arena; below it the engine is refused. Blocks of hybrid models have tens of MiB. */
export const ARENA_SLOTS_MIN = 16;
export const ARENA_SLOTS_MAX = 1_048_576;
/** Polling interval for the touching of a new arena. */
export const ARENA_POLL_MS = 20;
/** Pause before a frame with a descriptor is retried on a full socket. */
export const PASS_RETRY_MS = 10;
/** Slots, besides the saves' share, that must be touched before restores start. */
export const RESTORE_SLOTS_MIN = 16;
/** Bytes one worker may have in slots for saves: two steps of 64 MiB, one being copied, one being encoded; more where a step computes more. */
export const SAVE_CREDIT_BYTES: number = 128 * MIB;
export const SAVE_CREDITS_MIN = 4;
export const SAVE_CREDITS_MAX = 4096;
/** Slots handed back unused are granted again after this time, so that they do not bounce. */
export const CREDIT_REGRANT_MS = 1_000;

// Sidecar: saves.
/** Items of one `save` frame. */
export const SAVE_ITEMS_MAX = 4096;
/** Queued saves of all engines, or their slots for saves plus SAVE_AHEAD_BYTES_MAX where that is more; further saves are dropped. */
export const SAVE_QUEUE_BYTES_MAX: number = 512 * MIB;
/** Blocks encoded ahead of the lanes, all engines together; further blocks wait in the engine's own cache. */
export const SAVE_AHEAD_BYTES_MAX: number = SAVE_QUEUE_BYTES_MAX / 2;
/** The same as a share of all arenas, because these records are memory beside them. */
export const SAVE_AHEAD_SHARE: number = 1 / 32;
/** One encode task, and one Store call: long enough to pay for its overhead. */
export const SAVE_BATCH_BYTES: number = 8 * MIB;
export const SAVE_BATCH_ITEMS = 512;
/** Store calls to one vault at the same time: one being sent, one being answered. */
export const STORES_IN_FLIGHT_MAX = 2;
export const STORE_TIMEOUT_MS = 10_000;
export const ENCODE_THREADS_MAX = 4;
/** Nice increment of encode threads, so that an engine and restores go first. */
export const ENCODE_NICE = 10;
export const ENCODE_QUEUE_MAX = 256;
export const ENCODE_TIMEOUT_MS = 10_000;
/** A stopping sidecar, and a leaving engine, finish saves for at most this time. */
export const SAVE_DRAIN_MS = 2_000;
/** Namespaces whose model a sidecar reports to its vaults. */
export const NAMESPACES_NAMED_MAX = 1024;

// Sidecar: restores.
/** Requests of one engine that look up or restore at the same time; further requests are answered `overload`. */
export const PLANS_MAX = 4096;
/** Keys (hashes times ranks) of one plan; of a longer prompt the beginning is looked up. */
export const PLAN_KEYS_MAX = 131_072;
/** Keys of all plans of one engine that are still being looked up or wait for room. */
export const PLAN_KEYS_OPEN_MAX = 1_048_576;
/** Look-ups of one sidecar at one vault at the same time; later ones wait their turn. */
export const LOOKUPS_IN_FLIGHT_MAX = 32;
/** Time for an engine to return a plan's slots, unless the plan was admitted. */
export const RECLAIM_ANSWER_MS = 100;
/** Keys packed or compared before yielding to the event loop. */
export const KEYS_PER_SLICE = 2048;
/** Hashes of blocks copied, and kept, together: 2 KiB. */
export const HASHES_PER_COPY = 64;
/** One Fetch call: slots are taken, and `placed` frames flow, window by window. */
export const FETCH_WINDOW_BYTES: number = 16 * MIB;
export const FETCH_WINDOW_KEYS = 512;
/** A prompt up to these blocks and decoded bytes, all stored by this sidecar, is fetched without a look-up. */
export const KNOWN_BLOCKS_MAX = 64;
export const KNOWN_BYTES_MAX: number = 4 * MIB;
/** Fetch calls of one engine to one vault at the same time: the next is requested while one arrives. */
export const FETCHES_IN_FLIGHT_MAX = 2;

// Demo.
/** Interval of progress lines in a long step when the output is no terminal. */
export const DEMO_HEARTBEAT_MS = 5_000;
export const DEMO_POLL_MS = 100;
/** Lines of each log shown after a failure. */
export const DEMO_LOG_TAIL_LINES = 12;
/** A vLLM on a slow disk and two cores, first import included. */
export const DEMO_ENGINE_START_MS = 600_000;
export const DEMO_ENGINE_STOP_MS = 20_000;
export const DEMO_SERVICE_START_MS = 20_000;
/** Time for a Python to name the packages that it lacks. */
export const PYTHON_ANSWER_MS = 30_000;
export const DEMO_SERVICE_STOP_MS = 10_000;
/** A killed process is gone within this time. */
export const DEMO_KILL_MS = 5_000;
export const DEMO_MODEL_MAKE_MS = 120_000;
export const DEMO_REQUEST_TIMEOUT_MS = 300_000;
export const DEMO_CONTROL_TIMEOUT_MS = 10_000;
/** How long the demo waits for saves, which are asynchronous. */
export const DEMO_SAVE_WAIT_MS = 120_000;
export const DEMO_VAULT_BYTES: number = 1 * GIB;
export const DEMO_ARENA_BYTES: number = 1 * GIB;
export const DEMO_MODEL_LEN_MAX = 16_384;
/** The prompt is made as long as this machine computes in about this time, within the two lengths. */
export const DEMO_COLD_MS = 15_000;
export const DEMO_COLD_QUICK_MS = 3_000;
/** Longer than the default, because engine, sidecar and vaults share one machine's cores. */
export const DEMO_RESTORE_WAIT_MS = 15_000;
export const DEMO_RESTORE_STALL_MS = 5_000;
export const DEMO_PROMPT_CHARS_MIN = 2_048;
export const DEMO_PROMPT_CHARS_MAX = 12_000;
/** A prompt that only warms the engine up; the text has three after the longest prompt. */
export const DEMO_WARMUP_CHARS = 1_024;
/** Tokens of an answer: enough to tell two answers apart. */
export const DEMO_ANSWER_TOKENS = 16;

// Sidecar: forecasts, metrics and history.
/** Longest prompt that is computed without a look-up because computing is quick. */
export const PROMPT_TOKENS_MAX = 65_536;
/** Prompts in `tierkv doctor`'s forecast: the shortest, and their number, each twice as long as the last. */
export const FORECAST_TOKENS_MIN = 128;
export const FORECAST_LENGTHS = 11;
/** Bytes that `tierkv doctor` moves to and from each vault. */
export const DOCTOR_BYTES: number = 16 * MIB;
export const DOCTOR_ROUNDS = 3;
/** Buffer that a lane's socket needs each way, as in `crates/core/src/limits.rs`. */
export const LANE_SOCKET_BYTES: number = 4 * MIB;
/** Rows of measured steps in one frame. */
export const STEP_ROWS_MAX = 256;
/** Connections the metrics endpoint holds open; above that, the address with the most connections loses its oldest. */
export const SCRAPE_CONNECTIONS_MAX = 64;
/** Connections of one address to it; above that the oldest is ended. */
export const SCRAPE_ADDRESS_CONNECTIONS_MAX = 8;
/** Header of one request to it. */
export const SCRAPE_HEADER_BYTES_MAX = 8_192;
/** Time for a request to it to arrive, and for its answer to be read. */
export const SCRAPE_TIMEOUT_MS = 5_000;
/** Names of models in the answer to a flush of an unknown one. */
export const FLUSH_NAMES_MAX = 20;
/** Requests without a look-up in one `counts` frame. */
export const UNASKED_ROWS_MAX = 64;
/** Token ids of one part of a reported divergence. */
export const DIVERGENCE_TOKENS_MAX = 64;
/** Requests kept for `tierkv explain`, and shown at once. */
export const DECISIONS_MAX = 1_024;
export const EXPLAIN_MAX = 256;
/** Blocks whose outcome is remembered, for the reasons of misses. */
export const OUTCOMES_MAX = 65_536;
/** Tokens of a step from which a kernel has granted AMX tiles (the same in python-shim/tierkv/connectors/vllm/limits.py). */
export const AMX_FIRST_TOKENS = 64;
/** Restores hold saves back on the link for at most this long at a time. */
export const SAVE_HOLD_MS_MAX = 2_000;
