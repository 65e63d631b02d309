// Owns the forecast from a trace: the prompt tokens that vaults of several sizes would restore, and the time saved.
import { TierkvError } from "../../base/errors.ts";
import { PLAN_TRACE_BLOCKS_MAX } from "../../base/limits/tools.ts";
import { Distances } from "./distances.ts";
import type { TracedRequest } from "./trace.ts";

export interface ForecastOptions {
  blockTokens: number;
  /** Vault sizes in tokens, ascending; Infinity may be among them. */
  sizes: readonly number[];
  /** Tokens that the engine itself holds; 0: the forecast covers all repeats. */
  engineTokens: number;
  /** Seconds to compute the first `tokens` of a prompt; null: not known. */
  computeS: ((tokens: number) => number) | null;
  /** Seconds to restore tokens, for each link. */
  restoreS: readonly ((tokens: number) => number)[];
}

export interface SizeForecast {
  /** Prompt tokens in the vault and not in the engine. */
  hitTokens: number;
  /** Seconds saved on each link where restoring beats computing; null: the speed of computing is not known. */
  savedS: number[] | null;
}

export interface TraceForecast {
  requests: number;
  tokens: number;
  /** Tokens of distinct blocks: the vault size that keeps everything. */
  distinctTokens: number;
  engineHitTokens: number;
  sizes: SizeForecast[];
}

/** Takes requests in order. Memory grows with the distinct blocks, which have a ceiling. */
export class Forecaster {
  readonly #options: ForecastOptions;
  readonly #distances = new Distances();
  readonly #result: TraceForecast;

  constructor(options: ForecastOptions) {
    const { sizes, computeS, restoreS } = options;
    this.#options = options;
    this.#result = {
      requests: 0,
      tokens: 0,
      distinctTokens: 0,
      engineHitTokens: 0,
      sizes: sizes.map(() => ({
        hitTokens: 0,
        savedS: computeS === null ? null : restoreS.map(() => 0),
      })),
    };
  }

  take(request: TracedRequest): void {
    const { engineTokens, sizes } = this.#options;
    const blocks = this.#blocksOf(request);
    const ends = sizes.map(() => 0);
    let [engineEnd, farthest] = [0, 0];
    for (const { id, end } of blocks) {
      // A block is useful only if all before it are held, so the farthest of them decides.
      farthest = Math.max(farthest, this.#distances.of(id));
      if (farthest === Infinity) break;
      if (farthest <= engineTokens) engineEnd = end;
      for (const [at, size] of sizes.entries()) if (farthest <= size) ends[at] = end;
    }
    for (const { id, tokens } of blocks) this.#distances.use(id, tokens);
    if (this.#distances.blocks > PLAN_TRACE_BLOCKS_MAX) {
      throw new TierkvError("OVERLOAD", {
        what: "different blocks of the trace",
        count: this.#distances.blocks,
        limit: PLAN_TRACE_BLOCKS_MAX,
      });
    }
    const result = this.#result;
    result.requests += 1;
    result.tokens += request.tokens;
    result.engineHitTokens += engineEnd;
    for (const [at, end] of ends.entries()) this.#count(result.sizes[at], engineEnd, end);
  }

  #blocksOf({ tokens, blocks }: TracedRequest): { id: number; tokens: number; end: number }[] {
    const { blockTokens } = this.#options;
    const all = blocks.map((id, at) => {
      const start = at * blockTokens;
      const end = Math.min(tokens, start + blockTokens);
      return { id, tokens: end - start, end };
    });
    return all.filter((block) => block.tokens > 0);
  }

  #count(into: SizeForecast | undefined, engineEnd: number, end: number): void {
    const gained = end - engineEnd;
    if (into === undefined || gained <= 0) return;
    into.hitTokens += gained;
    const { computeS, restoreS } = this.#options;
    if (computeS === null || into.savedS === null) return;
    const computed = computeS(end) - computeS(engineEnd);
    for (const [link, seconds] of restoreS.entries()) {
      into.savedS[link] = (into.savedS[link] ?? 0) + Math.max(0, computed - seconds(gained));
    }
  }

  result(): TraceForecast {
    return { ...this.#result, distinctTokens: this.#distances.tokens };
  }
}
