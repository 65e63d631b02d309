// Owns the HTTP requests of commands to an engine: answers with their likeliest tokens, prompts to compute, an empty cache.
import { fetchReason, TierkvError } from "../../base/errors.ts";
import {
  FIDELITY_ANSWER_TOKENS,
  FIDELITY_LIKELIEST,
  FIDELITY_REQUEST_MS,
} from "../../base/limits/tools.ts";
import type { Step, Weighed } from "./likeness.ts";

export interface Answered extends Weighed {
  /** Prompt tokens that tierKV restored. */
  restoredTokens: number;
}

/** Outcome of one prompt. */
export interface Warmed {
  promptTokens: number;
  /** Prompt tokens that tierKV restored. */
  restoredTokens: number;
  /** Prompt tokens not computed, including the restored ones. */
  cachedTokens: number;
  /** Milliseconds that restoring saved; 0: not known. */
  savedMs: number;
}

interface Completion {
  usage?: { prompt_tokens?: number; prompt_tokens_details?: { cached_tokens?: number } | null };
  choices?: {
    token_ids?: number[] | null;
    logprobs?: { top_logprobs?: Step[] } | null;
  }[];
  kv_transfer_params?: { tierkv?: { restored_tokens?: number; saved_ms?: number } } | null;
}

/** Client of one engine; every method throws ENGINE_ANSWER unless it answers like an engine with tierKV. */
export class EngineAsker {
  readonly #url: string;
  /** Cache salt of `answer`'s prompts, so that no earlier cache entry fits them. */
  readonly #salt: string;
  /** Ends every request. */
  readonly #stop: AbortSignal | null;

  /** `url`: normalized by the kind `engineUrl`. */
  constructor(url: string, salt = "", stop: AbortSignal | null = null) {
    this.#stop = stop;
    this.#url = url;
    this.#salt = salt;
  }

  /** Returns the name of the first model that the engine serves. */
  async model(): Promise<string> {
    const { data } = (await this.#ask("/v1/models")) as { data?: { id?: string }[] };
    const id = data?.[0]?.id;
    if (id !== undefined) return id;
    throw failed(`${this.#url}/v1/models names no model`);
  }

  async answer(model: string, prompt: string): Promise<Answered> {
    const body = {
      model,
      prompt,
      max_tokens: FIDELITY_ANSWER_TOKENS,
      temperature: 0,
      ignore_eos: true,
      logprobs: FIDELITY_LIKELIEST,
      return_tokens_as_token_ids: true,
      return_token_ids: true,
      cache_salt: this.#salt,
      kv_transfer_params: { tierkv: {} },
    };
    const { choices, kv_transfer_params: params } = (await this.#ask(
      "/v1/completions",
      body,
    )) as Completion;
    const tokenIds = choices?.[0]?.token_ids;
    const steps = choices?.[0]?.logprobs?.top_logprobs;
    if (!tokenIds || !steps) throw failed("the engine's answer has no token ids or no logprobs");
    return { tokenIds, steps, restoredTokens: params?.tierkv?.restored_tokens ?? 0 };
  }

  /** Computes a prompt and answers one token. `request`: a body of the OpenAI API with `messages` or `prompt`. */
  async warm(request: Record<string, unknown>): Promise<Warmed> {
    const { usage, kv_transfer_params: params } = (await this.#ask(
      "messages" in request ? "/v1/chat/completions" : "/v1/completions",
      request,
    )) as Completion;
    const { restored_tokens: restoredTokens = 0, saved_ms: savedMs = 0 } = params?.tierkv ?? {};
    const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const promptTokens = usage?.prompt_tokens ?? 0;
    return {
      promptTokens,
      restoredTokens,
      cachedTokens: Math.max(restoredTokens, cached),
      savedMs,
    };
  }

  /** Empties the engine's own cache. */
  async emptyCache(): Promise<void> {
    const said = (await this.#ask("/reset_prefix_cache", {})) as { success?: boolean };
    if (said.success === false) throw failed("the engine is in use: its cache cannot be emptied");
  }

  async #ask(path: string, body?: object): Promise<unknown> {
    const headers = { "content-type": "application/json" };
    const post = { method: "POST", headers, body: JSON.stringify(body ?? {}) };
    let response: Response;
    let text: string;
    try {
      const timeout = AbortSignal.timeout(FIDELITY_REQUEST_MS);
      const signal = this.#stop === null ? timeout : AbortSignal.any([timeout, this.#stop]);
      response = await fetch(this.#url + path, { ...(body === undefined ? {} : post), signal });
      text = await response.text();
    } catch (error) {
      throw failed(`${this.#url}${path} is not answered: ${fetchReason(error)}`, error);
    }
    if (response.ok) return parsed(text);
    const fix =
      response.status === 404 && path === "/reset_prefix_cache"
        ? "; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; other engines cannot be measured, `--model` measures their model with vLLM"
        : "";
    throw failed(`the engine answers ${path} with ${response.status}: ${text.slice(0, 200)}${fix}`);
  }
}

/** Parses an answer; an empty body counts as an empty object. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text === "" ? "{}" : text);
  } catch (error) {
    throw failed("the engine's answer is no JSON", error);
  }
}

function failed(reason: string, cause?: unknown): TierkvError {
  return new TierkvError("ENGINE_ANSWER", { reason }, { cause });
}
