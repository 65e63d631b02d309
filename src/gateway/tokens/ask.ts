// Owns asking an engine for the tokens of a prompt.
import { GATEWAY_TOKENS_BYTES_MAX } from "../../limits/gateway.ts";
import { textWithin } from "../engines/answer.ts";
import type { Engine } from "../engines/engine.ts";

/** Returns null on a time-out, or where the engine gives no tokens. */
export async function askEngine(
  engine: Engine,
  question: string,
  timeoutMs: number,
): Promise<readonly number[] | null> {
  return (await answerOf(engine, question, timeoutMs))?.tokens ?? null;
}

/** Returns null on a time-out or failure; `tokens` is null where the engine answered without any. */
export async function answerOf(
  engine: Engine,
  question: string,
  timeoutMs: number,
): Promise<{ tokens: readonly number[] | null } | null> {
  try {
    const { statusCode, body } = await engine.ask({
      method: "POST",
      path: "/tokenize",
      headers: { "content-type": "application/json" },
      body: question,
      signal: AbortSignal.timeout(timeoutMs),
    });
    const text = await textWithin(body, GATEWAY_TOKENS_BYTES_MAX);
    if (text === null || statusCode !== 200) return { tokens: null };
    const { tokens } = JSON.parse(text) as { tokens?: unknown };
    return { tokens: isTokens(tokens) ? tokens : null };
  } catch {
    return null;
  }
}

/** A plain loop, because `every` on 100,000 tokens takes longer than naming their blocks. */
export function isTokens(value: unknown): value is number[] {
  if (!Array.isArray(value) || value.length === 0) return false;
  for (let at = 0; at < value.length; at += 1) if (!Number.isInteger(value[at])) return false;
  return true;
}
