// Owns how long an engine waits for a plan: its deadline, the weighing against computing, and the word that it is not forgotten.
import { PACE_TICK_MS, WAITS_EVERY_MS } from "../../limits/cost.ts";
import { nowMs } from "../../time.ts";
import type { DoneReason, SidecarMessage } from "../socket/messages.ts";
import type { CostModel } from "./cost-model.ts";
import type { Plan } from "./plan.ts";

export interface WaitingOptions {
  /** null: there is no arena yet. */
  costs(): CostModel | null;
  finish(plan: Plan, reason: DoneReason): void;
  send(message: SidecarMessage): void;
}

/**
 * A plan that the engine has not asked for costs nobody time: the engine computes for others meanwhile, because it has no
 * room for this request. So the deadline begins when it is asked for.
 */
export class Waiting {
  readonly #options: WaitingOptions;
  readonly #plans = new Set<Plan>();
  #ticker: NodeJS.Timeout | undefined;
  #toldMs = 0;

  constructor(options: WaitingOptions) {
    this.#options = options;
  }

  /** From now on, or from when it is asked for, the plan ends in `ms`; later calls replace earlier ones. */
  limit(plan: Plan, ms: number, reason: DoneReason): void {
    plan.budget = { ms, reason };
    if (plan.isAsked && !plan.isOver) this.#arm(plan);
  }

  /** The engine waits for it. */
  begin(plan: Plan): void {
    if (plan.isAsked) return;
    plan.isAsked = true;
    if (plan.isOver) return;
    this.#arm(plan);
    this.#plans.add(plan);
    this.#ticker ??= setInterval(() => this.#tick(), PACE_TICK_MS);
    if (this.#options.costs()?.isLost(plan) === true) this.#options.finish(plan, "slower");
  }

  end(plan: Plan): void {
    clearTimeout(plan.deadline);
    this.#plans.delete(plan);
    if (this.#plans.size === 0) this.close();
  }

  close(): void {
    clearInterval(this.#ticker);
    this.#ticker = undefined;
  }

  #arm(plan: Plan): void {
    clearTimeout(plan.deadline);
    const { ms, reason } = plan.budget;
    plan.deadline = setTimeout(() => {
      this.#options.finish(plan, plan.state === "queued" ? "no_slot" : reason);
    }, ms);
  }

  /** Ends what would be computed sooner than the rest of it comes; what is placed is handed over. */
  #tick(): void {
    const costs = this.#options.costs();
    const isTold = nowMs() - this.#toldMs >= WAITS_EVERY_MS;
    if (isTold) this.#toldMs = nowMs();
    for (const plan of this.#plans) {
      const { req, number, state } = plan;
      if (state === "fetching" && costs?.isLost(plan) === true) {
        this.#options.finish(plan, "slower");
      } else if (isTold && state !== "looking") {
        this.#options.send({ t: "waits", req, plan: number });
      }
    }
  }
}
