// Owns the questions whether a restore is worth its time: before the look-up, after it, and while the engine waits; the cost model answers.
import type { Decision } from "../../cost/engine-rates.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { Boundary } from "./boundary.ts";
import type { CostModel } from "./cost-model.ts";
import type { Budget, Plan } from "./plan.ts";

export interface WorthOptions {
  /** null: there is no arena yet, and nothing is known. */
  costs(): CostModel | null;
  /** Longest wait of all, in milliseconds. */
  waitMs: number;
}

export class Worth {
  readonly #options: WorthOptions;

  constructor(options: WorthOptions) {
    this.#options = options;
  }

  /** Before the look-up: how long it may take, or that computing answers before any vault would; null: as long as all of the restore. */
  ofAsking(plan: Plan, groups: readonly PrefetchGroup[]): Budget | Decision | null {
    const costs = this.#options.costs();
    const mostMs = plan.isHandedOver ? null : (costs?.lookupMs(plan, groups) ?? null);
    if (mostMs === null || mostMs >= this.#options.waitMs) return null;
    if (mostMs > 0) return { ms: mostMs, reason: "slower" };
    const recomputeS = (costs?.recomputeMs(plan.span) ?? 0) / 1000;
    const { start: tokens } = plan.span;
    return { tokens, choice: "recomputed", why: "too_short", cost: null, recomputeS };
  }

  /** After the look-up: how much of what is held is restored; the plan takes it. */
  ofRestoring(plan: Plan, boundary: Boundary, costs: CostModel): Decision {
    return costs.decide(plan, boundary);
  }

  /** After the look-up: how long the restore may take, because no plan may take longer than computing; null: as long as before. */
  ofWaiting(plan: Plan, spentMs: number): Budget | null {
    const recomputeMs = this.#options.costs()?.recomputeMs(plan.span) ?? null;
    const waitMs = this.#options.waitMs * plan.windows;
    if (plan.isHandedOver) return null;
    if (recomputeMs === null) {
      return plan.windows > 1 ? { ms: Math.max(1, waitMs - spentMs), reason: "deadline" } : null;
    }
    const leftMs = Math.min(waitMs, recomputeMs) - spentMs;
    return { ms: Math.max(1, leftMs), reason: recomputeMs < waitMs ? "slower" : "deadline" };
  }

  /** While the engine waits: whether computing would answer sooner than what is still missing. */
  isLost(plan: Plan): boolean {
    return this.#options.costs()?.isLost(plan) === true;
  }
}
