// Owns every limit of the TypeScript side: sizes, counts and waits, each a named constant with its reason.

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

// Versions.
/** Of the calls between sidecar and vault: the first and the last this release speaks. */
export const PROTOCOL_MIN = 1;
export const PROTOCOL_MAX = 1;

// Bytes on the wire.
/** One record; larger ones are refused when offered. */
export const RECORD_BYTES_MAX: number = 256 * MIB;
/** One gRPC message; the gRPC default, so that any client can talk to a vault. */
export const MESSAGE_BYTES_MAX: number = 4 * MIB;
/** HTTP/2 receive window of a client. */
export const FLOW_WINDOW_BYTES: number = 4 * MIB;
/** Share of a vault's budget that records under way may reserve (and one of the largest at least). */
export const RESERVED_SHARE_MAX = 0.5;
/** One frame of the local socket: keys and slot numbers only, payload lies in the arena. */
export const FRAME_BYTES_MAX: number = 4 * MIB;

// Counts.
/** Keys of one Lookup: a 64k-token prompt in blocks of 16. */
export const KEYS_MAX = 4096;
/** Engines connected to one sidecar, each with one scheduler and its workers. */
export const SHIM_CONNECTIONS_MAX = 256;
/** Streams one vault serves to one connection at the same time. */
export const STREAMS_MAX = 100;
/** Connections one vault holds open, lanes and gRPC. */
export const VAULT_CONNECTIONS_MAX = 768;
/** Those of one address: half, so that nobody keeps all others out. */
export const VAULT_PEER_CONNECTIONS_MAX = 384;
/** Connections that wait to be let in, of strangers, and as many of addresses that were let in before. */
export const VAULT_WAITING_MAX = 256;
/** Those of one address: where there are more, the one that waited longest gives way. */
export const VAULT_PEER_WAITING_MAX = 128;
/** How often connections are looked at, and what one may send in between outside of calls. */
export const CONNECTION_SWEEP_MS = 500;
export const CONNECTION_IDLE_BYTES_MAX: number = 64 * KIB;
/** Streamed calls one vault serves at the same time, over all connections. */
export const VAULT_STREAMS_MAX = 256;
/** Calls one client has open to one vault at the same time; below STREAMS_MAX, so that none waits unseen inside HTTP/2. */
export const CLIENT_CALLS_MAX = 64;
/** Keys of one Report, which reads and checks each record. */
export const REPORT_KEYS_MAX = 64;
/** Namespaces whose model a vault remembers. */
export const VAULT_MODELS_MAX = 4096;
/** Counter names of one process: a peer cannot grow the table by inventing names. */
export const COUNTER_NAMES_MAX = 512;
/** KV-cache groups of one engine. */
export const GROUPS_MAX = 64;
/** Worker ranks of one engine. */
export const WORLD_MAX = 64;

// Waits, in ms.
/** A new connection must say hello within this time. */
export const HELLO_TIMEOUT_MS = 2_000;
/** Any unary call to a vault that names no deadline of its own. */
export const CALL_TIMEOUT_MS = 2_000;
/** A call whose first message does not come for this long is ended. */
export const CALL_IDLE_MS = 10_000;
/** A vault ends any streamed call after this time, whatever deadline the client set. */
export const STREAM_MS_MAX = 300_000;
/** Pings find a dead peer, and end a connection whose flood HTTP/2 has stopped but left open: one this often, with this long to answer. */
export const KEEPALIVE_TIME_MS = 10_000;
export const KEEPALIVE_TIMEOUT_MS = 5_000;
/** Pause between two connection attempts, first and last. */
export const RECONNECT_MIN_MS = 100;
export const RECONNECT_MAX_MS = 1_000;
/** Second tries at one vault in a row: those that are under way when its lanes break; then what answers and time bring back. */
export const RETRY_TOKENS_MAX = 32;
export const RETRY_TOKENS_PER_ANSWER = 0.1;
export const RETRY_TOKENS_PER_S = 1;
/** A vault counts as down after this many failures in a row. */
export const BREAKER_FAILURES = 2;
/** `tierkv chaos`: each call's time, its records (twice), and connections that say nothing. */
export const CHAOS_CALL_MS = 10_000;
export const CHAOS_RECORDS = 8;
export const CHAOS_PAYLOAD_BYTES = 65_536;
export const CHAOS_SILENT_PEERS = 16;
export const CHAOS_POLL_MS = 20;
/** Pause before a vault that is down is probed again: a random time between the two. */
export const PROBE_MIN_MS = 500;
export const PROBE_MAX_MS = 2_000;
/** A stopping vault finishes open calls for this long; below DRAIN_TIMEOUT_MS of the process. */
export const VAULT_DRAIN_MS = 4_000;
/** One named start step. */
export const START_STEP_TIMEOUT_MS = 10_000;
/** A stopping process finishes the work it has for at most this time. */
export const DRAIN_TIMEOUT_MS = 5_000;
/** `tierkv status` gives each target this long. */
export const STATUS_TIMEOUT_MS = 2_000;
/** Calls `tierkv status` times per target. */
export const STATUS_SAMPLES = 10;
/** `tierkv flush` gives a vault this long: freeing many records takes a while. */
export const FLUSH_TIMEOUT_MS = 30_000;
/** A flush waits this long for the sidecars that are connected to say that they dropped what they hold. */
export const FLUSH_CONFIRM_MS = 5_000;
/** Flushes a vault remembers, for sidecars that were away; who missed more than that drops all. */
export const FLUSHES_KEPT_MAX = 256;
/** Namespaces that a sidecar which was away is told of at once; who missed flushes of more drops all. */
export const FLUSH_NAMESPACES_TOLD_MAX = 4_096;
/** A vault holds the call of a sidecar that waits for flushes this long; then it is made again. */
export const WATCH_HOLD_MS = 20_000;
/** Longer than a vault holds it: then the vault hangs. */
export const WATCH_TIMEOUT_MS = 30_000;
/** Until a sidecar asks again whose call failed; drawn up to twice this. */
export const WATCH_PAUSE_MS = 500;
/** A sidecar that ends gives a vault this long to hear so. */
export const FLUSH_LEAVE_MS = 500;
/** Sidecars, one per class of records, that a vault tells of flushes. */
export const WATCHERS_MAX = 1_024;
/** One that has not been heard of for a day is not waited for: it is not coming back with its arena. */
export const WATCHERS_FORGET_MS = 86_400_000;
/** As the last flush that a record's maker knew of: the record is made now, from nothing that was stored. */
export const MADE_NOW: number = Number.MAX_SAFE_INTEGER;

// `tierkv bench`.
/** One call, on a slow link, too. */
export const BENCH_CALL_MS = 60_000;
/** Empty calls, and look-ups, that are timed. */
export const BENCH_SAMPLES = 50;
/** Keys of one look-up: a prompt of 32,000 tokens in blocks of 16. */
export const BENCH_LOOKUP_KEYS = 2000;
/** Plain bytes travel in chunks of this length; `LANE_CHUNK_BYTES` of the core. */
export const PROBE_CHUNK_BYTES: number = 1 * MIB;
/** MiB of plain bytes that say how much a round may move; and at most in a round. */
export const BENCH_PROBE_CHUNKS = 8;
export const BENCH_PROBE_CHUNKS_MAX = 256;
/** Plain bytes that pass in this time make one round, up to `--bytes`. */
export const BENCH_ROUND_MS = 1_000;
export const BENCH_BYTES_DEFAULT: number = 128 * MIB;
export const BENCH_BYTES_MAX: number = 1 * GIB;
export const BENCH_ROUNDS_DEFAULT = 5;
export const BENCH_ROUNDS_MAX = 100;
/** Share of a vault's memory that a round may take, so that little is evicted. */
export const BENCH_VAULT_SHARE = 0.125;
/** The prompt whose restore is reckoned, and KV of one of its tokens: 36 layers, 8 KV heads of 128, bf16. */
export const BENCH_TOKENS_DEFAULT = 32_768;
export const BENCH_TOKEN_BYTES_DEFAULT = 147_456;

// Lanes: connections on which records travel; their own limits stand in crates/core/src/limits.rs.
/** Lanes to one vault: as many as there are processors for bring what is fetched, LANES_STORING_MAX carry what is stored. */
export const LANES_DEFAULT = 4;
export const LANES_MAX = 8;
/** Memory that no record of a vault needed for this long is the system's again. */
export const SPARE_TRIM_MS = 10_000;
/** A vault's rates are over about this time, and are sampled this often. */
export const RATE_SPAN_MS = 10_000;
export const RATE_SAMPLE_MS = 1_000;
/** How often a vault looks whether its disk has begun or ceased to fail. */
export const DISK_WATCH_MS = 500;
/** A first call waits this long for lanes that are being opened; a refused connection is heard of at once. */
export const LANES_OPEN_WAIT_MS = 500;
/** Lanes that held are opened again after this time, jittered down to its half: a fetch that broke off goes on before it counts as stalled. */
export const LANES_AGAIN_MS = 50;
/** A request waits this long for lanes that broke. */
export const LANES_BACK_MS = 2_000;
/** After so many attempts in a row that failed, nobody waits for lanes, and the vault counts as down for records. */
export const LANES_FAILURES_MAX = 3;
/** Pause before other broken lanes are opened again: the first and the longest, each jittered down to its half. */
export const LANES_PAUSE_MIN_MS = 1_000;
export const LANES_PAUSE_MAX_MS = 60_000;
/** Ways to one vault that its lanes are spread over; two lanes go over each at least. */
export const RAILS_MAX = 4;
/** One of them takes a connection within this time, or does not work. */
export const RAIL_REACH_MS = 500;
/** Pause before one that does not work is tried again: the first and the longest. */
export const RAIL_PAUSE_MIN_MS = 2_000;
export const RAIL_PAUSE_MAX_MS = 120_000;
/** Lanes are opened anew over more ways when nothing is under way; after the first of these, requests wait for that, as long as the second. */
export const RAIL_JOIN_MS = 10_000;
export const RAIL_HOLD_MS = 1_000;
/** How often it is looked whether a fetch still brings bytes, and whether a listener's last requests are over. */
export const LANES_POLL_MS = 20;

// Configuration.
/** A configuration file; a larger one is something else. */
export const CONFIG_FILE_BYTES_MAX: number = 1 * MIB;
/** Memory of a vault, least and most. */
export const VAULT_BYTES_MIN: number = 16 * MIB;
export const VAULT_BYTES_MAX: number = 65_536 * GIB;
/** A vault's directory, least (eight segments of 8 MiB) and most. */
export const DISK_BYTES_MIN: number = 64 * MIB;
export const DISK_BYTES_MAX: number = 65_536 * GIB;
/** An archive: most bytes, those where nothing is configured (of the disk's), and how long a record waits for it. */
export const ARCHIVE_BYTES_MAX: number = 1_048_576 * GIB;
export const ARCHIVE_DISKS = 10;
export const ARCHIVE_AFTER_S_DEFAULT = 300;
export const ARCHIVE_AFTER_S_MAX = 86_400;
export const ARCHIVE_URL_BYTES_MAX = 1024;
/** Share of the room on its disk that a vault takes where nothing is configured. */
export const DISK_FREE_SHARE = 0.5;
/** Time to live of records on disk, at most: ten years. */
export const DISK_TTL_S_MAX = 315_360_000;
/** Shared memory of one engine: least, most, and what a ceiling that is not set allows at least: that share of the free memory where it is more. */
export const ARENA_BYTES_MIN: number = 16 * MIB;
export const ARENA_BYTES_MAX: number = 1024 * GIB;
export const ARENA_BYTES_DEFAULT: number = 4 * GIB;
export const ARENA_FREE_SHARE = 0.25;
/** How long a request waits for its blocks: in all, without anything new arriving, and the most that may be set. */
export const RESTORE_WAIT_MS_DEFAULT = 5_000;
export const RESTORE_STALL_MS_DEFAULT = 400;
export const RESTORE_WAIT_MS_MAX = 60_000;
/** A Unix socket path, without its terminating zero (Linux sun_path is 108, macOS 104). */
export const SOCKET_PATH_BYTES_MAX = 103;
/** The same for a vault's: it is bound under a name with seven characters more. */
export const VAULT_SOCKET_BYTES_MAX = 96;
/** The same for a sidecar's: its own vault stands beside it, under its name and `.vault`. */
export const SIDECAR_SOCKET_BYTES_MAX = 90;
/** Any other path (Linux PATH_MAX, without its terminating zero). */
export const PATH_BYTES_MAX = 4095;

// A machine on its own.
/** Share of the memory free at start that a vault takes where no budget is configured. */
export const VAULT_FREE_SHARE = 0.5;
/** The same for the vault that a sidecar starts: an engine and its arena live there, too. */
export const LOCAL_VAULT_FREE_SHARE = 0.25;
/** From the start of that vault's process until it serves; below START_STEP_TIMEOUT_MS. */
export const LOCAL_VAULT_START_MS = 8_000;
/** That vault is killed when it has not ended by then; what it holds is lost either way. */
export const LOCAL_VAULT_STOP_MS = 1_000;
/** Pause before that vault is started again: the first and the longest, each jittered down to its half. */
export const LOCAL_VAULT_PAUSE_MIN_MS = 500;
export const LOCAL_VAULT_PAUSE_MAX_MS = 30_000;
/** A vault that lived this long had no trouble starting: the next pause is the first again. */
export const LOCAL_VAULT_STABLE_MS = 60_000;
/** What that vault says to its sidecar before it serves: one line. */
export const LOCAL_VAULT_LINE_BYTES_MAX: number = 64 * KIB;
/** A sidecar that an engine started ends after this long without one; and the most that may be set. */
export const IDLE_EXIT_S_DEFAULT = 600;
export const IDLE_EXIT_S_MAX = 604_800;
/** How often it looks whether it is idle. */
export const IDLE_POLL_MS = 250;
/** Open files below which a vault or sidecar could not do its work. */
export const OPEN_FILES_MIN = 256;

// Sidecar: the local socket.
/** One frame of a connection that is no engine's, or not yet: a hello, or a question with one text. */
export const GREETING_BYTES_MAX: number = 128 * KIB;
/** Values (numbers, strings, arrays, maps) in one frame: a step that saves SAVE_ITEMS_MAX blocks, with room. */
export const FRAME_VALUES_MAX = 65_536;
/** Nesting of one frame; the deepest message has four levels. */
export const FRAME_DEPTH_MAX = 8;
/** One text of a frame; request ids come from HTTP headers, which servers cut at 64 KiB. */
export const FRAME_TEXT_BYTES_MAX: number = 64 * KIB;
/** Names (engine, model, versions) kept for as long as an engine lives. */
export const NAME_BYTES_MAX = 512;
/** Frames waiting for a slow reader; above it the connection is closed. */
export const FRAMES_OUT_BYTES_MAX: number = 8 * MIB;
/** One connection may hold the event loop this long before others get their turn. */
export const LOOP_SLICE_MS = 4;
/** A connection that is being closed may still deliver what it has sent, for this long. */
export const LINGER_MS = 500;
/** A socket file that is found is asked for a sign of life; silence for this long counts as one. */
export const SOCKET_PROBE_MS = 1_000;
/** Distinct counter names taken from shims. */
export const SHIM_COUNTERS_MAX = 128;

// Sidecar: arena and credits.
/** Slots of the smallest useful arena; below it the engine is refused. Blocks of hybrid models have tens of MiB. */
export const ARENA_SLOTS_MIN = 16;
export const ARENA_SLOTS_MAX = 1_048_576;
/** How often the progress of touching a new arena is read. */
export const ARENA_POLL_MS = 20;
/** Pause before a frame with a descriptor is tried again on a socket that is full. */
export const PASS_RETRY_MS = 10;
/** Slots that must be touched, beside the saves' share, before restores start. */
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
/** Saves between the engine and the vault, all engines together, or what their slots for saves hold where that is more; what comes above it is dropped. */
export const SAVE_QUEUE_BYTES_MAX: number = 512 * MIB;
/** Saves between the engine and the vault above which nothing more is encoded ahead of the lanes: blocks wait in the engine's own cache instead. */
export const SAVE_AHEAD_BYTES_MAX: number = SAVE_QUEUE_BYTES_MAX / 2;
/** One encode task, and one Store call: long enough to pay for its overhead. */
export const SAVE_BATCH_BYTES: number = 8 * MIB;
export const SAVE_BATCH_ITEMS = 512;
/** Store calls to one vault at the same time: one being sent, one being answered. */
export const STORES_IN_FLIGHT_MAX = 2;
export const STORE_TIMEOUT_MS = 10_000;
export const ENCODE_THREADS_MAX = 4;
/** Nice increment of encode threads: an engine beside them, and restores, go first. */
export const ENCODE_NICE = 10;
export const ENCODE_QUEUE_MAX = 256;
export const ENCODE_TIMEOUT_MS = 10_000;
/** A stopping sidecar, and a leaving engine, finish saves for at most this time. */
export const SAVE_DRAIN_MS = 2_000;
/** Namespaces whose model a sidecar tells its vaults. */
export const NAMESPACES_NAMED_MAX = 1024;

// Sidecar: restores.
/** Plans one engine may have open; later ones are answered `overload`. */
export const PLANS_MAX = 4096;
/** Keys (hashes times ranks) of one plan; of a longer prompt the beginning is looked up. */
export const PLAN_KEYS_MAX = 131_072;
/** Keys of all plans of one engine that are still being looked up or wait for room. */
export const PLAN_KEYS_OPEN_MAX = 1_048_576;
/** Look-ups of one sidecar at one vault at the same time; later ones wait their turn. */
export const LOOKUPS_IN_FLIGHT_MAX = 32;
/** A plan that was asked to give its slots back has done so within this time, or was admitted. */
export const RECLAIM_ANSWER_MS = 100;
/** Keys packed or compared before the event loop gets its turn. */
export const KEYS_PER_SLICE = 2048;
/** Hashes of blocks that are copied, and kept, together: 2 KiB. */
export const HASHES_PER_COPY = 64;
/** One Fetch call: slots are taken, and `placed` frames flow, window by window. */
export const FETCH_WINDOW_BYTES: number = 16 * MIB;
export const FETCH_WINDOW_KEYS = 512;
/** A prompt of no more blocks and decoded bytes, all stored by this sidecar, is fetched without a look-up. */
export const KNOWN_BLOCKS_MAX = 64;
export const KNOWN_BYTES_MAX: number = 4 * MIB;
/** Fetch calls of one engine to one vault at the same time: the next is asked while one arrives. */
export const FETCHES_IN_FLIGHT_MAX = 2;

// Demo.
/** Signs of life while a step takes long and the output is no terminal. */
export const DEMO_HEARTBEAT_MS = 5_000;
export const DEMO_POLL_MS = 100;
/** Lines of each log shown after a failure. */
export const DEMO_LOG_TAIL_LINES = 12;
/** A vLLM on a slow disk and two cores, first import included. */
export const DEMO_ENGINE_START_MS = 600_000;
export const DEMO_ENGINE_STOP_MS = 20_000;
export const DEMO_SERVICE_START_MS = 20_000;
export const DEMO_SERVICE_STOP_MS = 10_000;
/** What does not end by itself in time is killed, and gone within this time. */
export const DEMO_KILL_MS = 5_000;
export const DEMO_MODEL_MAKE_MS = 120_000;
export const DEMO_REQUEST_TIMEOUT_MS = 300_000;
export const DEMO_CONTROL_TIMEOUT_MS = 10_000;
/** Saves are fire and forget: the vault is given this long. */
export const DEMO_SAVE_WAIT_MS = 120_000;
export const DEMO_VAULT_BYTES: number = 1 * GIB;
export const DEMO_ARENA_BYTES: number = 1 * GIB;
export const DEMO_MODEL_LEN_MAX = 16_384;
/** The prompt is made as long as this machine computes in about this time, within the two lengths. */
export const DEMO_COLD_MS = 15_000;
export const DEMO_COLD_QUICK_MS = 3_000;
/** Restores may take longer than by default: engine, sidecar and vaults share the cores of one machine here. */
export const DEMO_RESTORE_WAIT_MS = 15_000;
export const DEMO_RESTORE_STALL_MS = 5_000;
export const DEMO_PROMPT_CHARS_MIN = 2_048;
export const DEMO_PROMPT_CHARS_MAX = 12_000;
/** A prompt that only warms the engine up; three of them fit behind the longest prompt. */
export const DEMO_WARMUP_CHARS = 1_024;
/** Tokens of an answer: enough to tell two answers apart. */
export const DEMO_ANSWER_TOKENS = 16;

// Sidecar: what it tells and remembers.
/** Longest prompt that is not asked for because computing it is quick. */
export const PROMPT_TOKENS_MAX = 65_536;
/** Prompts that `tierkv doctor` reckons with: the shortest, and how many, each twice as long as the one before. */
export const FORECAST_TOKENS_MIN = 1_024;
export const FORECAST_LENGTHS = 8;
/** What `tierkv doctor` moves to and from each vault. */
export const DOCTOR_BYTES: number = 16 * MIB;
export const DOCTOR_ROUNDS = 3;
/** Rows of measured steps in one frame. */
export const STEP_ROWS_MAX = 256;
/** Connections the metrics endpoint holds open. */
export const SCRAPE_CONNECTIONS_MAX = 16;
/** Header of one request to it. */
export const SCRAPE_HEADER_BYTES_MAX = 8_192;
/** A request to it arrives, and its answer is read, within this time. */
export const SCRAPE_TIMEOUT_MS = 5_000;
/** Requests of which one `counts` says that nothing was asked. */
export const UNASKED_ROWS_MAX = 64;
/** Requests `tierkv explain` remembers, and those it shows at once. */
export const DECISIONS_MAX = 1_024;
export const EXPLAIN_MAX = 256;
/** Blocks of which it is remembered what became of them, for the reasons of misses. */
export const OUTCOMES_MAX = 65_536;
/** Restores hold saves back on the link for at most this long at a time. */
export const SAVE_HOLD_MS_MAX = 2_000;
