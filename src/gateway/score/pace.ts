// Owns what is known of one engine's time to a first token: what computing prompts takes there, and what waits before a new one.
import { Prefill } from "../../cost/prefill.ts";
import { GATEWAY_PREFILL_TOKENS_PER_S } from "../../limits-gateway.ts";
import { nowMs } from "../../time.ts";

/** A prompt that the engine has not begun to answer. */
export interface Computing {
  from: number;
  to: number;
  sentMs: number;
  /** When it should be done, after all that was sent before. */
  doneMs: number;
  /** No other prompt was computed beside it: its time is its own. */
  isAlone: boolean;
}

/** Learns from answers that are streamed; counts what is sent at once, so that a burst sees itself. */
export class Pace {
  readonly #prefill = new Prefill();
  readonly #open = new Set<Computing>();

  /** Prompts that are computed or wait for it. */
  get prompts(): number {
    return this.#open.size;
  }

  /** Milliseconds until a prompt that is sent now could begin. */
  queueMs(now: number = nowMs()): number {
    let last = now;
    for (const { doneMs } of this.#open) last = Math.max(last, doneMs);
    return last - now;
  }

  /** Milliseconds to compute the tokens from..to of a prompt. */
  computeMs(from: number, to: number): number {
    const seconds = this.#prefill.seconds(from, to);
    return 1000 * (seconds ?? (to - from) / GATEWAY_PREFILL_TOKENS_PER_S);
  }

  sent(from: number, to: number): Computing {
    const now = nowMs();
    const isAlone = this.#open.size === 0;
    for (const other of this.#open) other.isAlone = false;
    const doneMs = now + this.queueMs(now) + this.computeMs(from, to);
    const computing = { from, to, sentMs: now, doneMs, isAlone };
    this.#open.add(computing);
    return computing;
  }

  /** `isMeasured`: the answer's first byte came with its first token. */
  begun(computing: Computing, isMeasured: boolean): void {
    this.left(computing);
    const { from, to, sentMs, isAlone } = computing;
    if (!isMeasured || !isAlone) return;
    const attended = (to * to - from * from) / 2;
    this.#prefill.learn({ tokens: to - from, attended, seconds: (nowMs() - sentMs) / 1000 });
  }

  left(computing: Computing): void {
    this.#open.delete(computing);
  }
}
