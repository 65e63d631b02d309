// Owns the judgement of a lossy codec on a model's answers: one verdict, and whether more prompts could change it.
import { likeness } from "./likeness.ts";
import type { Likeness, Weighed } from "./likeness.ts";

/** One prompt's answers: computed, from the engine's own cache, and restored. */
export interface Trio<Answer extends Weighed = Weighed> {
  computed: Answer;
  own: Answer;
  restored: Answer;
}

/** undecided: more prompts are needed. */
export type Verdict = "within" | "beyond" | "undecided";

export interface Judgement {
  verdict: Verdict;
  /** Two exact runs: what the engine's own rounding changes. */
  ownCache: Likeness;
  /** Restored answers, against the own cache's. */
  tierkv: Likeness;
  /** Mean divergence beyond that of the two exact runs, nats a token, with its interval. */
  excess: number;
  low: number;
  high: number;
}

/**
 * Judges the mean of what restoring adds, prompt by prompt, to the divergence of the two exact runs. Within or beyond:
 * the whole 95 % interval of Student's t lies on that side of the bound. Tokens of one answer depend on each other, so
 * an answer counts as one sample.
 */
export function judgement(trios: readonly Trio[], bound: number): Judgement {
  const floors = trios.map(({ computed, own }) => likeness([[computed, own]]).kldMean);
  const found = trios.map(({ own, restored }) => likeness([[own, restored]]).kldMean);
  const added = found.map((kld, index) => kld - (floors[index] ?? 0));
  const excess = mean(added);
  const half = halfInterval(added, excess);
  const ownCache = likeness(trios.map(({ computed, own }) => [computed, own]));
  const tierkv = likeness(trios.map(({ own, restored }) => [own, restored]));
  const [low, high] = [excess - half, excess + half];
  const verdict = high <= bound ? "within" : low > bound ? "beyond" : "undecided";
  return { verdict, ownCache, tierkv, excess, low, high };
}

/** Gives the verdict when there are no more prompts: a few equal answers within the bound are no reason for doubt. */
export function finalVerdict(
  { verdict, tierkv, excess }: Judgement,
  bound: number,
): Judgement["verdict"] {
  if (verdict !== "undecided") return verdict;
  return tierkv.same === tierkv.answers && excess <= bound ? "within" : "undecided";
}

function halfInterval(values: readonly number[], centre: number): number {
  const freedom = values.length - 1;
  if (freedom < 1) return Infinity;
  const squares = values.reduce((sum, value) => sum + (value - centre) ** 2, 0);
  return studentT(freedom) * Math.sqrt(squares / freedom / values.length);
}

/** Approximates the 97.5 % quantile of Student's t from above: exact to 1 % at 1 and above 10 degrees of freedom. */
function studentT(freedom: number): number {
  return 1.96 + 2.4 / freedom + 8.35 / freedom ** 2;
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}
