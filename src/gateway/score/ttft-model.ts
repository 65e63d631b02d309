// Owns the model of one engine's time to first token: the costs of computing and of pulling prompts, and the queue.
import {
  GATEWAY_PREFILL_SAMPLES,
  GATEWAY_PREFILL_TOKENS_PER_S,
  GATEWAY_PULL_MS_MIN,
  GATEWAY_PULL_SHARE,
} from "../../base/limits/gateway.ts";
import { nowMs } from "../../base/time.ts";
import { Fit } from "../../cost/fit.ts";
import { Prefill } from "../../cost/prefill.ts";

/** Tokens of a prompt: all, those in the engine's own cache from the first on, and those with vaults' behind them. */
export interface Span {
  tokens: number;
  held: number;
  reach: number;
}

/** Parts of a prompt's time to first token at one engine. */
export interface TtftParts {
  /** Tokens pulled from vaults; the rest behind them is computed. */
  pulled: number;
  /** Milliseconds until computing begins: earlier prompts are computed, and the pulled blocks have arrived. */
  waitMs: number;
  computeMs: number;
}

/** A prompt that the engine has not begun to answer. */
export interface Computing {
  span: Span;
  sentMs: number;
  /** Milliseconds that the prompt takes by itself: pulling its blocks, and computing the rest. */
  pullMs: number;
  computeMs: number;
  /** No other prompt was computed beside it, so that its time is its own. */
  isAlone: boolean;
}

/** Learns from first tokens, or from whole answers where nothing streams; counts prompts when sent, so that a burst sees itself. */
export class TtftModel {
  readonly #prefill = new Prefill();
  /** Costs over all engines, used for one with few samples, because few say nothing about other lengths. */
  readonly #usual: Prefill;
  /** Seconds by [1, tokens] of prompts with blocks in vaults, whether the engine pulled them or found computing quicker. */
  readonly #pull = new Fit(2, [[1]]);
  readonly #open = new Set<Computing>();
  /** Time of the last first token; the first prompt in the queue has been computed since then. */
  #begunMs = 0;

  constructor(usual: Prefill = new Prefill()) {
    this.#usual = usual;
  }

  /** Prompts computed or queued now. */
  get prompts(): number {
    return this.#open.size;
  }

  /** Milliseconds until a prompt sent now could begin. */
  queueMs(now: number = nowMs()): number {
    let queueMs = 0;
    let isFirst = true;
    for (const { sentMs, pullMs, computeMs } of this.#open) {
      const spentMs = now - Math.max(sentMs, this.#begunMs);
      // A prompt that takes longer than predicted holds up the others, whose own time is still to come.
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

  /** Milliseconds to pull the tokens from..to. Before any sample pulling is predicted to win, so that it is tried. */
  pullMs(from: number, to: number): number {
    const seconds = this.#pull.predict([1, to - from]);
    if (seconds !== null) return 1000 * seconds;
    return GATEWAY_PULL_MS_MIN + GATEWAY_PULL_SHARE * this.computeMs(from, to);
  }

  /** Chooses the cheaper of computing behind its own cache or pulling first. `behind`: prompts that computing delays, too. */
  partsOf({ tokens, held, reach }: Span, behind = 0): TtftParts {
    const queueMs = this.queueMs();
    const alone = { pulled: 0, waitMs: queueMs, computeMs: this.computeMs(held, tokens) };
    if (reach <= held) return alone;
    const pulling = {
      pulled: reach - held,
      // Other prompts are computed while its blocks arrive.
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

  /** Learns from a whole answer after `ms`, with `decoded` tokens behind its first. Returns when the first came, ms, or null. */
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

/** Milliseconds until the first token, plus the delay of the prompts behind it. */
export function costOf({ waitMs, computeMs }: TtftParts, behind = 0): number {
  return waitMs + computeMs * (1 + behind);
}
