// Owns one engine's rates: computing, loading, and the bytes its blocks take on the wire.
import {
  ASIDE_SMOOTHING,
  BEGIN_MARGIN,
  LOAD_FADE_MS,
  WIRE_SMOOTHING,
} from "../base/limits/cost.ts";
import { nowMs } from "../base/time.ts";
import { Average } from "./average.ts";
import { Fit } from "./fit.ts";
import type { Link } from "./link.ts";
import { Prefill } from "./prefill.ts";
import { EngineQueue } from "./queue.ts";

/** A prompt length that a request could be restored to. */
export interface Offer {
  /** Prompt tokens up to there, including the engine's own. */
  tokens: number;
  /** Seconds until the missing blocks have come; 0: all lie in the arena; null: not known. */
  fetchS: number | null;
  /** Decoded bytes that the engine copies. */
  loadBytes: number;
}

/** Predicted seconds. */
export interface Cost {
  fetchS: number;
  loadS: number;
  /** Seconds for the tokens that are not restored. */
  computeS: number;
}

export type Choice = "local" | "loaded" | "recomputed";

export interface ChoiceOptions {
  /** Reason to take the longest offer; null: the quickest is taken. */
  wanted: Why | null;
  /** Seconds until the engine has room for the request, in which fetching costs nothing; null: not known, and taken as long enough. */
  waitS: number | null;
}

const DEFAULTS: ChoiceOptions = { wanted: null, waitS: 0 };

export interface Decision {
  /** Prompt tokens to restore up to: an offer's, or the start. */
  tokens: number;
  choice: Choice;
  why: Why;
  /** null: the model knows too little, and the restore is tried. */
  cost: Cost | null;
  /** Seconds to compute everything; null: not known yet. */
  recomputeS: number | null;
}

/**
 * cold: no measurement yet, so it is tried · cheaper: the choice answers first · slow_link, slow_load: why restoring loses ·
 * too_short: it loses whatever vaults hold · always: as configured · handed_over: another engine computed it for this one.
 */
export type Why =
  | "nothing_held"
  | "cold"
  | "cheaper"
  | "slow_link"
  | "slow_load"
  | "too_short"
  | "always"
  | "handed_over";

export class EngineRates {
  /** True: restores even where computing is faster. */
  readonly isAlways: boolean;
  readonly prefill: Prefill = new Prefill(true);
  readonly queue: EngineQueue = new EngineQueue();
  /** Seconds from placement until loaded, by [1, decoded bytes]. */
  readonly #load = new Fit(2, [[1]]);
  /** Seconds of whole restores from vaults, from the look-up until all was loaded, by [1, decoded bytes]. */
  readonly #restores = new Fit(2, [[1]]);
  #loadedMs: number | null = null;
  /** Seconds that a restored request's answer took beside look-up, load and computing; below 0 where computing was overrated. */
  readonly #aside = new Average(ASIDE_SMOOTHING);
  #answers = 0;
  /** Ratio of wire bytes to the largest possible. */
  readonly #wireShare = new Average(WIRE_SMOOTHING);

  constructor(isAlways = false) {
    this.isAlways = isAlways;
  }

  /**
   * Learns from a load of `bytes` decoded bytes that took `copyS`. The first one prepares memory, and says nothing of the next.
   * `tookS`: from the look-up until all was loaded, if vaults sent all of it to an engine without other requests; otherwise 0.
   */
  loaded(bytes: number, { copyS, tookS = 0 }: { copyS: number; tookS?: number }): void {
    if (this.#loadedMs !== null) {
      this.#load.add([1, bytes], copyS);
      this.#restores.add([1, bytes], tookS);
    }
    this.#loadedMs = nowMs();
  }

  /** Learns what an answer took beside look-up, load and computing. The first one prepares memory, as `loaded` says. */
  answered(asideS: number): void {
    this.#answers += 1;
    if (this.#answers > 1) this.#aside.add(asideS);
  }

  /** Seconds that an answer takes beside look-up, load and computing, as measured; null: not yet. */
  get asideS(): number | null {
    return this.#aside.mean;
  }

  /** Learns that blocks of at most `most` wire bytes took `bytes`. */
  fetched(bytes: number, most: number): void {
    if (most > 0 && bytes > 0) this.#wireShare.add(bytes / most);
  }

  /**
   * Seconds to load `bytes`, for a decision; 0 before the first loads, so that it is tried. Fades while no load comes, because one
   * bad sample must not count for ever.
   */
  loadS(bytes: number): number {
    const ageMs = this.#loadedMs === null ? 0 : nowMs() - this.#loadedMs;
    return (this.seenLoadS(bytes) ?? 0) * 0.5 ** (ageMs / LOAD_FADE_MS);
  }

  /** Seconds to load `bytes` as measured, however long ago; null: nothing was loaded yet. */
  seenLoadS(bytes: number): number | null {
    return this.#load.predict([1, bytes]);
  }

  /** Seconds from the look-up of `bytes` until vaults sent them and the engine loaded them, as measured; null: not yet. */
  seenRestoreS(bytes: number): number | null {
    return this.#restores.predict([1, bytes]);
  }

  /** True once records came back, so that their size is known. */
  get isWireKnown(): boolean {
    return this.#wireShare.samples > 0;
  }

  /** Expected wire bytes of records of at most `most` bytes. */
  wireBytes(most: number): number {
    return most * (this.#wireShare.mean ?? 1);
  }

  /** Seconds until `bytes` (largest wire bytes) have come over a link behind `aheadBytes`; null: not known. */
  fetchS(link: Link | null, bytes: number, aheadBytes: number): number | null {
    if (bytes <= 0) return 0;
    const rate = link?.restoreRate ?? null;
    if (rate === null) return null;
    const waitMs = link?.roundTripMs(0) ?? 0;
    return waitMs / 1000 + this.wireBytes(bytes + aheadBytes) / Math.max(rate, 1);
  }

  /**
   * Chooses the quickest of the offers, shortest first, and of computing all from `start` on, all compared up to the same `end`. An
   * unknown cost is tried with the longest offer, because only that measures it.
   */
  choose(
    start: number,
    end: number,
    offers: readonly Offer[],
    { wanted, waitS }: ChoiceOptions = DEFAULTS,
  ): Decision {
    const recomputeS = this.prefill.seconds(start, end);
    const longest = offers.at(-1);
    if (longest === undefined || longest.tokens <= start) {
      return { tokens: start, choice: "recomputed", why: "nothing_held", cost: null, recomputeS };
    }
    const cost = this.costOf(longest, end);
    const forced = wanted ?? this.#configured;
    if (forced !== null || recomputeS === null || cost === null) {
      const why = forced ?? "cold";
      return { tokens: longest.tokens, choice: choiceOf(longest), why, cost, recomputeS };
    }
    const slow = cost.fetchS > cost.loadS ? "slow_link" : "slow_load";
    const best = this.#quickest(offers, end, recomputeS, waitS);
    if (best === null) {
      return { tokens: start, choice: "recomputed", why: slow, cost, recomputeS };
    }
    const why = best.offer === longest ? "cheaper" : slow;
    const choice = choiceOf(best.offer);
    return { tokens: best.offer.tokens, choice, why, cost: best.cost, recomputeS };
  }

  /** Reason from the configuration that overrides the comparison. */
  get #configured(): Why | null {
    return this.isAlways ? "always" : null;
  }

  /** Returns the quickest offer below `leastS`; offers that need a fetch must win by a margin. */
  #quickest(
    offers: readonly Offer[],
    end: number,
    leastS: number,
    waitS: number | null,
  ): { offer: Offer; cost: Cost } | null {
    let least = leastS;
    let best: { offer: Offer; cost: Cost } | null = null;
    for (const offer of offers) {
      const cost = this.costOf(offer, end);
      if (cost === null) continue;
      const answersS = totalS(cost, waitS);
      if (answersS >= least) continue;
      if (cost.fetchS > 0 && answersS * (1 + BEGIN_MARGIN) >= leastS) continue;
      best = { offer, cost };
      least = answersS;
    }
    return best;
  }

  /** Seconds to restore up to an offer and compute the rest; null: not known yet. */
  costOf({ tokens, fetchS, loadBytes }: Offer, end: number): Cost | null {
    const computeS = this.prefill.seconds(tokens, end);
    if (fetchS === null || computeS === null) return null;
    return { fetchS, loadS: this.loadS(loadBytes), computeS };
  }

  /** Fewest tokens, up to `most`, whose computing takes longer than `leastS`; 0 while not known. */
  tokensWorth(leastS: number, most: number): number {
    if (this.prefill.coefficients === null || this.isAlways) return 0;
    const alone = this.prefill.seconds(0, 0) ?? 0;
    const gain = (tokens: number): number => (this.prefill.seconds(0, tokens) ?? 0) - alone;
    let low = 0;
    let high = most;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (gain(middle) > leastS) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function choiceOf({ fetchS }: Offer): Choice {
  return fetchS === 0 ? "local" : "loaded";
}

/** Seconds until the answer begins, once the engine has room for the request. */
function totalS({ fetchS, loadS, computeS }: Cost, waitS: number | null): number {
  const lateS = waitS === null ? 0 : Math.max(0, fetchS - waitS);
  return lateS + loadS + computeS;
}
