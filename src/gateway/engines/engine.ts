// Owns one engine as the gateway sees it: its connections, its health, its models, and its requests in flight.
import { GATEWAY_SIDE_CONNECTIONS } from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import { OPEN } from "./access.ts";
import type { EngineAccess } from "./access.ts";
import type { Calls, EngineAnswer, EngineIds, EngineRequest, EngineText } from "./calls.ts";
import { Ending } from "./ending.ts";
import type { Abortable } from "./ending.ts";
import { openCalls } from "./open-calls.ts";

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
  /** Address. */
  engine: string;
  /** `draining`: it is up, and gets no more requests. */
  state: "up" | "down" | "draining";
  /** Whether it gets no more requests until `tierkv gateway undrain`, down or not. */
  isDraining: boolean;
  /** Whether it computes prompts for the others, and answers no request ([gateway] prefill). */
  isPrefill: boolean;
  /** Why the engine is down; empty unless it is. */
  reason: string;
  /** Requests in flight there. */
  inFlight: number;
  /** Models that it serves. */
  models: string[];
}

/** `died`: no process listens any more; `lost`: it does not answer, or makes no progress; `away`: it says that it is paused or unfit. */
export type DownKind = "died" | "lost" | "away";

/** Ends a request without a first byte where its engine goes down. */
export class EngineDown extends Error {
  readonly kind: DownKind;
  /** Whether the engine had no other request. */
  readonly isAlone: boolean;

  constructor(reason: string, kind: DownKind, isAlone: boolean) {
    super(`the engine is down: ${reason}`);
    this.kind = kind;
    this.isAlone = isAlone;
  }
}

/** A request without a first byte. */
interface Unbegun {
  readonly end: Ending;
  readonly sinceMs: number;
  /** Predicted milliseconds from then to the first token. */
  readonly expectedMs: number;
  /** `breaks` of the engine when the request was sent. */
  readonly breaks: number;
}

/** A request's wait for its first byte. */
export interface Waiting {
  /** Aborts with the client's own, or with EngineDown. */
  readonly signal: Abortable;
  /** Whether the engine has no other request, and has broken off none meanwhile. */
  isAlone(): boolean;
  /** Call at the first byte, and at the end; idempotent. */
  begun(): void;
}

export class Engine {
  /** `host:port`, or `unix:/path`. */
  readonly name: string;
  /** Places the engine on the hash ring: the id it registered with, else its name. */
  readonly id: string;
  readonly calls: Calls;
  readonly access: EngineAccess;
  readonly #inFlightMax: number;
  /** Paths that the engine does not serve, as far as they were asked: a handful of our own. */
  readonly #lacking = new Set<string>();
  readonly #unbegun = new Set<Unbegun>();
  #down: string | null = "not asked yet";
  #models: ReadonlyMap<string, Model> = new Map();
  isDraining = false;
  /** The engine computes prompts for others and answers no request itself. */
  isPrefill = false;
  /** Until then the engine computes nothing for others, because its last such prompt was not handed over. */
  handsOverFromMs = 0;
  /** False once a prompt that the engine computed for others was not handed over, until the next one is. */
  isHandingOver = true;
  inFlight = 0;
  #signs = 0;
  /** Requests whose connection the engine has broken. */
  breaks = 0;
  /** Publishers of the engine, one or one for each rank, whose events come and are complete. */
  publishers = 0;
  /** How often the engine came up; a restarted process may be another release. */
  rises = 0;

  constructor(name: string, inFlightMax: number, id: string = name, access: EngineAccess = OPEN) {
    this.name = name;
    this.access = access;
    this.id = id;
    this.#inFlightMax = inFlightMax;
    this.calls = openCalls(name, inFlightMax + GATEWAY_SIDE_CONNECTIONS, access);
  }

  /** Grows with each sign that the engine's core works: a piece of an answer, or an event. */
  get signs(): number {
    return this.#signs + this.calls.signs;
  }

  noteSign(): void {
    this.#signs += 1;
  }

  /** Whether its events show that it works. */
  get hasEvents(): boolean {
    return this.publishers > 0;
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
  setDown(reason: string, kind: DownKind): void {
    this.#down = reason;
    const ended = [...this.#unbegun];
    this.#unbegun.clear();
    for (const one of ended) one.end.abort(new EngineDown(reason, kind, this.#isAlone(one)));
  }

  /** The request that has waited longest for its first byte; null: none waits. */
  get waiting(): Pick<Unbegun, "sinceMs" | "expectedMs"> | null {
    const [oldest = null] = this.#unbegun;
    return oldest;
  }

  /** Sends a request of the gateway's own, with the engine's key. */
  ask(request: EngineRequest): Promise<EngineAnswer> {
    return this.calls.request(this.#withKey(request));
  }

  /** The same, where at most `most` bytes of text are wanted. */
  askText(request: EngineRequest, most: number): Promise<EngineText> {
    return this.calls.text(this.#withKey(request), most);
  }

  /** The same, where a prompt's token ids are wanted, in at most `most` bytes. */
  askIds(request: EngineRequest, most: number): Promise<EngineIds> {
    return this.calls.ids(this.#withKey(request), most);
  }

  #withKey(request: EngineRequest): EngineRequest {
    const { fields } = this.access;
    return fields.length === 0
      ? request
      : { ...request, headers: [...(request.headers ?? []), ...fields] };
  }

  /** Counts a request that is sent now until its first byte. `expectedMs`: predicted time until then; 0: not known. */
  untilBegun(left: Abortable, expectedMs = 0): Waiting {
    const end = new Ending();
    if (left.aborted) end.abort(left.reason);
    else left.addEventListener("abort", () => end.abort(left.reason), { once: true });
    const one = { end, sinceMs: nowMs(), expectedMs, breaks: this.breaks };
    this.#unbegun.add(one);
    return {
      signal: end,
      isAlone: () => this.#isAlone(one),
      begun: () => void this.#unbegun.delete(one),
    };
  }

  #isAlone({ breaks }: Unbegun): boolean {
    return this.inFlight <= 1 && breaks === this.breaks;
  }

  serves(model: string): boolean {
    return this.#models.has(model);
  }

  status(): EngineStatus {
    const state = this.#down !== null ? "down" : this.isDraining ? "draining" : "up";
    return {
      engine: this.name,
      state,
      isDraining: this.isDraining,
      isPrefill: this.isPrefill,
      reason: this.#down ?? "",
      inFlight: this.inFlight,
      models: [...this.#models.keys()],
    };
  }
}
