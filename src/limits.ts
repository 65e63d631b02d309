// Owns every limit of the TypeScript side: sizes, counts and waits, each a named constant with its reason.

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

// Versions this release speaks, first and last.
export const PROTOCOL_MIN = 1;
export const PROTOCOL_MAX = 1;

// Bytes on the wire.
/** One gRPC message; the gRPC default, so that any client can talk to a vault. */
export const MESSAGE_BYTES_MAX: number = 4 * MIB;
/** Record bytes per message: large enough to amortise framing, small enough to cancel within one. */
export const CHUNK_BYTES: number = 1 * MIB;
/** One frame of the local socket: keys and slot numbers only, payload lies in the arena. */
export const FRAME_BYTES_MAX: number = 4 * MIB;
/** One record; larger ones are refused when offered. */
export const RECORD_BYTES_MAX: number = 256 * MIB;

// Counts.
/** Keys of one Lookup, Store offer or Fetch: a 64k-token prompt in blocks of 16. */
export const KEYS_MAX = 4096;
/** Engines connected to one sidecar, each with one scheduler and its workers. */
export const SHIM_CONNECTIONS_MAX = 64;
/** Streams one vault serves to one connection at the same time. */
export const STREAMS_MAX = 100;
/** KV-cache groups of one engine. */
export const GROUPS_MAX = 64;
/** Worker ranks of one engine. */
export const WORLD_MAX = 64;

// Waits, in ms.
/** A new connection must say hello within this time. */
export const HELLO_TIMEOUT_MS = 2_000;
/** Any unary call to a vault that names no deadline of its own. */
export const CALL_TIMEOUT_MS = 2_000;
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

// Configuration.
export const CONFIG_FILE_BYTES_MAX: number = 1 * MIB;
export const VAULT_BYTES_MIN: number = 16 * MIB;
export const VAULT_BYTES_MAX: number = 64 * 1024 * GIB;
export const ARENA_BYTES_MIN: number = 16 * MIB;
export const ARENA_BYTES_MAX: number = 1024 * GIB;
/** Ceiling of one engine's arena; the real size follows from the engine's cache. */
export const ARENA_BYTES_DEFAULT: number = 4 * GIB;
export const RESTORE_WAIT_MS_DEFAULT = 5_000;
export const RESTORE_STALL_MS_DEFAULT = 500;
export const RESTORE_WAIT_MS_MAX = 60_000;
/** A Unix socket path, without its terminating zero (Linux sun_path is 108, macOS 104). */
export const SOCKET_PATH_BYTES_MAX = 103;
