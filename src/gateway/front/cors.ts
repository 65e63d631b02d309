// Owns access of web pages on other origins: answers to preflights, and the headers of every answer.
import type { IncomingMessage, ServerResponse } from "node:http";

const ALLOWED = "access-control-allow-origin";
/** How long a browser may keep the answer to a preflight, in seconds. */
const KEPT_S = "600";

/** Origins whose pages may read answers; `*`: all. */
export type Origins = readonly string[];

/** Sets the headers by which a browser lets the asking page read the answer; engines' own are left out (headers.ts). */
export function allowOrigin(
  request: IncomingMessage,
  response: ServerResponse,
  origins: Origins,
): void {
  const { origin } = request.headers;
  if (origin === undefined || origins.length === 0) return;
  if (origins.includes("*")) response.setHeader(ALLOWED, "*");
  else {
    response.setHeader("vary", "Origin");
    if (origins.includes(origin)) response.setHeader(ALLOWED, origin);
  }
  if (response.hasHeader(ALLOWED)) response.setHeader("access-control-expose-headers", "*");
}

/** Answers a browser's question before its request, which carries no key. Returns false for any other request. */
export function answerPreflight(request: IncomingMessage, response: ServerResponse): boolean {
  const { "access-control-request-method": method, "access-control-request-headers": headers } =
    request.headers;
  if (request.method !== "OPTIONS" || method === undefined) return false;
  if (response.hasHeader(ALLOWED)) {
    response.setHeader("access-control-allow-methods", "GET, POST, DELETE, OPTIONS");
    response.setHeader("access-control-max-age", KEPT_S);
    if (headers !== undefined) response.setHeader("access-control-allow-headers", headers);
  }
  response.writeHead(204).end();
  return true;
}
