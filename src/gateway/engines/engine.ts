// Owns one engine as the gateway sees it: its connections, its health, its models, and its requests in flight.
import { Pool } from "undici";
import type { Dispatcher } from "undici";
import {
  GATEWAY_CONNECT_MS,
  GATEWAY_KEEPALIVE_MS,
  GATEWAY_SIDE_CONNECTIONS,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import { OPEN } from "./access.ts";
import type { EngineAccess } from "./access.ts";

/** One entry of an engine's `/v1/models`, passed on unchanged. */
export interface Model {
  readonly id: string;
  /** The model that an adapter belongs to. */
  readonly parent?: string | null;
  /** Where the engine reads the model from: a folder on its machine, or a name. */
  readonly root?: string | null;
}

/** For `tierkv gateway status`. */
export interface EngineStatus {
  engine: string;
  state: "up" | "down" | "draining";
  /** Why the engine is down; empty unless it is. */
  reason: string;
  inFlight: number;
  models: string[];
}

export class Engine {
  /** `host:port`. */
  readonly name: string;
  /** Places the engine on the hash ring: the id it registered with, else its name. */
  readonly id: string;
  readonly pool: Pool;
  readonly access: EngineAccess;
  readonly #inFlightMax: number;
  /** Paths that the engine does not serve, as far as they were asked: a handful of our own. */
  readonly #lacking = new Set<string>();
  /** Ends of requests that have not begun to be answered. */
  readonly #unbegun = new Set<AbortController>();
  #down: string | null = "not asked yet";
  #models: ReadonlyMap<string, Model> = new Map();
  isDraining = false;
  /** The engine computes prompts for others and answers no request itself. */
  isPrefill = false;
  /** Until then the engine computes nothing for others, because its last such prompt was not handed over. */
  handsOverFromMs = 0;
  inFlight = 0;
  /** How often the engine came up; a restarted process may be another release. */
  rises = 0;

  constructor(name: string, inFlightMax: number, id: string = name, access: EngineAccess = OPEN) {
    this.name = name;
    this.access = access;
    this.id = id;
    this.#inFlightMax = inFlightMax;
    this.pool = new Pool(access.urlOf(name), {
      connections: inFlightMax + GATEWAY_SIDE_CONNECTIONS,
      pipelining: 1,
      connect: { timeout: GATEWAY_CONNECT_MS, ...access.connect },
      // A long prompt may take an hour. Health checks end what waits at an engine that does not answer.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: GATEWAY_KEEPALIVE_MS,
      keepAliveMaxTimeout: GATEWAY_KEEPALIVE_MS,
    });
  }

  /** Whether this process of the engine has shown that it does not serve a path. */
  lacks(path: string): boolean {
    return this.#lacking.has(path);
  }

  noteLack(path: string): void {
    this.#lacking.add(path);
  }

  get isUp(): boolean {
    return this.#down === null;
  }

  get hasRoom(): boolean {
    return this.inFlight < this.#inFlightMax;
  }

  /** Requests in flight as a fraction of the engine's limit. */
  get load(): number {
    return this.inFlight / this.#inFlightMax;
  }

  get models(): readonly Model[] {
    return [...this.#models.values()];
  }

  /** Whether requests for this model may be sent here; null: for any. */
  takes(model: string | null): boolean {
    return !this.isPrefill && this.#mayTake(model);
  }

  /** Whether prompts for this model may be computed here for others. */
  prefills(model: string): boolean {
    return (
      this.isPrefill && this.hasRoom && nowMs() >= this.handsOverFromMs && this.#mayTake(model)
    );
  }

  #mayTake(model: string | null): boolean {
    return this.isUp && !this.isDraining && (model === null || this.#models.has(model));
  }

  setUp(models: readonly Model[]): void {
    this.#models = new Map(models.map((model) => [model.id, model]));
    if (this.#down !== null) {
      this.rises += 1;
      this.#lacking.clear();
    }
    this.#down = null;
  }

  /** Marks the engine down, and ends its requests without a first byte. Its models stay, because an absence does not change them. */
  setDown(reason: string): void {
    this.#down = reason;
    const ended = [...this.#unbegun];
    this.#unbegun.clear();
    for (const end of ended) end.abort(new Error(`the engine is down: ${reason}`));
  }

  /** Sends a request of the gateway's own, with the engine's key. */
  ask(options: Omit<Dispatcher.RequestOptions, "origin">): Promise<Dispatcher.ResponseData> {
    const headers = { ...(options.headers as object), ...this.access.headers };
    return this.pool.request({ ...options, headers });
  }

  /**
   * Returns a signal that aborts with `signal`, or where the engine goes down before `begun` was called. `begun` must be called
   * once, at the first byte or at the end.
   */
  untilBegun(signal: AbortSignal): { signal: AbortSignal; begun(): void } {
    const end = new AbortController();
    this.#unbegun.add(end);
    return {
      signal: AbortSignal.any([signal, end.signal]),
      begun: () => void this.#unbegun.delete(end),
    };
  }

  serves(model: string): boolean {
    return this.#models.has(model);
  }

  status(): EngineStatus {
    const state = this.#down !== null ? "down" : this.isDraining ? "draining" : "up";
    return {
      engine: this.name,
      state,
      reason: this.#down ?? "",
      inFlight: this.inFlight,
      models: [...this.#models.keys()],
    };
  }
}
