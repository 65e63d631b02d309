// Owns how far two answers of a model to one prompt lie apart, and the sums of many such pairs.

/** Log-probabilities of the likeliest tokens of one step, by the token's name. */
export type Step = Readonly<Record<string, number>>;

/** A greedy answer: its tokens, and what else was likely at each. */
export interface Weighed {
  tokenIds: readonly number[];
  steps: readonly Step[];
}

/** What a set of answers has become, against the same prompts answered in another way. */
export interface Likeness {
  answers: number;
  /** Answers that are the same to the last token. */
  same: number;
  /** Tokens compared: of each answer those alike, and the one where they part. */
  tokens: number;
  /** Share of them that are the same. */
  top1: number;
  /** Kullback-Leibler divergence in nats a token. */
  kldMean: number;
  kldMax: number;
  /** Change of the perplexity of the reference's tokens, as a share. */
  perplexity: number;
}

/** Over the tokens that both name, and all others as one. */
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

/** Behind the token where two answers part, they are about different texts: nothing there is compared. */
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
