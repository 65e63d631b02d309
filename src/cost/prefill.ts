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

/**
 * A step takes base + perToken x tokens + perPair x attended seconds. A prompt is computed in steps of at most `stepTokens`, or the
 * largest size seen, so tokens from..to take base x steps + perToken x (to - from) + perPair x (to^2 - from^2) / 2. Where only the
 * whole answer was timed, each decoded token after the first takes its share as well.
 */
export class Prefill {
  /** Beliefs for samples of one length: without them the base would take all or none, and longer prompts be far off. */
  readonly #fit = new Fit(4, [
    [1, -STEP_COST_TOKENS],
    [0, -STEP_COST_TOKENS, 0, 1],
  ]);
  /** Most tokens that the engine computes in one step. */
  stepTokens = 1;
  /** Longest prompt, in tokens, whose computing was measured. */
  longestTokens = 0;
  #isWarm = false;

  get samples(): number {
    return this.#fit.samples;
  }

  /** Seconds per step, per token, per pair, per decoded token; null before the second step. */
  get coefficients(): readonly number[] | null {
    return this.#fit.coefficients;
  }

  /** Learns from a step; the first prepares memory and is left out. `decoded`: tokens decoded in that time beyond the first. */
  learn({ tokens, attended, seconds }: Step, decoded = 0): void {
    this.stepTokens = Math.max(this.stepTokens, tokens);
    // Tokens a..b have (b^2 - a^2) / 2 pairs. Of several prompts in a step this is a mean.
    const end = tokens > 0 ? attended / tokens + tokens / 2 : 0;
    this.longestTokens = Math.max(this.longestTokens, Math.round(end));
    if (this.#isWarm) this.#fit.add([1, tokens, attended, decoded], seconds);
    this.#isWarm = true;
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
}
