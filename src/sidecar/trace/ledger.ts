// Owns the savings ledger: the time restores saved the engines since the sidecar started, as the cost model estimates it.

/** Sums since the sidecar started. */
export interface LedgerStatus {
  /** Requests for which an engine loaded blocks. */
  restores: number;
  /** Prompt tokens that engines did not compute. */
  tokens: number;
  /** Seconds of computing those tokens, for restores with a known cost. */
  prefillS: number;
  /** Seconds of looking up, fetching and loading them. */
  restoreS: number;
  /** Seconds that requests waited less: `prefillS` - `restoreS`. */
  savedS: number;
  /** Tokens restored before the cost model knew their cost: part of `tokens`, but of no seconds. */
  unpricedTokens: number;
  /** Joules saved: `[ledger] watts` times `prefillS`; null: not set. */
  joules: number | null;
}

export class Ledger {
  readonly #watts: number | null;
  #restores = 0;
  #tokens = 0;
  #unpricedTokens = 0;
  #prefillS = 0;
  #restoreS = 0;

  /** `watts`: power that computing draws beyond idling. */
  constructor(watts: number | null = null) {
    this.#watts = watts;
  }

  /**
   * Adds a restore of `tokens` in `restoreS` seconds, where computing would have taken `prefillS`; null: not known. Returns the
   * seconds saved, negative where the restore lost.
   */
  restored(tokens: number, restoreS: number, prefillS: number | null): number | null {
    this.#restores += 1;
    this.#tokens += tokens;
    if (prefillS === null) {
      this.#unpricedTokens += tokens;
      return null;
    }
    this.#prefillS += prefillS;
    this.#restoreS += restoreS;
    return prefillS - restoreS;
  }

  status(): LedgerStatus {
    const [prefillS, restoreS] = [this.#prefillS, this.#restoreS];
    return {
      restores: this.#restores,
      tokens: this.#tokens,
      prefillS,
      restoreS,
      savedS: prefillS - restoreS,
      unpricedTokens: this.#unpricedTokens,
      joules: this.#watts === null ? null : this.#watts * prefillS,
    };
  }
}
