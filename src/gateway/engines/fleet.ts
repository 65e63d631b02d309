// Owns all engines: which may take a request, and the queue of requests that wait until one has room.
import { TierkvError } from "../../base/errors.ts";
import { GATEWAY_ENGINES_MAX, GATEWAY_WAITING_MAX } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import type { EngineAccess } from "./access.ts";
import type { Abortable } from "./ending.ts";
import { Engine } from "./engine.ts";
import type { EngineStatus, Model } from "./engine.ts";
import { Health } from "./health.ts";
import { FairQueue } from "./queue.ts";
import type { Turn } from "./queue.ts";

/** Why a request gets no engine; `no_holder`: the one engine that may answer it is down, drained or gone, or lacks the model. */
export type Shed = "no_model" | "no_engine" | "no_holder" | "queue_full" | "waited" | "gone";

export interface FleetOptions {
  engines: readonly string[];
  /** Engines that compute prompts for the others. */
  prefill?: ReadonlySet<string>;
  inFlightMax: number;
  waitMs: number;
  /** absent: no TLS, no key. */
  access?: EngineAccess;
  logger: Logger;
}

/** Orders engines that may all take a request, best first. */
export type Order = (engines: readonly Engine[]) => Engine[];

/** Turn of a request about which nothing is known. */
const ANY_TURN: Turn = { key: "", priority: 0, tokens: 1 };

/** Which engines a request may be sent to, best first. */
interface Wanted {
  model: string | null;
  order: Order;
  /** Engines already tried. */
  not: ReadonlySet<Engine>;
  /** null: any engine. */
  only: Engine | null;
}

interface Waiter extends Wanted {
  settle(result: Engine | Shed): void;
}

export class Fleet {
  readonly #options: FleetOptions;
  readonly #engines: Engine[] = [];
  readonly #watches = new Map<Engine, Health>();
  readonly #waiting = new FairQueue<Waiter>(GATEWAY_WAITING_MAX);

  /** Raised when an engine is added or removed. */
  generation = 0;

  constructor(options: FleetOptions) {
    this.#options = options;
    for (const name of options.engines) this.#place(name, name);
  }

  get engines(): readonly Engine[] {
    return this.#engines;
  }

  /** Adds an engine, which gets requests once it answers; null: there are GATEWAY_ENGINES_MAX already. */
  add(name: string, id: string = name): Engine | null {
    if (this.#engines.length >= GATEWAY_ENGINES_MAX) return null;
    const engine = this.#place(name, id);
    void this.#watches.get(engine)?.start();
    return engine;
  }

  /** Removes an engine: it gets no more requests, and those in flight are finished. */
  async remove(engine: Engine): Promise<void> {
    const at = this.#engines.indexOf(engine);
    if (at < 0) return;
    this.#engines.splice(at, 1);
    this.generation += 1;
    this.#wake();
    // Watched until then, so that requests leave it where it stops answering.
    await engine.calls.close();
    const watch = this.#watches.get(engine);
    this.#watches.delete(engine);
    await watch?.close();
  }

  #place(name: string, id: string): Engine {
    const { inFlightMax, logger, prefill, access } = this.#options;
    const engine = new Engine(name, inFlightMax, id, access);
    engine.isPrefill = prefill?.has(name) === true;
    const onChange = (): void => this.#wake();
    this.#engines.push(engine);
    this.#watches.set(engine, new Health({ engine, logger, onChange }));
    this.generation += 1;
    return engine;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Resolves when every engine was asked once. */
  async start(): Promise<void> {
    await Promise.all([...this.#watches.values()].map((watch) => watch.start()));
  }

  async close(): Promise<void> {
    for (const waiter of this.#waiting.items()) waiter.settle("no_engine");
    const engines = [...this.#watches.keys()];
    await Promise.all([...this.#watches.values()].map((watch) => watch.close()));
    await Promise.all(engines.map(({ calls }) => calls.destroy()));
  }

  /** Returns the models of all engines that answer, each once. */
  models(): Model[] {
    const found = this.engines.filter(({ isUp }) => isUp).flatMap(({ models }) => models);
    return [...new Map(found.map((model) => [model.id, model])).values()];
  }

  /**
   * Returns the first engine of `order` and counts this request there; call `leave` when the answer has ended. Waits in turn
   * while none has room; a full queue sheds its last request. `not`: engines already tried. `only`: no other engine may answer.
   */
  enter(
    model: string | null,
    order: Order,
    signal: Abortable,
    {
      not = new Set(),
      only = null,
      turn = ANY_TURN,
    }: { not?: ReadonlySet<Engine>; only?: Engine | null; turn?: Turn } = {},
  ): Promise<Engine | Shed> {
    const wanted: Wanted = { model, order, not, only };
    const now = signal.aborted ? "gone" : (this.#missing(wanted) ?? this.#choose(wanted));
    if (now !== null) return Promise.resolve(now);
    return new Promise((resolve) => {
      const onGone = (): void => waiter.settle("gone");
      const timer = setTimeout(() => waiter.settle("waited"), this.#options.waitMs);
      const settle = (result: Engine | Shed): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", onGone);
        this.#waiting.remove(waiter, typeof result !== "string");
        resolve(result);
      };
      const waiter: Waiter = { ...wanted, settle };
      signal.addEventListener("abort", onGone, { once: true });
      this.#waiting.add(waiter, turn)?.settle("queue_full");
    });
  }

  leave(engine: Engine): void {
    engine.inFlight -= 1;
    this.#wake();
  }

  /** Returns the engines that may take a request for this model. */
  able(model: string | null): Engine[] {
    return this.engines.filter((engine) => engine.takes(model));
  }

  hasAny(model: string | null): boolean {
    return this.able(model).length > 0;
  }

  /** Whether an engine outside of `tried` may take a request for this model. */
  hasUntried(tried: ReadonlySet<Engine>, model: string | null): boolean {
    return this.able(model).some((engine) => !tried.has(engine));
  }

  /** Checks an engine now, because a request to it failed before its answer began. */
  suspect(engine: Engine, error: unknown): void {
    this.#watches.get(engine)?.suspect(error);
  }

  /** Whether an engine answers now: checked, because a connection to it broke before an answer began. */
  answers(engine: Engine): Promise<boolean> {
    return this.#watches.get(engine)?.answers() ?? Promise.resolve(false);
  }

  /** Notes whether a prompt that `engine` computed for another was handed over (`reason`: null); the log gets each change. */
  noteHandOver(engine: Engine, reason: string | null): void {
    if (engine.isHandingOver === (reason === null)) return;
    engine.isHandingOver = reason === null;
    const { logger } = this.#options;
    if (reason === null) logger.info({ engine: engine.name }, "prompts are handed over again");
    else
      logger.warn(
        { engine: engine.name, reason },
        "a prompt was not handed over: the engine that answers computes it",
      );
  }

  /** Throws BAD_ARGUMENT for an unknown engine. */
  drain(name: string, isDraining: boolean): EngineStatus {
    const engine = this.engines.find((one) => one.name === name);
    if (engine === undefined) {
      const names = this.engines.map((one) => one.name).join(", ");
      const known = names === "" ? "the gateway has none yet" : `there are ${names}`;
      throw new TierkvError("BAD_ARGUMENT", { reason: `no engine ${name}; ${known}` });
    }
    engine.isDraining = isDraining;
    this.#wake();
    return engine.status();
  }

  #ableFor({ model, not, only }: Wanted): Engine[] {
    return this.able(model).filter(
      (engine) => !not.has(engine) && (only === null || engine === only),
    );
  }

  /** Returns why no engine could take the request even if all had room; null: one could. */
  #missing(wanted: Wanted): Shed | null {
    const { model, only } = wanted;
    if (this.#ableFor(wanted).length > 0) return null;
    const isKnown = model === null || this.engines.some((engine) => engine.serves(model));
    // An empty fleet, or an engine that is down, leaves open whether the model exists.
    const isSure = this.engines.length > 0 && this.engines.every(({ isUp }) => isUp);
    if (!isKnown && isSure) return "no_model";
    return only === null ? "no_engine" : "no_holder";
  }

  /** Counts the request at its first engine with room; null: all are full. */
  #choose(wanted: Wanted): Engine | null {
    const [first] = wanted.order(this.#ableFor(wanted).filter(({ hasRoom }) => hasRoom));
    if (first === undefined) return null;
    first.inFlight += 1;
    return first;
  }

  /** Serves waiting requests in turn; a model without room holds up only its own requests. */
  #wake(): void {
    const stuck = new Set<string | null>();
    for (const waiter of this.#waiting.items()) {
      const { model, not, only } = waiter;
      const isStuck = stuck.has(model);
      const isFree = not.size === 0 && only === null;
      // Its engines are there, and full; asked once for all that wait for them.
      if (isStuck && isFree) continue;
      const missing = this.#missing(waiter);
      if (missing === null && isStuck) continue;
      const result = missing ?? this.#choose(waiter);
      if (result !== null) waiter.settle(result);
      // Others may find room where this one may not go.
      else if (isFree) stuck.add(model);
    }
  }
}
