// Owns the gateway's address for clients: which paths are passed on, which it answers itself, and bounds on connections.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { Duplex } from "node:stream";
import type { Running } from "../../base/lifecycle.ts";
import {
  GATEWAY_CONNECTIONS_MAX,
  GATEWAY_HEADER_BYTES_MAX,
  GATEWAY_REQUEST_MS,
} from "../../base/limits/gateway.ts";
import { listenAt } from "../../base/listen.ts";
import { nowMs } from "../../base/time.ts";
import type { Prefilled } from "../score/decisions.ts";
import type { Choice } from "../score/router.ts";
import { computeAhead, forOneToken } from "./ahead.ts";
import type { Computed } from "./ahead.ts";
import { Visit } from "./allowance.ts";
import { fieldsOf, holdBody } from "./body.ts";
import type { BodyBudget, Held } from "./body.ts";
import { allowOrigin, answerPreflight } from "./cors.ts";
import type { Origins } from "./cors.ts";
import { forward } from "./forward.ts";
import type { Exchange, Forwarding } from "./forward.ts";
import type { Keys } from "./keys.ts";
import type { Leaving } from "./leaving.ts";
import { Losses } from "./losses.ts";
import { enter, holderOf, isPassed, readingOf, tenantOf } from "./reading.ts";
import type { Holder, Reading } from "./reading.ts";
import { pathOf, refuseCounted, refuseLimited, refuseUnread, tellLimits } from "./refusal.ts";
import type { Refused } from "./refusal.ts";
import type { StoredResponses } from "./responses.ts";
import { answerSequence, GENERATE } from "./sequences.ts";
import type { Registry } from "./sequences.ts";

export interface FrontOptions extends Forwarding {
  listen: { readonly host: string; readonly port: number };
  /** null: clients need no key. */
  keys: Keys | null;
  /** PEM; null: no TLS. */
  tls: { readonly cert: string; readonly key: string } | null;
  budget: BodyBudget;
  /** null: the API by sequences is not served. */
  registry: Registry | null;
  /** Web pages that may read answers. */
  origins: Origins;
  /** Whether answers name the engine that made them. */
  hasEngine: boolean;
  stored: StoredResponses;
  /** Whether an engine has named a vault, in which marked prompts can be kept. */
  keeps: () => boolean;
  leaving: Leaving;
}

export interface Front extends Running {
  /** `http://host:port` or `https://host:port`, with the real port. */
  readonly url: string;
}

/** Serves until closed; open answers then have `drain_ms` to end. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
export async function startFront(options: FrontOptions): Promise<Front> {
  const { leaving } = options;
  const limits = {
    maxHeaderSize: GATEWAY_HEADER_BYTES_MAX,
    headersTimeout: GATEWAY_REQUEST_MS,
    requestTimeout: GATEWAY_REQUEST_MS,
    noDelay: true,
  };
  /** Path of the last request of each connection. */
  const latest = new WeakMap<Duplex, string>();
  const onRequest = (request: IncomingMessage, response: ServerResponse): void => {
    // A client that left is noticed by `close`.
    response.on("error", () => {});
    leaving.opened(request, response);
    if (leaving.isLeaving) response.setHeader("connection", "close");
    latest.set(request.socket, pathOf(request));
    void answer(request, response, options).catch(() => unread(response, options));
  };
  const { tls } = options;
  const server =
    tls === null
      ? createServer(limits, onRequest)
      : createTlsServer({ ...limits, ...tls, minVersion: "TLSv1.3" }, onRequest);
  server.on("clientError", (error: NodeJS.ErrnoException, socket) => {
    refuseUnread(error.code, socket, latest.get(socket) ?? "/");
  });
  server.maxConnections = GATEWAY_CONNECTIONS_MAX;
  const at = await listenAt(server, options.listen, "[gateway] listen");
  return {
    url: `${tls === null ? "http" : "https"}://${at}`,
    close: () => closed(server, leaving),
  };
}

async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  options: FrontOptions,
): Promise<void> {
  const arrivedMs = nowMs();
  allowOrigin(request, response, options.origins);
  if (answerPreflight(request, response)) return;
  // Engines redirect a path with a slash at its end to their own address.
  const path = pathOf(request).replace(/(?<=.)\/+$/, "");
  const isGet = request.method === "GET" || request.method === "HEAD";
  if (HEALTH.has(path) && (isGet || path === "/ping")) return sayHealth(response, options);
  if (request.headers.upgrade !== undefined) return refuseCounted(response, "upgrade", options);
  const holder = holderOf(options.keys, request.headers);
  if (holder === null) return refuseCounted(response, "no_key", options);
  if (isGet && OWN.has(path)) return answerOurselves(path, response, options);
  await serve(request, response, { holder, path, arrivedMs }, options);
}

/** Refuses a body nested too deeply to serialize, or of too many parts; nothing was sent to an engine by then. */
function unread(response: ServerResponse, options: FrontOptions): void {
  if (response.headersSent) response.destroy();
  else refuseCounted(response, "no_json", options);
}

/** Serves a request within its key's limits. */
async function serve(
  request: IncomingMessage,
  response: ServerResponse,
  asked: Omit<Arrived, "visit">,
  options: FrontOptions,
): Promise<void> {
  const { holder, path, arrivedMs } = asked;
  const isForEngine = isPassed(path, holder) || (path === GENERATE && options.registry !== null);
  const visit = isForEngine ? enter(holder) : null;
  if (visit !== null && !(visit instanceof Visit)) return refuseLimited(response, visit, options);
  if (visit !== null) {
    response.once("close", () => visit.leave(response.headersSent ? response.statusCode : null));
  }
  if (options.registry !== null) {
    const tenant = tenantOf(holder);
    if (await answerSequence(request, response, path, { ...options, tenant, visit })) return;
  }
  if (!isForEngine) return refuseCounted(response, "no_path", options);
  await take(request, response, { holder, path, arrivedMs, visit }, options);
}

/** Takes a request that an engine has to answer. */
async function take(
  request: IncomingMessage,
  response: ServerResponse,
  arrived: Arrived,
  options: FrontOptions,
): Promise<void> {
  const body = await holdBody(request, options.budget);
  if (body === "gone") return options.figures.gone();
  if (typeof body === "string") return refuseCounted(response, body, options);
  try {
    const exchange = await exchangeOf(request, response, arrived, body, options);
    if (exchange !== null) await forward(exchange, options);
  } finally {
    body.release();
  }
}

interface Arrived {
  holder: Holder;
  /** null: its key has no limits. */
  visit: Visit | null;
  path: string;
  arrivedMs: number;
}

/**
 * Returns null where the request was refused. What it returns holds nothing of the request's text but `body`, because a
 * function that waits for the whole answer would keep all that it has read.
 */
async function exchangeOf(
  request: IncomingMessage,
  response: ServerResponse,
  { holder, visit, path, arrivedMs }: Arrived,
  body: Held,
  options: FrontOptions,
): Promise<Exchange | null> {
  const reading = readingOf(body.bytes, path, request.headers, holder, options.keeps);
  if (reading === null) return refused(response, "no_json", options);
  const { asked, passage } = reading;
  const tenant = tenantOf(holder);
  const place = options.stored.placeOf(path, asked.body, tenant, options.fleet.engines);
  if (place === "nowhere") return refused(response, "no_response", options);
  const spent = visit?.spend(asked.body, asked.bytes) ?? null;
  tellLimits(response, visit);
  if (spent !== null) {
    refuseLimited(response, spent, options);
    return null;
  }
  const isNamed = asked.id !== "";
  if (!isNamed) asked.id = randomUUID();
  const losses = new Losses();
  const picked = await chosen({ request, response, path }, reading, losses, options);
  if (picked === "suspect") return refused(response, "suspect", options);
  const { choice } = picked;
  if (choice.isLate) return refused(response, "late", options);
  body.replace(picked.body);
  // The engine does not get this id: it makes its own, which its answer and its logs name.
  if (!isNamed) response.setHeader("x-request-id", asked.id);
  return {
    request,
    response,
    target: `${path}${(request.url ?? "").replace(/^[^?]*/, "")}`,
    body,
    model: asked.model,
    choice,
    only: place === "any" ? null : place,
    losses,
    passage,
    isNamed,
    hasEngine: options.hasEngine,
    isStream: fieldsOf(asked.body)["stream"] === true,
    arrivedMs,
    visit,
    onBegun: options.stored.onBegun(path, tenant),
  };
}

function refused(response: ServerResponse, reason: Refused, options: FrontOptions): null {
  refuseCounted(response, reason, options);
  return null;
}

/** Chooses an engine, where that pays after another engine has computed the prompt. */
async function chosen(
  from: Pick<Computed, "request" | "response" | "path">,
  { asked, bytes, passage }: Reading,
  losses: Losses,
  { router, fleet, figures }: Forwarding,
): Promise<{ choice: Choice; body: Buffer } | "suspect"> {
  const choice = await router.choose(asked);
  const { body } = asked;
  if (choice.isLate || choice.ahead === null || typeof body !== "object" || body === null) {
    return { choice, body: bytes };
  }
  const one = forOneToken(from.path, body);
  if (one === null) return { choice, body: bytes };
  const { ahead } = choice;
  const startedMs = nowMs();
  const handed = await computeAhead({ ...from, body, one, passage }, ahead, fleet);
  const prefilled = (tokens: number): Prefilled => ({
    engine: ahead.engine.name,
    tokens,
    predictedMs: ahead.predictedMs,
    measuredMs: nowMs() - startedMs,
  });
  figures.handedOver(ahead.engine.name, typeof handed !== "string");
  if (typeof handed !== "string") {
    const { tokens, body: handedBody } = handed;
    return { choice: await router.choose(asked, prefilled(tokens)), body: handedBody };
  }
  if (!losses.allows(handed)) return "suspect";
  return { choice: await router.choose(asked, prefilled(0)), body: bytes };
}

function sayHealth(response: ServerResponse, { fleet, leaving }: FrontOptions): void {
  response.writeHead(fleet.hasAny(null) && !leaving.isLeaving ? 200 : 503).end();
}

/** vLLM serves both. */
const HEALTH: ReadonlySet<string> = new Set(["/health", "/ping"]);
const OWN: ReadonlySet<string> = new Set(["/metrics", "/v1/models"]);

async function answerOurselves(
  path: string,
  response: ServerResponse,
  { fleet, figures }: Forwarding,
): Promise<void> {
  if (path === "/metrics") {
    const text = await figures.text();
    response.writeHead(200, { "content-type": figures.contentType }).end(text);
  } else {
    const text = JSON.stringify({ object: "list", data: fleet.models() });
    response.writeHead(200, { "content-type": "application/json" }).end(text);
  }
}

/** Closes idle connections at once, the others with their answer, and all after `drain_ms`. */
function closed(server: Server, leaving: Leaving): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      leaving.cut();
      server.closeAllConnections();
    }, leaving.drainMs);
    server.close(() => {
      clearTimeout(timer);
      resolve();
    });
    server.closeIdleConnections();
  });
}
