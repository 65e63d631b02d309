// Owns computing a prompt on one engine for another: sent there for one token, then handed over to the engine that answers.
import type { IncomingMessage, ServerResponse } from "node:http";
import { toTierkvError } from "../../base/errors.ts";
import { GATEWAY_HANDOFF_BYTES_MAX, GATEWAY_HANDOFF_RETRY_MS } from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import { CLIENT_LEFT, Ending } from "../engines/ending.ts";
import type { Abortable } from "../engines/ending.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Ahead } from "../score/router.ts";
import { formOf, MESSAGES, RESPONSES } from "../tokens/prompt.ts";
import type { Fields } from "../tokens/prompt.ts";
import { fieldsOf } from "./body.ts";
import { headersToEngine } from "./headers.ts";
import type { Passage } from "./headers.ts";
import { failureOf } from "./losses.ts";
import type { Failure } from "./losses.ts";

export interface Computed {
  request: IncomingMessage;
  response: ServerResponse;
  /** The body, parsed. */
  body: object;
  /** The body that asks for one token of an answer (`forOneToken`). */
  one: object;
  path: string;
  passage: Passage;
}

/** Returns a body of the same prompt that ends with one token and leaves nothing stored; null: its API has no such request. */
export function forOneToken(path: string, body: object): object | null {
  const { stream_options: _unused, min_tokens: _fewest, ...rest } = body as Fields;
  switch (formOf(path, rest)) {
    case RESPONSES:
      return { ...rest, stream: false, store: false, background: false, max_output_tokens: 1 };
    case MESSAGES:
      // An answer must have more tokens than are budgeted for thinking.
      return "budget_tokens" in fieldsOf(rest["thinking"])
        ? null
        : { ...rest, stream: false, max_tokens: 1 };
    default: {
      const one = { ...rest, stream: false, n: 1, max_tokens: 1 };
      return "max_completion_tokens" in rest ? { ...one, max_completion_tokens: 1 } : one;
    }
  }
}

/** The request for the engine that answers. */
export interface HandedOver {
  body: Buffer;
  /** Prompt tokens that the answering engine restores. */
  tokens: number;
}

/**
 * Returns a failure where the prompt was not computed or cannot be restored; the answering engine then computes it, unless the
 * prompt may have ended this one. Never throws.
 */
export async function computeAhead(
  computed: Computed,
  ahead: Ahead,
  fleet: Fleet,
): Promise<HandedOver | Failure> {
  const { engine } = ahead;
  const left = new Ending();
  const onClose = (): void => left.abort(CLIENT_LEFT);
  computed.response.once("close", onClose);
  engine.inFlight += 1;
  const computing = ahead.send();
  const waiting = engine.untilBegun(left, computing.pullMs + computing.computeMs);
  let handoff: Handoff | string = "its client left";
  let failure: Failure = "unserved";
  try {
    handoff = await compute(computed, engine, waiting.signal);
    engine.noteSign();
  } catch (error) {
    if (!left.aborted) {
      failure = await failureOf(error, engine, waiting, fleet);
      handoff = toTierkvError(error).message;
    }
  } finally {
    waiting.begun();
    computed.response.off("close", onClose);
    ahead.done(computing, typeof handoff !== "string");
    fleet.leave(engine);
  }
  if (!left.aborted) fleet.noteHandOver(engine, typeof handoff === "string" ? handoff : null);
  if (typeof handoff === "string") return failure;
  const body = withParams(computed.body, handoff, fieldsOf(paramsOf(computed.body)["tierkv"]));
  return { body: Buffer.from(JSON.stringify(body)), tokens: handoff.tokens };
}

/** Words of the engine that computed the prompt, for the engine that restores it. */
interface Handoff {
  tokens: number;
}

/** Resolves to a text where the engine handed over nothing: why. */
async function compute(
  { request, one, path, passage }: Computed,
  engine: Engine,
  signal: Abortable,
): Promise<Handoff | string> {
  const asked = {
    method: "POST",
    path,
    headers: headersToEngine(request, passage, engine.access),
    body: JSON.stringify(withParams(one, true, {})),
    signal,
  };
  const { statusCode, text } = await engine.calls.text(asked, GATEWAY_HANDOFF_BYTES_MAX);
  if (text === null) return `its answer is larger than ${GATEWAY_HANDOFF_BYTES_MAX} bytes`;
  if (statusCode !== 200) return `it answered with ${statusCode}`;
  const { handoff } = fieldsOf(paramsOf(JSON.parse(text))["tierkv"]);
  const { tokens } = fieldsOf(handoff);
  if (typeof tokens === "number" && tokens > 0) return { ...fieldsOf(handoff), tokens };
  // The engine has no sidecar, no announced name or no tierKV, so computing there for others would be wasted.
  engine.handsOverFromMs = nowMs() + GATEWAY_HANDOFF_RETRY_MS;
  return "its answer hands nothing over: see whether it runs with tierKV, and its sidecar with the vault of the others";
}

/** Adds the handoff; requests a report only where the client asked for one. */
function withParams(body: object, handoff: unknown, own: Fields): Fields {
  const report = "tierkv" in paramsOf(body);
  const tierkv = { report, ...own, handoff };
  return { ...body, kv_transfer_params: { ...paramsOf(body), tierkv } };
}

function paramsOf(body: unknown): Fields {
  return fieldsOf(fieldsOf(body)["kv_transfer_params"]);
}
