// Owns what computing a prompt costs on one engine: seconds by length and position, learned from the engine's own steps.
import { Fit } from "./fit.ts";

/** One forward pass of an engine. */
export interface Step {
  /** Prompt tokens it computed. */
  tokens: number;
  /** Pairs of such a token and one before it. */
  attended: number;
  seconds: number;
}

/**
 * A step takes base + perToken x tokens + perPair x attended seconds. A prompt is computed in steps of at most the
 * largest size seen, so tokens from..to take base x steps + perToken x (to - from) + perPair x (to^2 - from^2) / 2.
 */
export class Prefill {
  /** The base is doubted: prompts of one length would else look as if they cost the same at any length. */
  readonly #fit = new Fit(3, 0);
  #stepTokensMax = 0;
  #isWarm = false;

  get samples(): number {
    return this.#fit.samples;
  }

  /** Seconds per step, per token, per pair; null before the second step. */
  get coefficients(): readonly number[] | null {
    return this.#fit.coefficients;
  }

  /** An engine's first step prepares memory, and says nothing of the next. */
  learn({ tokens, attended, seconds }: Step): void {
    this.#stepTokensMax = Math.max(this.#stepTokensMax, tokens);
    if (this.#isWarm) this.#fit.add([1, tokens, attended], seconds);
    this.#isWarm = true;
  }

  /** Seconds that one such step should take; null before the first. */
  stepS({ tokens, attended }: Omit<Step, "seconds">): number | null {
    return this.#fit.predict([1, tokens, attended]);
  }

  /** Seconds to compute the tokens from..to of a prompt and one more, whose step is always needed; null: not known yet. */
  seconds(from: number, to: number): number | null {
    const tokens = Math.max(0, to - from);
    const steps = Math.max(1, Math.ceil((tokens + 1) / Math.max(1, this.#stepTokensMax)));
    const attended = (to * to - from * from) / 2;
    return this.#fit.predict([steps, tokens, Math.max(0, attended)]);
  }
}
