// Owns noticing an engine whose server answers while its core hangs: requests wait there, and nothing of the engine moves.
import { GATEWAY_STALL_FACTOR, GATEWAY_STALL_MS } from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import type { Engine } from "./engine.ts";

/** Returns the engine's counters as text, from its `/metrics`; null: it reports none. */
export type ReadCounters = () => Promise<string | null>;

/**
 * Signs of life are bytes of answers, events, and vLLM's own counters, which change with each step of the core. A core that
 * computes a long prompt changes its counters, so that patience ends only where everything stands still.
 */
export class Progress {
  readonly #engine: Engine;
  #signs = -1;
  #stillSinceMs = 0;
  /** Counters since half of the patience is over; null: not read. */
  #counters: string | null = null;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** Returns how long nothing has moved, in milliseconds, once that is too long; null: the engine works, or nothing waits. */
  async stalledMs(read: ReadCounters): Promise<number | null> {
    const { signs, waiting } = this.#engine;
    const now = nowMs();
    if (waiting === null || signs !== this.#signs) return this.#moves(now);
    const stillMs = now - Math.max(this.#stillSinceMs, waiting.sinceMs);
    const patienceMs = Math.max(GATEWAY_STALL_MS, GATEWAY_STALL_FACTOR * waiting.expectedMs);
    if (stillMs < patienceMs / 2) return null;
    const counters = await read();
    // Without counters and events a long prompt and a hung core look the same.
    if (counters === null && !this.#engine.hasEvents) return this.#moves(nowMs());
    const before = this.#counters;
    this.#counters = counters ?? "";
    if (before !== null && before !== this.#counters) return this.#moves(nowMs());
    const isSure = before !== null && stillMs >= patienceMs && signs === this.#engine.signs;
    return isSure ? stillMs : null;
  }

  #moves(now: number): null {
    this.#signs = this.#engine.signs;
    this.#stillSinceMs = now;
    this.#counters = null;
    return null;
  }
}

/** Lines of vLLM's own metrics; a server's counts of requests change without the core. */
const OF_CORE = /^vllm:(?!\S*_created\b).*$/gm;

/** Returns the lines of `/metrics` that change with the core's steps; null: there are none. */
export function countersIn(metrics: string): string | null {
  return metrics.match(OF_CORE)?.join("\n") ?? null;
}
