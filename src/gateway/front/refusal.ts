// Owns the errors that the gateway answers itself: their statuses and texts, in the dialect of the request's path.
import { STATUS_CODES } from "node:http";
import type { ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import {
  GATEWAY_BODY_BYTES_MAX,
  GATEWAY_BODY_PARTS_MAX,
  GATEWAY_HEADER_BYTES_MAX,
  GATEWAY_LINGER_MS,
  GATEWAY_REQUEST_MS,
  GATEWAY_RETRY_AFTER_S,
} from "../../base/limits/gateway.ts";
import type { Figures } from "../counts/figures.ts";
import type { Shed } from "../engines/fleet.ts";
import type { Refusal, Spent, Visit } from "./allowance.ts";
import type { BodyFailure } from "./body.ts";
import { dialectOf, errorBody, errorEvent } from "./dialect.ts";
import type { ApiError, Dialect } from "./dialect.ts";

/** Why a request is not passed on; `failed`: every engine tried broke off; `suspect`: engines went down while it waited there. */
export type Refused =
  | Exclude<Shed | BodyFailure, "gone">
  | Spent
  | "failed"
  | "suspect"
  | "late"
  | "no_path"
  | "no_key"
  | "tenant_key"
  | "web_page"
  | "no_json"
  | "no_response"
  | "upgrade";

const TEXTS: Readonly<Record<Refused, readonly [status: number, type: string, text: string]>> = {
  no_key: [
    401,
    "AuthenticationError",
    "send a valid API key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
  ],
  tenant_key: [403, "PermissionDeniedError", "a key with a tenant may not register engines"],
  web_page: [403, "PermissionDeniedError", "a web page may not register engines"],
  no_json: [
    400,
    "BadRequestError",
    `the body must be a JSON object, sent as \`content-type: application/json\`, with at most ${GATEWAY_BODY_PARTS_MAX} texts, lists and objects`,
  ],
  no_path: [404, "NotFoundError", "the gateway does not serve this path"],
  no_response: [404, "NotFoundError", "no engine holds an answer of this id"],
  upgrade: [501, "NotImplementedError", "the gateway serves no WebSockets: connect to an engine"],
  no_model: [404, "NotFoundError", "no engine serves this model"],
  large: [413, "BadRequestError", `the body has more than ${GATEWAY_BODY_BYTES_MAX} bytes`],
  full: [429, "OverloadedError", "the gateway holds too many request bodies"],
  queue_full: [429, "OverloadedError", "too many requests wait for an engine"],
  late: [429, "OverloadedError", "the first token would come later than the gateway's limit"],
  waited: [429, "OverloadedError", "no engine had room in time"],
  key_requests: [429, "RateLimitError", "this key's requests a minute are used up"],
  key_tokens: [429, "RateLimitError", "this key's tokens a minute are used up"],
  key_concurrent: [429, "RateLimitError", "this key already has its most requests at once"],
  no_engine: [
    503,
    "ServiceUnavailableError",
    "no engine of this model answers, or all are drained",
  ],
  no_holder: [
    503,
    "ServiceUnavailableError",
    "the engine that holds this stored answer does not answer, is drained, or serves another model",
  ],
  failed: [502, "BadGatewayError", "the engine broke off before its answer began"],
  suspect: [
    502,
    "BadGatewayError",
    "an engine went down while this request waited for its first token; the request may be the cause, so it is sent to no other engine",
  ],
};

/** Fields of requests that errors name, as vLLM does. */
const PARAMS: Readonly<Partial<Record<Refused, string>>> = { no_model: "model" };

export function statusOf(reason: Refused): number {
  return TEXTS[reason][0];
}

/** Returns the error in the form of the API at this path (of the request, with or without a query). */
export function bodyOf(reason: Refused, path: string): string {
  return errorBody(dialectOf(path), errorOf(reason));
}

function errorOf(reason: Refused): ApiError {
  const [code, type, message] = TEXTS[reason];
  return { code, type, message, param: PARAMS[reason] };
}

/** Returns the headers of such an error. */
export function headersOf(
  reason: Refused,
  retryAfterS: number = GATEWAY_RETRY_AFTER_S,
): Record<string, string> {
  const code = statusOf(reason);
  return {
    "content-type": "application/json",
    ...(code === 429 || code === 503 ? { "retry-after": String(retryAfterS) } : {}),
    ...(code === 401 ? { "www-authenticate": "Bearer" } : {}),
    // The SDKs of OpenAI and Anthropic would otherwise send it again at once.
    ...(reason === "suspect" ? { "x-should-retry": "false" } : {}),
  };
}

/** Returns a request's path without its query. */
export const pathOf = ({ url = "/" }: { url?: string | undefined }): string =>
  url.replace(/\?.*$/, "");

/** Answers with an error. A body still arriving is read on for a while, because its client would see a reset instead. */
export function refuse(
  response: ServerResponse,
  reason: Refused,
  retryAfterS: number = GATEWAY_RETRY_AFTER_S,
): void {
  const { req: request } = response;
  // A stream that was kept alive has its head already.
  if (response.headersSent) {
    response.end(errorEvent(dialectOf(pathOf(request)), errorOf(reason)));
    return;
  }
  response.writeHead(statusOf(reason), headersOf(reason, retryAfterS));
  response.end(bodyOf(reason, pathOf(request)));
  if (request.complete) return;
  const timer = setTimeout(() => request.socket.destroy(), GATEWAY_LINGER_MS);
  request
    .once("end", () => clearTimeout(timer))
    .once("close", () => clearTimeout(timer))
    .resume();
}

/** Statuses of requests that cannot be read, by Node's code of the error; others are 400. */
const UNREAD: ReadonlyMap<string, readonly [status: number, text: string]> = new Map([
  [
    "ERR_HTTP_REQUEST_TIMEOUT",
    [408, `the request was not complete after ${GATEWAY_REQUEST_MS} ms`],
  ],
  ["HPE_HEADER_OVERFLOW", [431, `the headers have more than ${GATEWAY_HEADER_BYTES_MAX} bytes`]],
  ["HPE_CHUNK_EXTENSIONS_OVERFLOW", [413, "the extensions of a chunk are too long"]],
]);

/** Answers a request that cannot be read to its end, and closes its connection. `path`: of the last request there. */
export function refuseUnread(error: string | undefined, socket: Duplex, path: string): void {
  // An answer may be under way.
  const { _httpMessage: open } = socket as { _httpMessage?: ServerResponse | null };
  if (!socket.writable || open?.headersSent === true) return void socket.destroy();
  const [code, message] = UNREAD.get(error ?? "") ?? [400, "this is no valid HTTP/1.1 request"];
  const body = errorBody(dialectOf(path), { code, type: "BadRequestError", message });
  const head = [
    `HTTP/1.1 ${code} ${STATUS_CODES[code] ?? ""}`,
    "content-type: application/json",
    `content-length: ${Buffer.byteLength(body)}`,
    "connection: close",
  ];
  socket.end(`${head.join("\r\n")}\r\n\r\n${body}`);
}

export function refuseCounted(
  response: ServerResponse,
  reason: Refused,
  { figures }: { figures: Figures },
): void {
  figures.refused(reason);
  refuse(response, reason);
}

/** Sets the headers of what remains to the key; call before the answer's headers are written. */
export function tellLimits(response: ServerResponse, visit: Visit | null): void {
  for (const [name, value] of Object.entries(visit?.headers() ?? {})) {
    response.setHeader(name, value);
  }
}

export function refuseLimited(
  response: ServerResponse,
  { spent, retryAfterS, headers }: Refusal,
  { figures }: { figures: Figures },
): void {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  figures.refused(spent);
  refuse(response, spent, retryAfterS);
}

const BROKEN: ApiError = {
  code: 502,
  type: "BadGatewayError",
  message: "the engine broke off in the middle of its answer",
};

/** Returns the event that ends a broken stream, so that clients read an error and never an end. */
export const brokenEvent = (dialect: Dialect): string => errorEvent(dialect, BROKEN);
