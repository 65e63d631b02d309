// Owns asking an engine for the tokens of a prompt: of a text or a chat, or of a request that it renders.
import { GATEWAY_TOKENS_BYTES_MAX } from "../../base/limits/gateway.ts";
import { Ending } from "../engines/ending.ts";
import type { Engine } from "../engines/engine.ts";

/** A request to an engine: its path, and its body as JSON. */
export interface Question {
  path: string;
  body: string;
}

/** Statuses of a release or model without that route; 403: vLLM 0.32 without `--enable-scale-out`. */
const ROUTELESS: ReadonlySet<number> = new Set([403, 404, 405, 501]);

const JSON_TYPE: readonly string[] = ["content-type", "application/json"];

/** Returns null on a time-out, or where the engine gives no tokens. */
export async function askEngine(
  engine: Engine,
  question: Question,
  timeoutMs: number,
): Promise<Uint32Array | null> {
  if (engine.lacks(question.path)) return null;
  return (await answerOf(engine, question, timeoutMs))?.tokens ?? null;
}

/** Returns null on a time-out or failure; `tokens` is null where the engine answered without any. */
export async function answerOf(
  engine: Engine,
  { path, body: question }: Question,
  timeoutMs: number,
): Promise<{ tokens: Uint32Array | null } | null> {
  const late = new Ending();
  const timer = setTimeout(() => late.abort(new Error("too late")), timeoutMs);
  try {
    const asked = { method: "POST", path, headers: JSON_TYPE, body: question, signal: late };
    const { statusCode, ids } = await engine.askIds(asked, GATEWAY_TOKENS_BYTES_MAX);
    if (ROUTELESS.has(statusCode)) engine.noteLack(path);
    return { tokens: statusCode === 200 ? ids : null };
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
  }
}

/** A plain loop, because `every` on 100,000 tokens takes longer than naming their blocks. */
export function isTokens(value: unknown): value is number[] {
  if (!Array.isArray(value) || value.length === 0) return false;
  for (let at = 0; at < value.length; at += 1) if (!Number.isInteger(value[at])) return false;
  return true;
}
