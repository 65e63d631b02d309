// Owns the time to compute a prompt on one engine, by length and position, learned from the engine's own steps.
import { STEP_COST_TOKENS } from "../base/limits/cost.ts";
import { Fit } from "./fit.ts";

/** One forward pass of an engine. */
export interface Step {
  /** Prompt tokens computed in the step. */
  tokens: number;
  /** Pairs of a computed token and an earlier one. */
  attended: number;
  seconds: number;
}

/** Of samples of one length: without them the base would take all or none, and longer prompts be far off. */
const BELIEFS = [
  [1, -STEP_COST_TOKENS],
  [0, -STEP_COST_TOKENS, 0, 1],
];

/**
 * A step takes base + perToken x tokens + perPair x attended seconds. A prompt is computed in steps of at most `stepTokens`, or the
 * largest size seen, so tokens from..to take base x steps + perToken x (to - from) + perPair x (to^2 - from^2) / 2. Where only the
 * whole answer was timed, each decoded token after the first takes its share as well.
 */
export class Prefill {
  /** All steps but the first, which prepares memory. */
  readonly #later = new Fit(4, BELIEFS);
  /** All steps: used until a later one has at least half of the first's tokens, because a guess from far shorter ones is worse. */
  readonly #all = new Fit(4, BELIEFS);
  /** Most tokens that the engine computes in one step. */
  stepTokens = 1;
  /** Longest prompt, in tokens, whose computing was measured. */
  longestTokens = 0;
  readonly #countsFirst: boolean;
  #firstTokens: number | null = null;
  #laterTokens = 0;

  /** `countsFirst`: whether the first step counts until one of its size follows; else nothing is known before the second. */
  constructor(countsFirst = false) {
    this.#countsFirst = countsFirst;
  }

  get samples(): number {
    return this.#fit.samples;
  }

  get #fit(): Fit {
    const isKnown = this.#later.samples > 0 && 2 * this.#laterTokens >= (this.#firstTokens ?? 0);
    return isKnown || !this.#countsFirst ? this.#later : this.#all;
  }

  /** Seconds per step, per token, per pair, per decoded token; null before the first step that counts. */
  get coefficients(): readonly number[] | null {
    return this.#fit.coefficients;
  }

  /** Learns from a step. `decoded`: tokens decoded in that time beyond the first. */
  learn({ tokens, attended, seconds }: Step, decoded = 0): void {
    this.stepTokens = Math.max(this.stepTokens, tokens);
    // Tokens a..b have (b^2 - a^2) / 2 pairs. Of several prompts in a step this is a mean.
    const end = tokens > 0 ? attended / tokens + tokens / 2 : 0;
    this.longestTokens = Math.max(this.longestTokens, Math.round(end));
    const features = [1, tokens, attended, decoded];
    this.#all.add(features, seconds);
    if (this.#firstTokens === null) this.#firstTokens = tokens;
    else {
      this.#later.add(features, seconds);
      this.#laterTokens = Math.max(this.#laterTokens, tokens);
    }
  }

  /** Seconds to decode so many tokens; null: not known yet. */
  decodeS(decoded: number): number | null {
    return this.#fit.predict([0, 0, 0, decoded]);
  }

  /** Seconds to compute the tokens from..to of a prompt and one more, which always needs a step; null: not known yet. */
  seconds(from: number, to: number): number | null {
    const tokens = Math.max(0, to - from);
    const steps = Math.max(1, Math.ceil((tokens + 1) / this.stepTokens));
    const attended = (to * to - from * from) / 2;
    return this.#fit.predict([steps, tokens, Math.max(0, attended), 0]);
  }

  /**
   * Longest time that computing the tokens 0..to may take; null: not known yet. Steps of short prompts do not show what attention will
   * cost, and time grows at most with the square of the length.
   */
  mostSeconds(to: number): number | null {
    const { longestTokens: seen } = this;
    const seconds = this.seconds(0, to);
    const seenS = this.seconds(0, seen);
    if (seconds === null || seenS === null || seen === 0 || to <= seen) return seconds;
    return Math.max(seconds, seenS * (to / seen) ** 2);
  }
}
