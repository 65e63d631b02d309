// Owns the limits of the gateway: connections, bodies, waits and retries.

const KIB = 1024;
const MIB = 1024 * KIB;

/** Engines behind one gateway. */
export const GATEWAY_ENGINES_MAX = 64;
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
