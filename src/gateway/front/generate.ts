// Owns `POST /generate`: streams one sequence token by token from its owner's `/v1/completions`, and never ends a broken answer as whole.
import { randomUUID } from "node:crypto";
import type { ServerResponse } from "node:http";
import { GATEWAY_CLIENT_STALL_MS, GATEWAY_EVENT_TEXT_MAX } from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import { textWithin } from "../engines/answer.ts";
import type { EngineAnswer } from "../engines/calls.ts";
import { CLIENT_LEFT, Ending } from "../engines/ending.ts";
import type { Abortable } from "../engines/ending.ts";
import type { Engine, Waiting } from "../engines/engine.ts";
import type { Fields } from "../tokens/prompt.ts";
import type { Visit } from "./allowance.ts";
import { Attempts } from "./attempts.ts";
import type { Forwarding } from "./forward.ts";
import { failureOf, Losses } from "./losses.ts";
import type { Failure } from "./losses.ts";
import { refuseCounted } from "./refusal.ts";

interface Told {
  text: string;
  ids: readonly number[];
}

export interface Generating extends Forwarding {
  /** Salt of the sequence's blocks; null: none. */
  tenant: string | null;
  visit: Visit | null;
}

/** State of one answer so far. */
interface Telling {
  response: ServerResponse;
  sequence: string;
  prompt: string;
  arrivedMs: number;
  text: string;
  tokens: number;
}

/** Answers one request. Never throws. */
export async function generate(
  response: ServerResponse,
  asked: Fields,
  to: Generating,
): Promise<void> {
  const { prompt, seq_id: given, model_name: wanted, max_tokens, temperature } = asked;
  // A nested value may be too deep to serialize, which would look like an engine's failure.
  const isNested = [wanted, max_tokens, temperature].some(
    (one) => typeof one === "object" && one !== null,
  );
  if (typeof prompt !== "string" || isNested) return refuseCounted(response, "no_json", to);
  const sequence = typeof given === "string" && given !== "" ? given : randomUUID();
  const telling = { response, sequence, prompt, arrivedMs: nowMs(), text: "", tokens: 0 };
  await tellAny(telling, asked, to);
}

/** Tries the sequence's engines in their order. */
async function tellAny(telling: Telling, asked: Fields, to: Generating): Promise<void> {
  const { fleet, figures, router } = to;
  const { response, sequence } = telling;
  const { model_name: wanted } = asked;
  const model = typeof wanted === "string" ? wanted : null;
  const left = new Ending();
  response.once("close", () => left.abort(CLIENT_LEFT));
  if (response.destroyed) left.abort(CLIENT_LEFT);
  const order = router.orderOf(sequence);
  const attempts = new Attempts(fleet, { model, order, losses: new Losses() });
  for (;;) {
    const engine = await attempts.next(left);
    if (engine === "gone") return figures.gone();
    if (typeof engine === "string") return refuseCounted(response, engine, to);
    const end = await tell(telling, asked, engine, to, left);
    fleet.leave(engine);
    if (end === "served") return;
    if (!attempts.goesOn(engine, end)) return refuseCounted(response, "suspect", to);
    figures.retried(engine.name);
  }
}

/** Returns why nothing was sent, where another engine may be tried. */
async function tell(
  telling: Telling,
  asked: Fields,
  engine: Engine,
  to: Generating,
  left: Abortable,
): Promise<"served" | Failure> {
  const waiting = engine.untilBegun(left);
  try {
    return await tellUntil(telling, asked, engine, to, { left, waiting });
  } finally {
    waiting.begun();
  }
}

async function tellUntil(
  telling: Telling,
  asked: Fields,
  engine: Engine,
  { fleet, figures, tenant, visit }: Generating,
  { left, waiting }: { left: Abortable; waiting: Waiting },
): Promise<"served" | Failure> {
  const { response } = telling;
  const { signal } = waiting;
  try {
    const answer = await ask(engine, { ...asked, tenant }, signal);
    if (answer.statusCode !== 200) {
      const text = await textWithin(answer.body(), GATEWAY_EVENT_TEXT_MAX);
      if (text === null) throw new Error("a refusal without an end");
      if (answer.statusCode >= 500) throw new Error(`it answers ${answer.statusCode}`);
      response.writeHead(answer.statusCode, { "content-type": "application/json" }).end(text);
      return "served";
    }
    for await (const told of eventsOf(answer, visit)) {
      engine.noteSign();
      waiting.begun();
      await say(telling, told, engine, figures, left);
    }
  } catch (error) {
    if (left.aborted) {
      figures.gone();
      return "served";
    }
    if (!response.headersSent) return await failureOf(error, engine, waiting, fleet);
    engine.breaks += 1;
    fleet.suspect(engine, error);
    figures.broken(engine.name);
    response.end(event({ type: "error", error: "the worker broke off" }));
    return "served";
  }
  begin(telling, engine, figures);
  const { sequence: seq_id, text: generated_text, tokens: tokens_generated } = telling;
  response.end(event({ type: "done", seq_id, generated_text, tokens_generated }));
  return "served";
}

function ask(
  engine: Engine,
  { prompt, model_name, max_tokens, temperature, tenant }: Fields,
  signal: Abortable,
): Promise<EngineAnswer> {
  const model = model_name ?? engine.models[0]?.id;
  const salt = tenant === null ? {} : { cache_salt: tenant };
  const how = { stream: true, return_token_ids: true };
  const body = { model, prompt, max_tokens, temperature, ...how, ...salt };
  return engine.ask({
    method: "POST",
    path: "/v1/completions",
    headers: ["content-type", "application/json"],
    body: JSON.stringify(body),
    signal,
  });
}

/** Yields tokens until `[DONE]`; throws where the answer ends before it. */
async function* eventsOf(answer: EngineAnswer, visit: Visit | null): AsyncGenerator<Told> {
  let pending = "";
  for await (const chunk of answer.body().setEncoding("utf8") as AsyncIterable<string>) {
    pending += chunk;
    if (pending.length > GATEWAY_EVENT_TEXT_MAX) throw new Error("an event without an end");
    const events = pending.split("\n\n");
    pending = events.pop() ?? "";
    visit?.count(events.filter((text) => dataOf(text) !== null).length);
    for (const text of events) {
      const data = dataOf(text);
      if (data === null) continue;
      if (data === "[DONE]") return;
      yield toldIn(data);
    }
  }
  throw new Error("the answer has no end");
}

/** Returns the data of an event; null: a comment, such as vLLM's keep-alive, has none. */
function dataOf(event: string): string | null {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length === 0 ? null : lines.map((line) => line.replace(/^data: ?/, "")).join("\n");
}

function toldIn(data: string): Told {
  const parsed = JSON.parse(data) as { error?: unknown; choices?: unknown };
  if (parsed.error !== undefined) throw new Error("the engine reports an error");
  const [choice] = (Array.isArray(parsed.choices) ? parsed.choices : []) as Fields[];
  const { text, token_ids: ids } = choice ?? {};
  return {
    text: typeof text === "string" ? text : "",
    ids: Array.isArray(ids) ? ids.filter((id): id is number => typeof id === "number") : [],
  };
}

async function say(
  telling: Telling,
  { text, ids }: Told,
  engine: Engine,
  figures: Forwarding["figures"],
  left: Abortable,
): Promise<void> {
  if (text === "" && ids.length === 0) return;
  begin(telling, engine, figures);
  const { response } = telling;
  telling.text += text;
  telling.tokens += Math.max(1, ids.length);
  if (response.write(event({ type: "token", token: text, token_id: ids[0] ?? null }))) return;
  const stalled = setTimeout(() => response.destroy(), GATEWAY_CLIENT_STALL_MS);
  await drained(response, left).finally(() => clearTimeout(stalled));
}

/** Resolves when the client has taken what was written; rejects where it leaves. */
function drained(response: ServerResponse, left: Abortable): Promise<void> {
  return new Promise((resolve, reject) => {
    const onGone = (): void => reject(CLIENT_LEFT);
    left.addEventListener("abort", onGone, { once: true });
    response.once("drain", () => {
      left.removeEventListener("abort", onGone);
      resolve();
    });
  });
}

/** Writes the headers and the `start` event, right before the first token. */
function begin(
  { response, sequence, prompt, arrivedMs }: Telling,
  engine: Engine,
  figures: Forwarding["figures"],
): void {
  if (response.headersSent) return;
  figures.began(engine.name, 200, (nowMs() - arrivedMs) / 1000);
  response.writeHead(200, {
    "content-type": "text/event-stream; charset=utf-8",
  });
  response.write(event({ type: "start", seq_id: sequence, prompt, worker_id: engine.id }));
}

const event = (what: object): string => `data: ${JSON.stringify(what)}\n\n`;
