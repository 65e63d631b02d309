// Owns the order in which engines are offered one request: the next where an engine cannot serve, the same where only a connection broke.
import { GATEWAY_TRIES_MAX } from "../../base/limits/gateway.ts";
import type { Abortable } from "../engines/ending.ts";
import type { Engine } from "../engines/engine.ts";
import type { Fleet, Order, Shed } from "../engines/fleet.ts";
import type { Turn } from "../engines/queue.ts";
import type { Failure, Losses } from "./losses.ts";

export interface Offered {
  /** null: any engine may answer. */
  model: string | null;
  order: Order;
  /** The one engine that can answer, because it holds what the request names; absent: any can. */
  only?: Engine | null;
  /** undefined: nothing is known about its turn. */
  turn?: Turn;
  losses: Losses;
}

export class Attempts {
  readonly #fleet: Fleet;
  readonly #offered: Offered;
  readonly #tried = new Set<Engine>();
  /** Engines to which the request went back after a broken connection. */
  readonly #returned = new Set<Engine>();
  #back: Engine | null = null;
  #count = 0;

  constructor(fleet: Fleet, offered: Offered) {
    this.#fleet = fleet;
    this.#offered = offered;
  }

  /** Whether no other attempt may follow the current one. */
  get isLast(): boolean {
    const { model, only = null } = this.#offered;
    if (this.#count === GATEWAY_TRIES_MAX || only !== null) return true;
    return !this.#fleet.hasUntried(this.#tried, model);
  }

  /** Counts the request at an engine, for which `fleet.leave` must be called; or returns why there is none. */
  async next(signal: Abortable): Promise<Engine | Shed | "failed"> {
    if (this.#count === GATEWAY_TRIES_MAX) return "failed";
    const engine = await this.#enter(signal);
    if (typeof engine === "string") {
      const isOwn = engine === "gone" || this.#count === 0 || !this.#isServed();
      return isOwn ? engine : "failed";
    }
    this.#count += 1;
    this.#tried.add(engine);
    return engine;
  }

  /** Returns whether the request may be offered again. */
  goesOn(engine: Engine, failure: Failure): boolean {
    // The engine is healthy, and holds what it computed of the prompt.
    if (failure === "cut" && !this.#returned.has(engine)) this.#back = engine;
    return this.#offered.losses.allows(failure);
  }

  /** Whether an engine is there that could answer, tried or not. */
  #isServed(): boolean {
    const { model, only = null } = this.#offered;
    return only === null ? this.#fleet.hasAny(model) : this.#fleet.able(model).includes(only);
  }

  async #enter(signal: Abortable): Promise<Engine | Shed> {
    const { only = null } = this.#offered;
    const back = this.#back;
    this.#back = null;
    if (back !== null) {
      this.#returned.add(back);
      const entered = await this.#enterAt(back, new Set(), signal);
      // The engine went down, is drained or left meanwhile.
      if (entered !== "no_holder") return entered;
    }
    return await this.#enterAt(only, this.#tried, signal);
  }

  #enterAt(
    only: Engine | null,
    not: ReadonlySet<Engine>,
    signal: Abortable,
  ): Promise<Engine | Shed> {
    const { model, order, turn } = this.#offered;
    return this.#fleet.enter(model, order, signal, {
      not,
      only,
      ...(turn === undefined ? {} : { turn }),
    });
  }
}
