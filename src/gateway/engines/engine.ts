// Owns one engine as the gateway sees it: its connections, whether it answers, what it serves, and what is in flight there.
import { Pool } from "undici";
import {
  GATEWAY_ANSWER_MS,
  GATEWAY_CONNECT_MS,
  GATEWAY_KEEPALIVE_MS,
  GATEWAY_SIDE_CONNECTIONS,
  GATEWAY_SILENCE_MS,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";

/** One entry of an engine's `/v1/models`, passed on as it is. */
export interface Model {
  readonly id: string;
  /** The model that an adapter belongs to. */
  readonly parent?: string | null;
  /** Where the engine has its files: a folder there, or a name. */
  readonly root?: string | null;
}

/** For `tierkv gateway status`. */
export interface EngineStatus {
  engine: string;
  state: "up" | "down" | "draining";
  /** Why it is down; empty where it is not. */
  reason: string;
  inFlight: number;
  models: string[];
}

export class Engine {
  /** `host:port`. */
  readonly name: string;
  /** Places it on the hash ring: what it registered as, else its name. */
  readonly id: string;
  /** Its place in tables of engines; free again once it was removed. */
  readonly slot: number;
  readonly pool: Pool;
  readonly #inFlightMax: number;
  #down: string | null = "not asked yet";
  #models: ReadonlyMap<string, Model> = new Map();
  isDraining = false;
  /** It computes prompts for others, and answers nobody. */
  isPrefill = false;
  /** It handed nothing over of a prompt that it computed: until then it is not asked again. */
  handsOverFromMs = 0;
  inFlight = 0;
  /** How often it began to answer: a process that was started anew may be another release. */
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

  /** Requests in flight, as a share of those it may have. */
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

  /** It keeps its list of models: what they are does not change because it is away. */
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
