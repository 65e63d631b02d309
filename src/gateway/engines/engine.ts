// Owns one engine as the gateway sees it: its connections, its health, its models, and its requests in flight.
import { Pool } from "undici";
import {
  GATEWAY_ANSWER_MS,
  GATEWAY_CONNECT_MS,
  GATEWAY_KEEPALIVE_MS,
  GATEWAY_SIDE_CONNECTIONS,
  GATEWAY_SILENCE_MS,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";

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
  /** Index into tables of engines; free again once the engine is removed. */
  readonly slot: number;
  readonly pool: Pool;
  readonly #inFlightMax: number;
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

  constructor(name: string, inFlightMax: number, slot: number, id: string = name) {
    this.name = name;
    this.slot = slot;
    this.id = id;
    this.#inFlightMax = inFlightMax;
    this.pool = new Pool(`http://${name}`, {
      connections: inFlightMax + GATEWAY_SIDE_CONNECTIONS,
      pipelining: 1,
      connect: { timeout: GATEWAY_CONNECT_MS },
      headersTimeout: GATEWAY_ANSWER_MS,
      bodyTimeout: GATEWAY_SILENCE_MS,
      keepAliveTimeout: GATEWAY_KEEPALIVE_MS,
      keepAliveMaxTimeout: GATEWAY_KEEPALIVE_MS,
    });
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
    if (this.#down !== null) this.rises += 1;
    this.#down = null;
  }

  /** Marks the engine down. Its models stay, because an absence does not change them. */
  setDown(reason: string): void {
    this.#down = reason;
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
