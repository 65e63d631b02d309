// Owns a prompt that one engine computes so that another one answers: sent there for one token, then awaited in a vault.
import type { IncomingMessage, ServerResponse } from "node:http";
import { GATEWAY_SAVED_MS, GATEWAY_SAVED_POLL_MS } from "../../limits-gateway.ts";
import { nowMs, sleep } from "../../time.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet } from "../engines/fleet.ts";
import type { Ahead } from "../score/router.ts";
import { headersToEngine } from "./headers.ts";

export interface Computed {
  request: IncomingMessage;
  response: ServerResponse;
  /** The body, parsed. */
  body: object;
  path: string;
  ownHeaders: readonly string[];
}

/** Resolves when it may be pulled, or could not be computed so: then whoever answers computes it. Never throws. */
export async function computeAhead(computed: Computed, ahead: Ahead, fleet: Fleet): Promise<void> {
  const { engine } = ahead;
  const left = new AbortController();
  const onClose = (): void => left.abort();
  computed.response.once("close", onClose);
  engine.inFlight += 1;
  const computing = ahead.send();
  let isComputed = false;
  try {
    isComputed = await compute(computed, engine, left.signal);
  } catch (error) {
    if (!left.signal.aborted) fleet.suspect(engine, error);
  } finally {
    ahead.done(computing, isComputed);
    fleet.leave(engine);
  }
  if (isComputed) await untilSaved(computed, ahead, left.signal);
  computed.response.off("close", onClose);
}

async function compute(
  { request, body, path, ownHeaders }: Computed,
  engine: Engine,
  signal: AbortSignal,
): Promise<boolean> {
  const { stream_options: _unused, min_tokens: _fewest, ...rest } = body as Record<string, unknown>;
  const one = { ...rest, stream: false, n: 1, max_tokens: 1 };
  const isChat = "max_completion_tokens" in rest;
  const answer = await engine.pool.request({
    method: "POST",
    path,
    headers: headersToEngine(request.rawHeaders, request.headers.connection, ownHeaders),
    body: JSON.stringify(isChat ? { ...one, max_completion_tokens: 1 } : one),
    signal,
  });
  await answer.body.dump();
  return answer.statusCode === 200;
}

async function untilSaved({ body }: Computed, ahead: Ahead, signal: AbortSignal): Promise<void> {
  const sinceMs = nowMs();
  while (!ahead.isSaved() && nowMs() - sinceMs < GATEWAY_SAVED_MS && !signal.aborted) {
    await nudge(ahead.engine, body, signal);
    await sleep(GATEWAY_SAVED_POLL_MS, signal).catch(() => {});
  }
  if (!signal.aborted) ahead.saved(nowMs() - sinceMs);
}

/** An engine that idles tells nothing. */
async function nudge(engine: Engine, body: object, signal: AbortSignal): Promise<void> {
  try {
    const { model } = body as Record<string, unknown>;
    const answer = await engine.pool.request({
      method: "POST",
      path: "/v1/completions",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model, prompt: ".", max_tokens: 1 }),
      signal: AbortSignal.any([signal, AbortSignal.timeout(GATEWAY_SAVED_MS)]),
    });
    await answer.body.dump();
  } catch {
    // The time that is waited has a bound.
  }
}
