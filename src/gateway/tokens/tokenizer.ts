// Owns finding a prompt's token ids: given, remembered, made here, or asked of an engine, within a time limit.
import { hash } from "node:crypto";
import { GATEWAY_TOKENIZE_CHARS_MIN, GATEWAY_TOKENS_KEPT_MAX } from "../../base/limits/gateway.ts";
import type { Engine } from "../engines/engine.ts";
import type { Tokens } from "../index/index-of-blocks.ts";
import { askEngine } from "./ask.ts";
import type { Question } from "./ask.ts";
import type { OwnTokenizers } from "./own.ts";
import type { Prompt } from "./prompt.ts";

/** Maker of tokens that were not remembered; `nobody`: it took too long, or the engine gave none. */
export type Maker = "gateway" | "engine" | "nobody";

export interface TokenizerOptions {
  timeoutMs: number;
  own: OwnTokenizers | null;
  onMade(maker: Maker): void;
}

/** Remembers the last prompts, up to GATEWAY_TOKENS_KEPT_MAX tokens of them. */
export class Tokenizer {
  readonly #options: TokenizerOptions;
  /** In four bytes a token, beside JavaScript's heap. */
  readonly #kept = new Map<string, Uint32Array>();
  #tokens = 0;

  constructor(options: TokenizerOptions) {
    this.#options = options;
  }

  /** Returns null where the prompt is short, time runs out, or the engine gives no tokens. */
  async tokensOf(prompt: Prompt, engine: Engine): Promise<Tokens | null> {
    if (prompt.tokens !== null) return prompt.tokens;
    const { question, salt } = prompt;
    if (question === null || question.body.length < GATEWAY_TOKENIZE_CHARS_MIN) return null;
    // With the salt, because a quick answer would tell one tenant what another has asked.
    const key = hash("sha256", `${question.path}\0${question.body}\0${salt ?? ""}`, "base64");
    const known = this.#kept.get(key);
    if (known !== undefined) {
      this.#kept.delete(key);
      this.#kept.set(key, known);
      return known;
    }
    const tokens = await this.#make(prompt, question, engine);
    if (tokens !== null) this.#keep(key, tokens);
    return tokens;
  }

  async #make(prompt: Prompt, question: Question, engine: Engine): Promise<Tokens | null> {
    const { timeoutMs, own, onMade } = this.#options;
    const made = own === null ? null : own.make(prompt, engine, timeoutMs);
    const tokens = await (made ?? askEngine(engine, question, timeoutMs));
    onMade(tokens === null ? "nobody" : made === null ? "engine" : "gateway");
    return tokens;
  }

  #keep(key: string, tokens: Tokens): void {
    if (this.#kept.has(key) || tokens.length > GATEWAY_TOKENS_KEPT_MAX) return;
    this.#kept.set(key, tokens instanceof Uint32Array ? tokens : new Uint32Array(tokens));
    this.#tokens += tokens.length;
    for (const [oldest, { length }] of this.#kept) {
      if (this.#tokens <= GATEWAY_TOKENS_KEPT_MAX) return;
      this.#kept.delete(oldest);
      this.#tokens -= length;
    }
  }
}
