// Owns forwarding one request: to the first engine, to the next where that one fails before the first byte, and its answer back.
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Dispatcher } from "undici";
import { GATEWAY_TRIES_MAX } from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import type { Figures } from "../counts/figures.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Choice, Router, Sent } from "../score/router.ts";
import type { Visit } from "./allowance.ts";
import { dialectOf } from "./dialect.ts";
import { headersToClient, headersToEngine } from "./headers.ts";
import { Meter } from "./meter.ts";
import { pump } from "./pump.ts";
import { brokenEvent, pathOf, refuseCounted } from "./refusal.ts";
import type { Refused } from "./refusal.ts";

/** Statuses of an engine that cannot serve now, so that another one is tried. */
const UNSERVED: ReadonlySet<number> = new Set([502, 503, 504]);

export interface Forwarding {
  fleet: Fleet;
  figures: Figures;
  router: Router;
}

export interface Exchange {
  request: IncomingMessage;
  response: ServerResponse;
  body: Buffer;
  /** null: any engine may answer. */
  model: string | null;
  choice: Choice;
  /** Headers meant for the gateway itself. */
  ownHeaders: readonly string[];
  arrivedMs: number;
  /** null: its key has no limits. */
  visit: Visit | null;
}

interface Attempt extends Exchange {
  engine: Engine;
  sent: Sent;
  isLast: boolean;
}

/** Answers one request. Never throws. */
export async function forward(exchange: Exchange, to: Forwarding): Promise<void> {
  const { response } = exchange;
  const left = new AbortController();
  const onClose = (): void => left.abort();
  response.once("close", onClose);
  // The client may have left while its prompt was examined.
  if (response.destroyed) onClose();
  const result = await tryEngines(exchange, to, left.signal);
  response.off("close", onClose);
  if (result === "done") return;
  if (left.signal.aborted) return to.figures.gone();
  refuseCounted(response, result, to);
}

/** Returns "done", or why there is no answer. */
async function tryEngines(
  exchange: Exchange,
  to: Forwarding,
  signal: AbortSignal,
): Promise<"done" | Refused> {
  const { model, choice } = exchange;
  const { fleet, figures } = to;
  const tried = new Set<Engine>();
  for (let tries = 1; tries <= GATEWAY_TRIES_MAX; tries += 1) {
    const engine = await fleet.enter(model, choice.order, signal, {
      not: tried,
      turn: choice.turn,
    });
    if (typeof engine === "string") {
      const isOwn = engine !== "gone" && (tries === 1 || !fleet.hasAny(model));
      return isOwn ? engine : "failed";
    }
    tried.add(engine);
    const sent = choice.send(engine);
    const isLast = tries === GATEWAY_TRIES_MAX;
    const isServed = await attempt({ ...exchange, engine, sent, isLast }, to, signal);
    sent.ended();
    fleet.leave(engine);
    if (isServed) return "done";
    if (signal.aborted) return "failed";
    figures.retried(engine.name);
    // The only engine may have closed an idle connection just then, so it is tried once more.
    if (tries === 1 && !fleet.hasOther(engine, model)) tried.clear();
  }
  return "failed";
}

/** Returns false where nothing was sent to the client, so that another engine may be tried. */
async function attempt(attempted: Attempt, to: Forwarding, signal: AbortSignal): Promise<boolean> {
  const { fleet } = to;
  const { engine, isLast, model } = attempted;
  let answer: Dispatcher.ResponseData;
  try {
    answer = await ask(attempted, engine, signal);
  } catch (error) {
    if (!signal.aborted) fleet.suspect(engine, error);
    return false;
  }
  if (UNSERVED.has(answer.statusCode) && !isLast && fleet.hasOther(engine, model)) {
    fleet.suspect(engine, null);
    answer.body.on("error", () => {}).destroy();
    return false;
  }
  return deliver(answer, attempted, to);
}

function ask(
  { request, body, ownHeaders }: Exchange,
  engine: Engine,
  signal: AbortSignal,
): Promise<Dispatcher.ResponseData> {
  return engine.pool.request({
    method: request.method ?? "GET",
    path: request.url ?? "/",
    headers: headersToEngine(request.rawHeaders, request.headers.connection, ownHeaders),
    body: body.length === 0 ? null : body,
    signal,
  });
}

async function deliver(
  { statusCode, headers, body }: Dispatcher.ResponseData,
  { request, response, arrivedMs, engine, sent, visit }: Attempt,
  { fleet, figures }: Forwarding,
): Promise<boolean> {
  const isEvents = String(headers["content-type"] ?? "").startsWith("text/event-stream");
  const meter = isEvents ? null : new Meter();
  const pass = (chunk: Buffer): void => {
    visit?.pass(chunk);
    meter?.pass(chunk);
  };
  const begin = (): void => {
    // Not for errors, because they come before any computing.
    if (statusCode === 200) sent.begun(isEvents);
    figures.began(engine.name, statusCode, (nowMs() - arrivedMs) / 1000);
    response.writeHead(statusCode, {
      ...headersToClient(headers),
      "x-gateway-destination-endpoint-served": engine.name,
      ...sent.receipt,
    });
  };
  const broken = isEvents ? brokenEvent(dialectOf(pathOf(request))) : null;
  const outcome = await pump(body, response, broken, { begin, pass });
  const tokens = outcome === "whole" && statusCode === 200 ? meter?.answer : null;
  if (typeof tokens === "number") sent.answered(tokens);
  if (outcome === "gone") figures.gone();
  if (outcome === "broken") figures.broken(engine.name);
  if (outcome === "broken" || outcome === "unsent") fleet.suspect(engine, null);
  return outcome !== "unsent";
}
