// Owns forwarding one request: to the first engine, to the next where that one fails before the first byte, and its answer back.
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Readable } from "node:stream";
import { GATEWAY_EVENT_TEXT_MAX } from "../../base/limits/gateway.ts";
import { AnswerMeter } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";
import type { Figures } from "../counts/figures.ts";
import { textWithin } from "../engines/answer.ts";
import type { EngineAnswer } from "../engines/calls.ts";
import { CLIENT_LEFT, Ending } from "../engines/ending.ts";
import type { Abortable } from "../engines/ending.ts";
import type { Engine, Waiting } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Choice, Router, Sent } from "../score/router.ts";
import type { Visit } from "./allowance.ts";
import { Attempts } from "./attempts.ts";
import type { Held } from "./body.ts";
import { dialectOf, errorEvent } from "./dialect.ts";
import { decoded, isEncoded } from "./encoding.ts";
import type { Plain } from "./encoding.ts";
import { headersToClient, headersToEngine } from "./headers.ts";
import type { Passage } from "./headers.ts";
import { KeepAlive } from "./keep-alive.ts";
import { failureOf } from "./losses.ts";
import type { Failure, Losses } from "./losses.ts";
import { passOn, takes } from "./pass-on.ts";
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
  /** The one engine that can answer; null: any can. */
  only: Engine | null;
  /** Engines lost while the request waited there. */
  losses: Losses;
  passage: Passage;
  /** Whether the client sent an `x-request-id`. */
  isNamed: boolean;
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

interface Attempt {
  exchange: Exchange;
  /** null: the client expects no stream. */
  alive: KeepAlive | null;
  engine: Engine;
  sent: Sent;
  isLast: boolean;
}

/** Answers one request. Never throws. */
export async function forward(exchange: Exchange, to: Forwarding): Promise<void> {
  const { response } = exchange;
  const left = new Ending();
  const onClose = (): void => {
    // A whole answer's connection closes, too, or takes the next request.
    if (!response.writableFinished) left.abort(CLIENT_LEFT);
  };
  response.once("close", onClose);
  // The client may have left while its prompt was examined.
  if (response.destroyed) onClose();
  const alive = exchange.isStream ? new KeepAlive(response) : null;
  const result = await tryEngines(exchange, alive, to, left);
  alive?.stop();
  response.off("close", onClose);
  if (result === "done") return;
  if (left.aborted) return to.figures.gone();
  refuseCounted(response, result, to);
}

/** Returns "done", or why there is no answer. */
async function tryEngines(
  exchange: Exchange,
  alive: KeepAlive | null,
  to: Forwarding,
  signal: Abortable,
): Promise<"done" | Refused> {
  const { fleet, figures } = to;
  const { model, choice, only, losses } = exchange;
  const { order, turn } = choice;
  const attempts = new Attempts(fleet, { model, order, only, turn, losses });
  for (;;) {
    const engine = await attempts.next(signal);
    if (typeof engine === "string") return engine === "gone" ? "failed" : engine;
    const sent = choice.send(engine);
    const { isLast } = attempts;
    const end = await attempt({ exchange, alive, engine, sent, isLast }, to, signal);
    sent.ended();
    fleet.leave(engine);
    if (end === "served") return "done";
    if (signal.aborted) return "failed";
    if (!attempts.goesOn(engine, end)) return "suspect";
    figures.retried(engine.name);
  }
}

/** Returns why nothing was sent to the client, where another engine may be tried. */
async function attempt(
  attempted: Attempt,
  to: Forwarding,
  signal: Abortable,
): Promise<"served" | Failure> {
  const { fleet } = to;
  const { engine, sent, isLast } = attempted;
  const waiting = engine.untilBegun(signal, sent.predictedMs);
  const failed = async (error: unknown): Promise<Failure> =>
    signal.aborted ? "unserved" : await failureOf(error, engine, waiting, fleet);
  try {
    let answer: EngineAnswer;
    try {
      answer = await ask(attempted, waiting.signal);
    } catch (error) {
      return await failed(error);
    }
    // The last engine's own refusal says more than ours, such as when to come again.
    if (UNSERVED.has(answer.statusCode) && !isLast) {
      fleet.suspect(engine, null);
      answer.drop();
      return "unserved";
    }
    return (await deliver(answer, attempted, waiting, to)) ? "served" : await failed(null);
  } finally {
    waiting.begun();
  }
}

function ask({ exchange, sent, engine }: Attempt, signal: Abortable): Promise<EngineAnswer> {
  const { request, target, body, passage } = exchange;
  // Ours come first, because an engine takes the first of two with one name.
  const headers = Object.entries(sent.headers).flat();
  for (const text of headersToEngine(request, passage, engine.access)) headers.push(text);
  const method = request.method ?? "GET";
  return engine.calls.request({ method, path: target, headers, body: body.bytes, signal });
}

/** Returns false where the engine broke off before the first byte. */
async function deliver(
  answer: EngineAnswer,
  attempted: Attempt,
  waiting: Waiting,
  to: Forwarding,
): Promise<boolean> {
  const { exchange, engine, sent, alive } = attempted;
  const { response, visit } = exchange;
  const { statusCode } = answer;
  const reading = readable(answer, visit !== null || response.headersSent);
  const { headers, bodyOf, isEvents } = reading;
  const begin = (): void => {
    waiting.begun();
    begun(attempted, statusCode, isEvents, to);
    if (!response.headersSent) response.writeHead(statusCode, headOf(attempted, headers));
  };
  // From here on the head must be this answer's own.
  if (!isEvents) alive?.stop();
  if (response.headersSent && !isEvents) {
    return await asEvent(bodyOf(), statusCode, attempted, begin);
  }
  const { outcome, tokens } = await convey(answer, reading, attempted, begin);
  if (outcome === "whole" && statusCode === 200 && tokens !== null) sent.answered(tokens);
  count(outcome, engine, to);
  return outcome !== "unsent";
}

/** Whether nothing is left to do with an answer's bytes but to write them. */
const isPassedOn = (
  { isWhole, passTo }: EngineAnswer,
  request: IncomingMessage,
  response: ServerResponse,
): boolean => isWhole || (passTo !== null && takes(request, response));

/** Sends an answer's bytes to the client, by the core where it can; returns the tokens that a plain answer reports. */
async function convey(
  answer: EngineAnswer,
  { bodyOf, isEvents, isRaw }: Reading,
  { exchange, engine }: Attempt,
  begin: () => void,
): Promise<{ outcome: Outcome; tokens: number | null }> {
  const { request, response, target, visit, onBegun } = exchange;
  const onFirst = answer.statusCode === 200 ? onBegun : undefined;
  const hear = (chunk: Buffer): void => {
    visit?.meter.pass(chunk);
    onFirst?.(engine, chunk);
  };
  const broken = isEvents ? brokenEvent(dialectOf(target)) : null;
  if (isRaw && isPassedOn(answer, request, response)) {
    const isHeard = visit !== null || onFirst !== undefined;
    const passing = { begin, hear: isHeard ? hear : null };
    const outcome = await passOn(answer, response, broken, visit?.meter ?? null, passing);
    return { outcome, tokens: answer.tokens };
  }
  const meter = isEvents ? null : new AnswerMeter();
  let isFirst = true;
  const pass = (chunk: Buffer): void => {
    engine.noteSign();
    meter?.pass(chunk);
    if (isFirst) hear(chunk);
    else visit?.meter.pass(chunk);
    isFirst = false;
  };
  const outcome = await pump(bodyOf(), response, broken, { begin, pass });
  return { outcome, tokens: meter?.answer ?? null };
}

/** Counts an answer's first byte. */
function begun(
  { exchange: { body, choice, arrivedMs }, alive, sent, engine }: Attempt,
  code: number,
  isEvents: boolean,
  { figures }: Forwarding,
): void {
  alive?.stop();
  body.release();
  choice.release();
  // Not for errors, because they come before any computing.
  if (code === 200) sent.begun(isEvents);
  figures.began(engine.name, code, (nowMs() - arrivedMs) / 1000);
}

function headOf(
  { exchange: { hasEngine, isNamed }, engine, sent }: Attempt,
  headers: Plain["headers"],
): OutgoingHttpHeaders {
  const head: OutgoingHttpHeaders = headersToClient(headers);
  const { "x-request-id": id } = head;
  // vLLM sends one with `--enable-request-id-headers`.
  if (!isNamed && typeof id === "string") sent.named(id);
  if (hasEngine) head["x-gateway-destination-endpoint-served"] = engine.name;
  return Object.assign(head, sent.receipt);
}

interface Reading {
  headers: Plain["headers"];
  /** Returns the body from its first byte on. */
  bodyOf: () => Readable;
  isEvents: boolean;
  /** Whether the bytes pass as they come. */
  isRaw: boolean;
}

/** Decodes an answer that the gateway has to read: a stream of events, or where `isRead`. */
function readable(answer: EngineAnswer, isRead: boolean): Reading {
  const { headers } = answer;
  const isStream = headers["content-type"]?.startsWith("text/event-stream") === true;
  if (!isEncoded(headers) || !(isStream || isRead)) {
    const isEvents = isStream && !isEncoded(headers);
    return { headers, bodyOf: () => answer.body(), isEvents, isRaw: true };
  }
  const plain = decoded({ headers, body: answer.body() });
  const isEvents = isStream && plain.isPlain;
  return { headers: plain.headers, bodyOf: () => plain.body, isEvents, isRaw: false };
}

function count(outcome: Outcome, engine: Engine, { fleet, figures }: Forwarding): void {
  if (outcome === "gone") figures.gone();
  if (outcome === "broken") figures.broken(engine.name);
  if (outcome !== "broken") return;
  engine.breaks += 1;
  fleet.suspect(engine, null);
}

/** Ends a stream that was kept alive with an engine's answer that is no stream: an error, as a rule. */
async function asEvent(
  body: Readable,
  code: number,
  { exchange: { response, target } }: Attempt,
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
