// Owns the engine of a stand: a real vLLM on the CPU, its start and its HTTP calls.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { fetchReason, TierkvError } from "../../base/errors.ts";
import {
  DEMO_CONTROL_TIMEOUT_MS,
  DEMO_ENGINE_START_MS,
  DEMO_REQUEST_TIMEOUT_MS,
} from "../../base/limits/general.ts";
import { shipped } from "../../base/shipped.ts";
import { nowMs } from "../../base/time.ts";
import type { Machine } from "./machine.ts";
import { failed, waitUntil } from "./processes.ts";
import type { Process } from "./processes.ts";
import type { Workspace } from "./workspace.ts";

export const MODEL_NAME = "demo";
/** Tokens per block: what vLLM uses on CPUs. */
export const BLOCK_TOKENS = 128;

const KV_CACHE_GIB = 1;

/** A checkpoint, and its longest prompt with answer, in tokens. */
export interface EngineModel {
  path: string;
  lengthMax: number;
  /** Size of the engine's own cache, GiB. */
  cacheGib?: number;
  /** Absent: the machine's best. */
  dtype?: Machine["dtype"];
}

export interface Answer {
  /** From sending the request to the first token of the stream. */
  ttftMs: number;
  tokenIds: number[];
  text: string;
  promptTokens: number;
}

/** Prompt tokens the engine did not compute, since it started. */
export interface CacheHits {
  own: number;
  restored: number;
}

/** Text, or its ids. */
export type Prompt = string | readonly number[];

interface Completion {
  choices: { text?: string; token_ids?: number[] | null }[];
  usage?: { prompt_tokens: number } | null;
  error?: { message: string };
}

export class Engine {
  readonly process: Process;
  readonly url: string;
  readonly #signal: AbortSignal;

  constructor(process: Process, url: string, signal: AbortSignal) {
    this.process = process;
    this.url = url;
    this.#signal = signal;
  }

  ready(): Promise<void> {
    const isHealthy = (): Promise<boolean> =>
      this.#fetch("/health", DEMO_CONTROL_TIMEOUT_MS).then(
        () => true,
        () => false,
      );
    return this.process.ready(isHealthy, DEMO_ENGINE_START_MS, this.#signal);
  }

  /** The ids of a question to a chat model, by its own template. */
  async chatTokens(question: string): Promise<number[]> {
    const body = { model: MODEL_NAME, messages: [{ role: "user", content: question }] };
    const response = await this.#post("/tokenize", DEMO_CONTROL_TIMEOUT_MS, body);
    return ((await response.json()) as { tokens: number[] }).tokens;
  }

  /** Streams a completion of `maxTokens` greedy tokens; with `mayEnd` the model may end it before. */
  async complete(prompt: Prompt, maxTokens: number, mayEnd = false): Promise<Answer> {
    const body = greedy(prompt, maxTokens, mayEnd);
    const startedMs = nowMs();
    const response = await this.#post("/v1/completions", DEMO_REQUEST_TIMEOUT_MS, body);
    const answer: Answer = { ttftMs: 0, tokenIds: [], text: "", promptTokens: 0 };
    for await (const { choices, usage, error } of events(response)) {
      if (error !== undefined) throw failed(`the engine says: ${error.message}`);
      for (const { text, token_ids: ids } of choices) {
        answer.text += text ?? "";
        if (answer.tokenIds.length === 0) answer.ttftMs = nowMs() - startedMs;
        answer.tokenIds.push(...(ids ?? []));
      }
      answer.promptTokens = usage?.prompt_tokens ?? answer.promptTokens;
    }
    const least = mayEnd ? 1 : maxTokens;
    if (answer.tokenIds.length >= least) return answer;
    throw failed(`the engine sent ${answer.tokenIds.length} of ${maxTokens} tokens`);
  }

  /** Empties the engine's own cache; retried, because the engine refuses while blocks are in use. */
  async emptyCache(): Promise<void> {
    const isEmptied = async (): Promise<boolean> => {
      const response = await this.#post("/reset_prefix_cache", DEMO_CONTROL_TIMEOUT_MS);
      return ((await response.json()) as { success?: boolean }).success === true;
    };
    const reason = "the engine did not empty its cache: some of its blocks stay in use";
    await waitUntil(isEmptied, DEMO_CONTROL_TIMEOUT_MS, reason, this.#signal);
  }

  async cacheHits(): Promise<CacheHits> {
    const text = await (await this.#fetch("/metrics", DEMO_CONTROL_TIMEOUT_MS)).text();
    return {
      own: sumOfMetric(text, "vllm:prefix_cache_hits_total"),
      restored: sumOfMetric(text, "vllm:external_prefix_cache_hits_total"),
    };
  }

  #post(path: string, timeoutMs: number, body: object = {}): Promise<Response> {
    const headers = { "content-type": "application/json" };
    return this.#fetch(path, timeoutMs, { method: "POST", headers, body: JSON.stringify(body) });
  }

  async #fetch(path: string, timeoutMs: number, init: RequestInit = {}): Promise<Response> {
    const signal = AbortSignal.any([this.#signal, AbortSignal.timeout(timeoutMs)]);
    const asked = fetch(this.url + path, { ...init, signal });
    const response = await asked.catch((error: unknown) => {
      throw broken(`${path} is not answered`, error);
    });
    if (response.ok) return response;
    const said = (await response.text()).slice(0, 200);
    throw failed(`the engine answered ${path} with ${response.status}: ${said}`);
  }
}

function greedy(prompt: Prompt, maxTokens: number, mayEnd: boolean): object {
  return {
    model: MODEL_NAME,
    prompt,
    max_tokens: maxTokens,
    temperature: 0,
    ignore_eos: !mayEnd,
    stream: true,
    stream_options: { include_usage: true },
    return_token_ids: true,
  };
}

/** Yields the events of an OpenAI-style stream, one a line. */
async function* events(response: Response): AsyncGenerator<Completion> {
  try {
    const lines = createInterface({ input: Readable.from(response.body ?? []) });
    for await (const line of lines)
      if (line.startsWith("data: {")) yield JSON.parse(line.slice("data: ".length)) as Completion;
  } catch (error) {
    throw broken("the answer broke off", error);
  }
}

function broken(what: string, error: unknown): TierkvError {
  const reason = `the engine: ${what}: ${fetchReason(error)}`;
  return new TierkvError("DEMO_FAILED", { reason }, { cause: error });
}

/** The sum over all labels of one counter in the Prometheus text format. */
export function sumOfMetric(text: string, name: string): number {
  const samples = text.split("\n").filter((line) => /^[^{ ]*/.exec(line)?.[0] === name);
  return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" ") + 1)), 0);
}

/** A checkout keeps compiled modules for the next engine. */
function pycache(workspace: Workspace): string {
  const venv = shipped(".venv");
  return existsSync(venv) ? join(venv, "pycache") : join(workspace.temp, "pycache");
}

/** The connector's settings are the README's, except for size and place. */
export function engineArguments(
  workspace: Workspace,
  { dtype }: Machine,
  model: EngineModel,
): string[] {
  const connector = {
    kv_connector: "TierKVConnector",
    kv_connector_module_path: "tierkv.connectors.vllm.connector",
    kv_role: "kv_both",
    kv_connector_extra_config: { config_path: workspace.config() },
  };
  const groups = [
    ["-m", "vllm.entrypoints.openai.api_server"],
    ["--model", model.path, "--served-model-name", MODEL_NAME],
    ["--host", "127.0.0.1", "--port", String(workspace.port)],
    ["--dtype", model.dtype ?? dtype, "--max-model-len", String(model.lengthMax)],
    ["--max-num-seqs", "4", "--block-size", String(BLOCK_TOKENS), "--enforce-eager"],
    ["--enable-prefix-caching", "--no-disable-hybrid-kv-cache-manager"],
    ["--kv-transfer-config", JSON.stringify(connector)],
  ];
  return groups.flat();
}

export function engineEnvironment(
  workspace: Workspace,
  { cores }: Machine,
  { cacheGib = KV_CACHE_GIB }: EngineModel,
): NodeJS.ProcessEnv {
  return {
    ...process.env,
    // Required to empty the engine's own cache over HTTP.
    VLLM_SERVER_DEV_MODE: "1",
    // Explicit, because a connector changes vLLM's choice of threads, and every run must compute alike.
    VLLM_CPU_OMP_THREADS_BIND: cores.join(","),
    VLLM_CPU_KVCACHE_SPACE: String(cacheGib),
    // Seeds block hashes; without it, another engine process would look up other keys.
    PYTHONHASHSEED: "0",
    // Set, because each of an engine's three processes would otherwise compile 5,000 modules.
    PYTHONDONTWRITEBYTECODE: "",
    PYTHONPYCACHEPREFIX: pycache(workspace),
    TMPDIR: workspace.temp,
    HF_HUB_OFFLINE: "1",
    TRANSFORMERS_OFFLINE: "1",
    VLLM_NO_USAGE_STATS: "1",
    DO_NOT_TRACK: "1",
  };
}
