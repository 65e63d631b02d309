// Owns forwarding one request: to the first engine, to the next where that one fails before the first byte, and its answer back.
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Dispatcher } from "undici";
import { GATEWAY_EVENT_TEXT_MAX, GATEWAY_TRIES_MAX } from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import type { Figures } from "../counts/figures.ts";
import { textWithin } from "../engines/answer.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Choice, Router, Sent } from "../score/router.ts";
import type { Visit } from "./allowance.ts";
import { dialectOf, errorEvent } from "./dialect.ts";
import { headersToClient, headersToEngine } from "./headers.ts";
import type { Passage } from "./headers.ts";
import { KeepAlive } from "./keep-alive.ts";
import { Meter } from "./meter.ts";
import { pump } from "./pump.ts";
import type { Outcome } from "./pump.ts";
import { brokenEvent, refuseCounted } from "./refusal.ts";
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
  /** Path and query for the engine. */
  target: string;
  /** Body for the engine, needed until an answer begins. */
  body: Held;
  /** null: any engine may answer. */
  model: string | null;
  choice: Choice;
  passage: Passage;
  /** Whether the answer names its engine. */
  hasEngine: boolean;
  /** Whether the client asked for a stream of events. */
  isStream: boolean;
  arrivedMs: number;
  /** null: its key has no limits. */
  visit: Visit | null;
  /** Sees the first bytes of a successful answer; undefined: nobody needs them. */
  onBegun: ((engine: Engine, chunk: Buffer) => void) | undefined;
}

/** A body that is given back as soon as no retry can need it. */
export interface Held {
  readonly bytes: Buffer;
  /** Idempotent. */
  release(): void;
}

interface Tried extends Exchange {
  /** null: the client expects no stream. */
  alive: KeepAlive | null;
}

interface Attempt extends Tried {
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
  const alive = exchange.isStream ? new KeepAlive(response) : null;
  const result = await tryEngines({ ...exchange, alive }, to, left.signal);
  alive?.stop();
  response.off("close", onClose);
  if (result === "done") return;
  if (left.signal.aborted) return to.figures.gone();
  refuseCounted(response, result, to);
}

/** Returns "done", or why there is no answer. */
async function tryEngines(
  exchange: Tried,
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
    const isLast = tries === GATEWAY_TRIES_MAX || !fleet.hasUntried(tried, model);
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
  const { engine, isLast } = attempted;
  const waiting = engine.untilBegun(signal);
  try {
    let answer: Dispatcher.ResponseData;
    try {
      answer = await ask(attempted, engine, waiting.signal);
    } catch (error) {
      if (!signal.aborted) fleet.suspect(engine, error);
      return false;
    }
    // The last engine's own refusal says more than ours, such as when to come again.
    if (UNSERVED.has(answer.statusCode) && !isLast) {
      fleet.suspect(engine, null);
      answer.body.on("error", () => {}).destroy();
      return false;
    }
    return await deliver(answer, attempted, waiting.begun, to);
  } finally {
    waiting.begun();
  }
}

function ask(
  { request, target, body, passage, sent }: Attempt,
  engine: Engine,
  signal: AbortSignal,
): Promise<Dispatcher.ResponseData> {
  return engine.pool.request({
    method: request.method ?? "GET",
    path: target,
    headers: [
      ...Object.entries(sent.headers).flat(),
      ...headersToEngine(request, passage, engine.access),
    ],
    body: body.bytes.length === 0 ? null : body.bytes,
    signal,
  });
}

async function deliver(
  { statusCode, headers, body }: Dispatcher.ResponseData,
  attempted: Attempt,
  begun: () => void,
  to: Forwarding,
): Promise<boolean> {
  const { response, target, arrivedMs, engine, sent, visit, hasEngine, alive, onBegun } = attempted;
  const isEvents = String(headers["content-type"] ?? "").startsWith("text/event-stream");
  const meter = isEvents ? null : new Meter();
  let isFirst = true;
  const pass = (chunk: Buffer): void => {
    visit?.pass(chunk);
    meter?.pass(chunk);
    if (isFirst && statusCode === 200) onBegun?.(engine, chunk);
    isFirst = false;
  };
  const begin = (): void => {
    begun();
    alive?.stop();
    attempted.body.release();
    // Not for errors, because they come before any computing.
    if (statusCode === 200) sent.begun(isEvents);
    to.figures.began(engine.name, statusCode, (nowMs() - arrivedMs) / 1000);
    if (response.headersSent) return;
    response.writeHead(statusCode, {
      ...headersToClient(headers),
      ...(hasEngine ? { "x-gateway-destination-endpoint-served": engine.name } : {}),
      ...sent.receipt,
    });
  };
  // From here on the head must be this answer's own.
  if (!isEvents) alive?.stop();
  if (response.headersSent && !isEvents) return await asEvent(body, statusCode, attempted, begin);
  const broken = isEvents ? brokenEvent(dialectOf(target)) : null;
  const outcome = await pump(body, response, broken, { begin, pass });
  const tokens = outcome === "whole" && statusCode === 200 ? meter?.answer : null;
  if (typeof tokens === "number") sent.answered(tokens);
  count(outcome, engine, to);
  return outcome !== "unsent";
}

function count(outcome: Outcome, engine: Engine, { fleet, figures }: Forwarding): void {
  if (outcome === "gone") figures.gone();
  if (outcome === "broken") figures.broken(engine.name);
  if (outcome === "broken" || outcome === "unsent") fleet.suspect(engine, null);
}

/** Ends a stream that was kept alive with an engine's answer that is no stream: an error, as a rule. */
async function asEvent(
  body: Dispatcher.ResponseData["body"],
  code: number,
  { response, target }: Attempt,
  begin: () => void,
): Promise<boolean> {
  let text: string | null;
  try {
    text = await textWithin(body, GATEWAY_EVENT_TEXT_MAX);
  } catch {
    return false;
  }
  begin();
  if (code === 200 && text !== null) response.end(`data: ${text.replaceAll("\n", " ")}\n\n`);
  else
    response.end(errorEvent(dialectOf(target), { code, type: "EngineError", message: text ?? "" }));
  return true;
}
