// Owns the measurements of `tierkv doctor --engine URL` at an engine without tierKV: prefill times, link, and its cache's hits.
import { fetchReason, TierkvError } from "../../base/errors.ts";
import {
  FAR_BLOCK_TOKENS,
  FAR_BYTES,
  FAR_PACE_MS,
  FAR_REQUEST_MS,
  FAR_ROUNDS,
  FAR_TOKENS_MIN,
} from "../../base/limits/tools.ts";
import { nowMs, randomToken } from "../../base/time.ts";
import type { Progress } from "../shell/progress.ts";

/** Times to the first token of one prompt. */
export interface Pace {
  /** Length of the prompt. */
  tokens: number;
  /** Milliseconds to its first token, while no cache holds it. */
  ms: number;
  /** Milliseconds that a restore leaves to the engine: the same prompt again, from its own cache; without such a cache, a prompt of one block. */
  restMs: number;
}

export interface FarEngine {
  /** Model that the engine serves. */
  model: string;
  /** Its longest prompt. */
  longestTokens: number;
  /** null: its metrics do not say. */
  hasPrefixCache: boolean | null;
  /** Prompt tokens since its start. */
  askedTokens: number;
  /** Tokens of these that were in its own cache. */
  hitTokens: number;
  /** Tokens of its blocks. */
  blockTokens: number;
  /** Milliseconds of a small request. */
  roundTripMs: number;
  /** Bytes per second to the engine, a lower bound set by its reading. null: it refuses bodies of that size. */
  bytesPerS: number | null;
  /** Measured prompts of growing length. */
  paces: Pace[];
}

/** First token id of random prompts: above the special tokens, and any byte added stays within every vocabulary. */
const FIRST_ID = 3;
/** Factor by which twice as many tokens take longer, at most. */
const DOUBLING = 4;
/** HTTP status that refuses a body for its size. */
const TOO_LARGE = 413;

/** `url`: normalized by the kind `engineUrl`. */
export async function measureEngine(url: string, progress: Progress): Promise<FarEngine> {
  const engine = new Far(url);
  progress.at(0, FAR_PACE_MS, "asking the engine");
  const { id: model, max_model_len: longestTokens = FAR_TOKENS_MIN } = await engine.model();
  const said = await engine.metrics();
  const paces: Pace[] = [];
  // The answer takes one token.
  const most = longestTokens - 1;
  const block = Math.min(said.blockTokens, most);
  await engine.compute(model, randomPrompt(Math.min(FAR_TOKENS_MIN, most)));
  const startedMs = nowMs();
  for (let tokens = FAR_TOKENS_MIN; ; tokens *= 2) {
    const count = Math.min(tokens, most);
    progress.at(nowMs() - startedMs, FAR_PACE_MS, `computing ${count} tokens`);
    const prompt = randomPrompt(count);
    const ms = await engine.compute(model, prompt);
    const left = said.hasPrefixCache === false ? randomPrompt(block) : prompt;
    paces.push({ tokens: count, ms, restMs: await usual(() => engine.compute(model, left)) });
    const isLate = nowMs() - startedMs + DOUBLING * ms > FAR_PACE_MS;
    if (count === most || isLate) break;
  }
  const roundTripMs = await fastest(() => engine.upload(1));
  const bytesPerS = await engine.rate();
  return { model, longestTokens, ...said, roundTripMs, bytesPerS, paces };
}

interface ServedModel {
  id: string;
  max_model_len?: number;
}

type Said = Pick<FarEngine, "hasPrefixCache" | "askedTokens" | "hitTokens" | "blockTokens">;

class Far {
  readonly #url: string;

  constructor(url: string) {
    this.#url = url;
  }

  async model(): Promise<ServedModel> {
    const { data } = JSON.parse(await this.#text("/v1/models")) as { data?: ServedModel[] };
    const [first] = data ?? [];
    if (first !== undefined) return first;
    throw this.#failed("/v1/models names no model");
  }

  async metrics(): Promise<Said> {
    const text = await this.#text("/metrics");
    const sumOf = (name: string): number =>
      [...text.matchAll(new RegExp(`^vllm:${name}_total(?:\\{.*\\})? (\\S+)$`, "gm"))].reduce(
        (sum, [, value]) => sum + Number(value),
        0,
      );
    const [, caching] = /enable_prefix_caching="(\w+)"/.exec(text) ?? [];
    const [, blockTokens = FAR_BLOCK_TOKENS] = /block_size="(\d+)"/.exec(text) ?? [];
    return {
      blockTokens: Number(blockTokens),
      hasPrefixCache: caching === undefined ? null : caching === "True",
      askedTokens: sumOf("prefix_cache_queries"),
      hitTokens: sumOf("prefix_cache_hits"),
    };
  }

  /** Returns the milliseconds to the first token. */
  async compute(model: string, prompt: readonly number[]): Promise<number> {
    const startedMs = nowMs();
    const body = JSON.stringify({ model, prompt, max_tokens: 1 });
    const response = await this.#post("application/json", body);
    const text = await response.text();
    if (response.ok) return nowMs() - startedMs;
    throw this.#failed(`${prompt.length} tokens: ${response.status} ${text.slice(0, 200)}`);
  }

  /** Returns the milliseconds of a non-JSON request, whose body is read and refused unparsed. null: it is too large. */
  async upload(bytes: number): Promise<number | null> {
    const startedMs = nowMs();
    const response = await this.#post("application/octet-stream", Buffer.alloc(bytes));
    await response.text();
    return response.status === TOO_LARGE ? null : nowMs() - startedMs;
  }

  /** Takes the difference of two sizes, to leave out the fixed cost of a request; where a busy machine hides it, the whole request. */
  async rate(): Promise<number | null> {
    const small = await fastest(() => this.upload(FAR_BYTES));
    const large = await fastest(() => this.upload(2 * FAR_BYTES));
    if (large === Infinity) return null;
    return large > small ? FAR_BYTES / ((large - small) / 1000) : (2 * FAR_BYTES) / (large / 1000);
  }

  #post(type: string, body: string | Buffer): Promise<Response> {
    const headers = { "content-type": type };
    return this.#fetch("/v1/completions", { method: "POST", headers, body });
  }

  async #text(path: string): Promise<string> {
    const response = await this.#fetch(path);
    const text = await response.text();
    if (response.ok) return text;
    throw this.#failed(`${path} is answered with ${response.status}`);
  }

  async #fetch(path: string, init: RequestInit = {}): Promise<Response> {
    try {
      const signal = AbortSignal.timeout(FAR_REQUEST_MS);
      return await fetch(this.#url + path, { ...init, signal });
    } catch (error) {
      throw this.#failed(fetchReason(error), error);
    }
  }

  #failed(reason: string, cause?: unknown): TierkvError {
    return new TierkvError("ENGINE_UNANSWERED", { url: this.#url, reason }, { cause });
  }
}

function randomPrompt(tokens: number): number[] {
  return Array.from(randomToken(tokens), (byte) => FIRST_ID + byte);
}

/** The median of what a request takes, as a request to come will. */
async function usual(round: () => Promise<number>): Promise<number> {
  const taken: number[] = [];
  for (let at = 0; at < FAR_ROUNDS; at += 1) taken.push(await round());
  return taken.toSorted((a, b) => a - b)[FAR_ROUNDS >> 1] ?? Infinity;
}

/** The least of what a transfer takes: other programs only add to it. */
async function fastest(round: () => Promise<number | null>): Promise<number> {
  let best = Infinity;
  for (let at = 0; at < FAR_ROUNDS; at += 1) best = Math.min(best, (await round()) ?? Infinity);
  return best;
}
