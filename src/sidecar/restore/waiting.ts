// Owns an engine's wait for a plan: its deadline, the comparison with computing, and messages that the plan is still alive.
import { PACE_TICK_MS, WAITS_EVERY_MS } from "../../base/limits/cost.ts";
import { nowMs } from "../../base/time.ts";
import type { DoneReason, SidecarMessage } from "../socket/messages.ts";
import type { Budget, Plan } from "./plan.ts";
import type { Worth } from "./worth.ts";

export interface WaitingOptions {
  worth: Pick<Worth, "isLost">;
  finish(plan: Plan, reason: DoneReason): void;
  send(message: SidecarMessage): void;
}

/**
 * A plan's deadline begins when the engine asks for it. Before, the engine has no room for the request and computes others, so the
 * wait costs nothing.
 */
export class Waiting {
  readonly #options: WaitingOptions;
  readonly #plans = new Set<Plan>();
  #ticker: NodeJS.Timeout | undefined;
  #toldMs = 0;

  constructor(options: WaitingOptions) {
    this.#options = options;
  }

  /** Ends the plan that long after it is asked for, or after now; later calls replace earlier ones. null: nothing changes. */
  limit(plan: Plan, budget: Budget | null): void {
    if (budget === null) return;
    plan.budget = budget;
    if (plan.isAsked && !plan.isOver) this.#arm(plan);
  }

  /** Starts the deadline, because the engine waits for the plan now. */
  begin(plan: Plan): void {
    if (plan.isAsked) return;
    plan.isAsked = true;
    if (plan.isOver) return;
    this.#arm(plan);
    this.#plans.add(plan);
    this.#ticker ??= setInterval(() => this.#tick(), PACE_TICK_MS);
    if (this.#options.worth.isLost(plan)) this.#options.finish(plan, "slower");
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

  /** Ends plans whose missing blocks would be computed sooner than fetched; their placed blocks are handed over. */
  #tick(): void {
    const { worth } = this.#options;
    const isTold = nowMs() - this.#toldMs >= WAITS_EVERY_MS;
    if (isTold) this.#toldMs = nowMs();
    for (const plan of this.#plans) {
      const { req, number, state } = plan;
      if (state === "fetching" && worth.isLost(plan)) {
        this.#options.finish(plan, "slower");
      } else if (isTold && state !== "looking") {
        this.#options.send({ t: "waits", req, plan: number });
      }
    }
  }
}
