// Owns the gateway's address for clients: which paths are passed on, which it answers itself, and bounds on connections.
import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { Running } from "../../lifecycle.ts";
import {
  GATEWAY_CONNECTIONS_MAX,
  GATEWAY_DRAIN_MS,
  GATEWAY_HEADER_BYTES_MAX,
  GATEWAY_REQUEST_MS,
} from "../../limits/gateway.ts";
import { listenAt } from "../../listen.ts";
import { nowMs } from "../../time.ts";
import { computeAhead } from "./ahead.ts";
import { Visit } from "./allowance.ts";
import { readBody } from "./body.ts";
import type { BodyBudget } from "./body.ts";
import { forward } from "./forward.ts";
import type { Forwarding } from "./forward.ts";
import type { Keys } from "./keys.ts";
import { enter, holderOf, isPassed, readingOf } from "./reading.ts";
import type { Holder } from "./reading.ts";
import { pathOf, refuseCounted, refuseLimited, tellLimits } from "./refusal.ts";
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
}

export interface Front extends Running {
  /** `http://host:port` or `https://host:port`, with the real port. */
  readonly url: string;
}

/** Serves until closed; open answers then have GATEWAY_DRAIN_MS to end. Throws ADDRESS_IN_USE or LISTEN_FAILED. */
export async function startFront(options: FrontOptions): Promise<Front> {
  const state = { isClosing: false };
  const limits = {
    maxHeaderSize: GATEWAY_HEADER_BYTES_MAX,
    headersTimeout: GATEWAY_REQUEST_MS,
    requestTimeout: GATEWAY_REQUEST_MS,
    noDelay: true,
  };
  const onRequest = (request: IncomingMessage, response: ServerResponse): void => {
    // A client that left is noticed by `close`.
    response.on("error", () => {});
    if (state.isClosing) response.setHeader("connection", "close");
    void answer(request, response, options).catch(() => unread(response, options));
  };
  const { tls } = options;
  const server =
    tls === null
      ? createServer(limits, onRequest)
      : createTlsServer({ ...limits, ...tls, minVersion: "TLSv1.3" }, onRequest);
  server.maxConnections = GATEWAY_CONNECTIONS_MAX;
  const at = await listenAt(server, options.listen, "[gateway] listen");
  return {
    url: `${tls === null ? "http" : "https"}://${at}`,
    async close(): Promise<void> {
      state.isClosing = true;
      await closed(server);
    },
  };
}

async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  options: FrontOptions,
): Promise<void> {
  const arrivedMs = nowMs();
  const path = pathOf(request);
  const isGet = request.method === "GET";
  if (isGet && path === "/health") return sayHealth(response, options);
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
  const { holder, path } = asked;
  const isForEngine = isPassed(path, holder) || (path === GENERATE && options.registry !== null);
  const visit = isForEngine ? enter(holder) : null;
  if (visit !== null && !(visit instanceof Visit)) return refuseLimited(response, visit, options);
  if (visit !== null) {
    response.once("close", () => visit.leave(response.headersSent ? response.statusCode : null));
  }
  const tenant = typeof holder === "symbol" ? null : holder.tenant;
  if (await answerSequence(request, response, path, { ...options, tenant, visit })) return;
  if (!isForEngine) return refuseCounted(response, "no_path", options);
  await take(request, response, { ...asked, visit }, options);
}

/** Takes a request that an engine has to answer. */
async function take(
  request: IncomingMessage,
  response: ServerResponse,
  arrived: Arrived,
  options: FrontOptions,
): Promise<void> {
  const { budget } = options;
  const bytes = await readBody(request, budget);
  if (bytes === "gone") return options.figures.gone();
  if (typeof bytes === "string") return refuseCounted(response, bytes, options);
  try {
    await pass(request, response, { ...arrived, bytes }, options);
  } finally {
    budget.give(bytes.length);
  }
}

interface Arrived {
  holder: Holder;
  /** null: its key has no limits. */
  visit: Visit | null;
  path: string;
  arrivedMs: number;
}

async function pass(
  request: IncomingMessage,
  response: ServerResponse,
  { bytes, holder, visit, path, arrivedMs }: Arrived & { bytes: Buffer },
  options: FrontOptions,
): Promise<void> {
  const reading = readingOf(bytes, path, request.headers, holder);
  if (reading === null) return refuseCounted(response, "no_json", options);
  const { asked, ownHeaders } = reading;
  const spent = visit?.spend(asked.body, bytes.length) ?? null;
  tellLimits(response, visit);
  if (spent !== null) return refuseLimited(response, spent, options);
  let { bytes: body } = reading;
  let choice = await options.router.choose(asked);
  if (choice.isLate) return refuseCounted(response, "late", options);
  if (choice.ahead !== null && typeof asked.body === "object" && asked.body !== null) {
    const computed = { request, response, body: asked.body, path, ownHeaders };
    const handed = await computeAhead(computed, choice.ahead, options.fleet);
    options.figures.handedOver(choice.ahead.engine.name, handed !== null);
    body = handed?.body ?? body;
    choice = await options.router.choose(asked, handed?.tokens);
  }
  await forward(
    { request, response, body, model: asked.model, choice, ownHeaders, arrivedMs, visit },
    options,
  );
}

function sayHealth(response: ServerResponse, { fleet }: Forwarding): void {
  response.writeHead(fleet.hasAny(null) ? 200 : 503).end();
}

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

/** Closes idle connections at once, the others with their answer, and all after GATEWAY_DRAIN_MS. */
function closed(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => server.closeAllConnections(), GATEWAY_DRAIN_MS);
    server.close(() => {
      clearTimeout(timer);
      resolve();
    });
    server.closeIdleConnections();
  });
}
