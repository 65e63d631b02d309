// Owns the waiting time of a request until its engine has room, by the number of requests before it.
import { LOAD_FADE_MS, QUEUE_SMOOTHING } from "../base/limits/cost.ts";
import { nowMs } from "../base/time.ts";
import { Average } from "./average.ts";

/** Blocks that arrive during the wait cost the request nothing, because the engine computes for others. */
export class EngineQueue {
  /** Seconds per request before it. */
  readonly #each = new Average(QUEUE_SMOOTHING);
  readonly #waits = new Average(QUEUE_SMOOTHING);
  #begunMs = 0;

  /** Learns that the engine had room for a request `seconds` after it came, when `ahead` others waited. */
  began(ahead: number, seconds: number): void {
    if (ahead > 0) this.#each.add(seconds / ahead);
    this.#waits.add(seconds);
    this.#begunMs = nowMs();
  }

  /** Seconds until there is room behind `ahead` others; null: not known yet. */
  seconds(ahead: number): number | null {
    if (ahead <= 0) return 0;
    const { mean } = this.#each;
    return mean === null ? null : mean * ahead;
  }

  /** Seconds that requests waited lately; fades while none comes. */
  get usualS(): number {
    return (this.#waits.mean ?? 0) * 0.5 ** ((nowMs() - this.#begunMs) / LOAD_FADE_MS);
  }
}
