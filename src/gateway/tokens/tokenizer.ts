// Owns the way from a request to its token ids: as given, from the last time, or asked of an engine, within a bound of time.
import { createHash } from "node:crypto";
import {
  GATEWAY_TOKENIZE_CHARS_MIN,
  GATEWAY_TOKENS_BYTES_MAX,
  GATEWAY_TOKENS_KEPT_MAX,
} from "../../limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";

/** What of a request's body says which blocks it begins with. */
export interface Prompt {
  model: string;
  /** Token ids, where the client gave them. */
  tokens: readonly number[] | null;
  /** The body of the engine's `/tokenize`; null: what the engine would make of it is not known. */
  question: string | null;
  salt: string | null;
}

const COMPLETIONS = /^\/v1\/completions$/;
const CHAT = /^\/v1\/chat\/completions$/;
/** Fields that change what the chat template makes, under the names that `/tokenize` takes them by. */
const CHAT_FIELDS = [
  "messages",
  "add_generation_prompt",
  "continue_final_message",
  "add_special_tokens",
  "chat_template",
  "chat_template_kwargs",
  "mm_processor_kwargs",
  "tools",
];

/** null: no prompt whose blocks can be known, such as several at once or pictures. */
export function promptOf(path: string, body: unknown): Prompt | null {
  if (typeof body !== "object" || body === null) return null;
  const { model, prompt, cache_salt: salt } = body as Record<string, unknown>;
  if (typeof model !== "string") return null;
  const common = { model, salt: typeof salt === "string" ? salt : null };
  if (COMPLETIONS.test(path)) {
    if (isTokens(prompt)) return { ...common, tokens: prompt, question: null };
    if (typeof prompt !== "string") return null;
    const { add_special_tokens } = body as Record<string, unknown>;
    const question = JSON.stringify({ model, prompt, add_special_tokens });
    return { ...common, tokens: null, question };
  }
  if (!CHAT.test(path) || !isPlain((body as Record<string, unknown>)["messages"])) return null;
  const given = CHAT_FIELDS.map((name) => [name, (body as Record<string, unknown>)[name]]);
  const question = JSON.stringify({ model, ...Object.fromEntries(given) });
  return { ...common, tokens: null, question };
}

/** A loop: of 100,000 tokens `every` takes longer than naming their blocks. */
function isTokens(value: unknown): value is number[] {
  if (!Array.isArray(value) || value.length === 0) return false;
  for (let at = 0; at < value.length; at += 1) if (!Number.isInteger(value[at])) return false;
  return true;
}

/** Texts alone: a picture's blocks are told apart by its own digest. */
function isPlain(messages: unknown): boolean {
  return (
    Array.isArray(messages) &&
    messages.every((message: unknown) => {
      if (typeof message !== "object" || message === null || !("content" in message)) return false;
      return typeof message.content === "string" || message.content === null;
    })
  );
}

/** Remembers the last prompts, up to GATEWAY_TOKENS_KEPT_MAX tokens of them. */
export class Tokenizer {
  readonly #timeoutMs: number;
  readonly #kept = new Map<string, readonly number[]>();
  #tokens = 0;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** null: it took too long, or the engine does not say. */
  async tokensOf(prompt: Prompt, engine: Engine): Promise<readonly number[] | null> {
    if (prompt.tokens !== null) return prompt.tokens;
    const { question } = prompt;
    if (question === null || question.length < GATEWAY_TOKENIZE_CHARS_MIN) return null;
    const key = createHash("sha256").update(question).digest("base64");
    const known = this.#kept.get(key);
    if (known !== undefined) {
      this.#kept.delete(key);
      this.#kept.set(key, known);
      return known;
    }
    const tokens = await ask(engine, question, this.#timeoutMs);
    if (tokens !== null) this.#keep(key, tokens);
    return tokens;
  }

  #keep(key: string, tokens: readonly number[]): void {
    if (this.#kept.has(key) || tokens.length > GATEWAY_TOKENS_KEPT_MAX) return;
    this.#kept.set(key, tokens);
    this.#tokens += tokens.length;
    for (const [oldest, { length }] of this.#kept) {
      if (this.#tokens <= GATEWAY_TOKENS_KEPT_MAX) return;
      this.#kept.delete(oldest);
      this.#tokens -= length;
    }
  }
}

async function ask(
  engine: Engine,
  question: string,
  timeoutMs: number,
): Promise<readonly number[] | null> {
  try {
    const { statusCode, body } = await engine.pool.request({
      method: "POST",
      path: "/tokenize",
      headers: { "content-type": "application/json" },
      body: question,
      signal: AbortSignal.timeout(timeoutMs),
    });
    let text = "";
    for await (const chunk of body.setEncoding("utf8") as AsyncIterable<string>) {
      text += chunk;
      if (text.length > GATEWAY_TOKENS_BYTES_MAX) return null;
    }
    if (statusCode !== 200) return null;
    const { tokens } = JSON.parse(text) as { tokens?: unknown };
    return isTokens(tokens) ? tokens : null;
  } catch {
    return null;
  }
}
