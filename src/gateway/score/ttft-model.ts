// Owns what is known of one engine's time to a first token: what computing prompts and pulling them from vaults take there, and what waits.
import { Fit } from "../../cost/fit.ts";
import { Prefill } from "../../cost/prefill.ts";
import {
  GATEWAY_PREFILL_SAMPLES,
  GATEWAY_PREFILL_TOKENS_PER_S,
  GATEWAY_PULL_MS_MIN,
  GATEWAY_PULL_SHARE,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";

/** Tokens of a prompt: all, those in the engine's own cache from the first on, and those there with vaults' behind them. */
export interface Span {
  tokens: number;
  held: number;
  reach: number;
}

/** How a prompt comes to its first token at one engine. */
export interface TtftParts {
  /** Tokens that are pulled from vaults; the rest behind them is computed. */
  pulled: number;
  /** Milliseconds until computing begins: what was sent before is computed, and what is pulled is there. */
  waitMs: number;
  computeMs: number;
}

/** A prompt that the engine has not begun to answer. */
export interface Computing {
  span: Span;
  sentMs: number;
  /** What it takes there by itself: until its blocks were pulled, and computing the rest. */
  pullMs: number;
  computeMs: number;
  /** No other prompt was computed beside it: its time is its own. */
  isAlone: boolean;
}

/** Learns from first tokens, and from whole answers where nothing streams; counts what is sent at once, so that a burst sees itself. */
export class TtftModel {
  readonly #prefill = new Prefill();
  /** Of all engines, which stands in for one that has answered few prompts: those tell nothing of other lengths. */
  readonly #usual: Prefill;
  /** Seconds by [1, tokens] that vaults gave, whether the engine pulled them or found computing quicker. */
  readonly #pull = new Fit(2, [[1]]);
  readonly #open = new Set<Computing>();
  /** When a first token came last: what is first in the queue has been computed since then. */
  #begunMs = 0;

  constructor(usual: Prefill = new Prefill()) {
    this.#usual = usual;
  }

  /** Prompts that are computed or wait for it. */
  get prompts(): number {
    return this.#open.size;
  }

  /** Milliseconds until a prompt that is sent now could begin. */
  queueMs(now: number = nowMs()): number {
    let queueMs = 0;
    let isFirst = true;
    for (const { sentMs, pullMs, computeMs } of this.#open) {
      const spentMs = now - Math.max(sentMs, this.#begunMs);
      // One that takes longer than was thought holds up the others: their own time is still to come.
      queueMs += isFirst ? Math.max(0, pullMs + computeMs - spentMs) : computeMs;
      isFirst = false;
    }
    return queueMs;
  }

  /** Milliseconds to compute the tokens from..to of a prompt. */
  computeMs(from: number, to: number): number {
    const isKnown = this.#prefill.samples >= GATEWAY_PREFILL_SAMPLES;
    const seconds = (isKnown ? this.#prefill : this.#usual).seconds(from, to);
    return 1000 * (seconds ?? (to - from) / GATEWAY_PREFILL_TOKENS_PER_S);
  }

  /** Milliseconds to pull the tokens from..to. Before it was measured it is hoped to win, so that it is tried. */
  pullMs(from: number, to: number): number {
    const seconds = this.#pull.predict([1, to - from]);
    if (seconds !== null) return 1000 * seconds;
    return GATEWAY_PULL_MS_MIN + GATEWAY_PULL_SHARE * this.computeMs(from, to);
  }

  /** What costs least: computing behind its own cache, or pulling first. `behind`: prompts that computing delays, too. */
  partsOf({ tokens, held, reach }: Span, behind = 0): TtftParts {
    const queueMs = this.queueMs();
    const alone = { pulled: 0, waitMs: queueMs, computeMs: this.computeMs(held, tokens) };
    if (reach <= held) return alone;
    const pulling = {
      pulled: reach - held,
      // Other prompts are computed while its blocks come.
      waitMs: Math.max(queueMs, this.pullMs(held, reach)),
      computeMs: this.computeMs(reach, tokens),
    };
    return costOf(pulling, behind) < costOf(alone, behind) ? pulling : alone;
  }

  sent(span: Span): Computing {
    const sentMs = nowMs();
    const isAlone = this.#open.size === 0;
    for (const other of this.#open) other.isAlone = false;
    const { pulled, computeMs } = this.partsOf(span);
    const pullMs = pulled === 0 ? 0 : this.pullMs(span.held, span.reach);
    const computing = { span, sentMs, pullMs, computeMs, isAlone };
    this.#open.add(computing);
    return computing;
  }

  /** `isMeasured`: the answer's first byte came with its first token. */
  begun(computing: Computing, isMeasured: boolean): void {
    this.left(computing);
    this.#begunMs = nowMs();
    if (isMeasured) this.#learn(computing, (nowMs() - computing.sentMs) / 1000, 0);
  }

  /** It came as a whole after `ms`, with `decoded` tokens behind its first one. When that came, ms; null: not known. */
  answered(computing: Computing, ms: number, decoded: number): number | null {
    this.#learn(computing, ms / 1000, decoded);
    const decodeS = this.#decodeS(decoded);
    return decodeS === null ? null : Math.max(0, ms - 1000 * decodeS);
  }

  #decodeS(decoded: number): number | null {
    const isKnown = this.#prefill.samples >= GATEWAY_PREFILL_SAMPLES;
    return decoded === 0 ? 0 : (isKnown ? this.#prefill : this.#usual).decodeS(decoded);
  }

  #learn({ span, isAlone }: Computing, seconds: number, decoded: number): void {
    const { tokens, held, reach } = span;
    if (!isAlone) return;
    if (reach === held) {
      const attended = (tokens * tokens - held * held) / 2;
      const step = { tokens: tokens - held, attended, seconds };
      this.#prefill.learn(step, decoded);
      this.#usual.learn(step, decoded);
      return;
    }
    const computeS = this.#prefill.seconds(reach, tokens);
    const decodeS = this.#decodeS(decoded);
    if (computeS === null || decodeS === null) return;
    const pullS = seconds - computeS - decodeS;
    this.#pull.add([1, reach - held], Math.max(pullS, GATEWAY_PULL_MS_MIN / 1000));
  }

  left(computing: Computing): void {
    this.#open.delete(computing);
  }
}

/** Milliseconds until the first token, and those that others wait longer. */
export function costOf({ waitMs, computeMs }: TtftParts, behind = 0): number {
  return waitMs + computeMs * (1 + behind);
}
