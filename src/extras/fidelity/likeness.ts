// Owns the difference between two answers of a model to one prompt, summed over many such pairs.

/** Log-probabilities of one step's likeliest tokens, by token name. */
export type Step = Readonly<Record<string, number>>;

/** A greedy answer: its tokens, and the likeliest tokens at each step. */
export interface Weighed {
  tokenIds: readonly number[];
  steps: readonly Step[];
}

/** Comparison of a set of answers with a reference set for the same prompts. */
export interface Likeness {
  answers: number;
  /** Number of identical answers. */
  same: number;
  /** Tokens compared: of each answer the equal ones, and the first that differs. */
  tokens: number;
  /** Share of compared tokens that are equal. */
  top1: number;
  /** Mean Kullback-Leibler divergence in nats per token. */
  kldMean: number;
  kldMax: number;
  /** Relative change of the perplexity of the reference's tokens. */
  perplexity: number;
}

/** Sums over the tokens that both steps list, with all others as one token. */
export function divergence(reference: Step, other: Step): number {
  let sum = 0;
  let restOfReference = 1;
  let restOfOther = 1;
  for (const [token, ours] of Object.entries(reference)) {
    const theirs = other[token];
    if (theirs === undefined) continue;
    sum += Math.exp(ours) * (ours - theirs);
    restOfReference -= Math.exp(ours);
    restOfOther -= Math.exp(theirs);
  }
  if (restOfReference > 0 && restOfOther > 0) {
    sum += restOfReference * Math.log(restOfReference / restOfOther);
  }
  return Math.max(0, sum);
}

/** Compares up to the first differing token, because after it the answers continue different texts. */
export function likeness(
  pairs: readonly (readonly [reference: Weighed, other: Weighed])[],
): Likeness {
  const divergences: number[] = [];
  const lost: number[] = [];
  let same = 0;
  let alike = 0;
  for (const [reference, other] of pairs) {
    const parting = reference.tokenIds.findIndex((id, index) => id !== other.tokenIds[index]);
    const length = parting === -1 ? reference.tokenIds.length : parting;
    if (parting === -1) same += 1;
    alike += length;
    for (const [index, step] of reference.steps.slice(0, length + 1).entries()) {
      const theirs = other.steps[index] ?? {};
      divergences.push(divergence(step, theirs));
      const [token, ours] = likeliest(step);
      lost.push(ours - (theirs[token] ?? ours));
    }
  }
  const tokens = divergences.length;
  return {
    answers: pairs.length,
    same,
    tokens,
    top1: tokens === 0 ? 0 : alike / tokens,
    kldMean: mean(divergences),
    kldMax: divergences.reduce((most, value) => Math.max(most, value), 0),
    perplexity: Math.expm1(mean(lost)),
  };
}

function likeliest(step: Step): [token: string, logprob: number] {
  return Object.entries(step).reduce(
    (best, one) => (one[1] > best[1] ? one : best),
    ["", Number.NEGATIVE_INFINITY],
  );
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}
