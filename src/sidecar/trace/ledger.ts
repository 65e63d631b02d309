// Owns the savings ledger: what restores spared the engines since the sidecar started, by the cost model's own estimate.

/** Since the sidecar started. */
export interface LedgerStatus {
  restores: number;
  /** Prompt tokens that engines did not compute. */
  tokens: number;
  /** Computing those tokens would have taken, of the restores that have a price. */
  prefillS: number;
  /** Looking up, fetching and loading them took. */
  restoreS: number;
  /** What requests waited less: `prefillS` - `restoreS`. */
  savedS: number;
  /** Tokens restored before the cost model knew what they cost: in `tokens`, and in no seconds. */
  unpricedTokens: number;
  /** `[ledger] watts` over `prefillS`; null: not set. */
  joules: number | null;
}

export class Ledger {
  readonly #watts: number | null;
  #restores = 0;
  #tokens = 0;
  #unpricedTokens = 0;
  #prefillS = 0;
  #restoreS = 0;

  /** `watts`: what computing draws more than idling. */
  constructor(watts: number | null = null) {
    this.#watts = watts;
  }

  /**
   * An engine took `tokens` in `restoreS`, and computing them would have taken `prefillS`; null: not known. Gives the seconds that
   * the request waited less, which are below 0 where the restore lost.
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
