// Owns the fit of a small linear model to measured times: coefficients at or above 0, with old samples still covering their sizes.
import {
  FIT_BUCKETS_MAX,
  FIT_CHANGE_MIN,
  FIT_DOUBT,
  FIT_FADE,
  FIT_SMOOTHING,
  FIT_SWEEPS_MAX,
} from "../base/limits/cost.ts";

/** Inputs of a measured time: the model is their weighted sum. */
export type Features = readonly number[];

interface Bucket {
  features: number[];
  seconds: number;
  /** Number of the bucket's latest sample. */
  seenAt: number;
}

/**
 * seconds = sum of coefficient x feature. Samples of similar size share a bucket with their moving mean, so that many short prompts
 * do not outweigh few long ones. Errors count relative to the time, and old buckets count less. With samples of one size only,
 * beliefs decide between the features.
 */
export class Fit {
  readonly #dimensions: number;
  readonly #beliefs: readonly Features[];
  readonly #buckets = new Map<string, Bucket>();
  #samples = 0;
  #coefficients: readonly number[] | null = null;
  #isStale = false;

  /** `beliefs`: each a weighted sum of coefficients that is 0 until samples of several sizes show otherwise; one weight is 1. */
  constructor(dimensions: number, beliefs: readonly Features[]) {
    this.#dimensions = dimensions;
    this.#beliefs = beliefs;
  }

  get samples(): number {
    return this.#samples;
  }

  /** Adds one measurement; times at or below 0 are ignored. */
  add(features: Features, seconds: number): void {
    if (!(seconds > 0) || !features.every(Number.isFinite)) return;
    this.#samples += 1;
    this.#isStale = true;
    const key = features.map((value) => Math.round(Math.log2(1 + value))).join(":");
    const bucket = this.#buckets.get(key);
    if (bucket === undefined) {
      this.#makeRoom();
      this.#buckets.set(key, { features: [...features], seconds, seenAt: this.#samples });
      return;
    }
    const mix = (old: number, now: number): number => old + FIT_SMOOTHING * (now - old);
    bucket.features = bucket.features.map((old, index) => mix(old, features[index] ?? 0));
    bucket.seconds = mix(bucket.seconds, seconds);
    bucket.seenAt = this.#samples;
  }

  /** Returns seconds, or null before the first sample. */
  predict(features: Features): number | null {
    const coefficients = this.coefficients;
    if (coefficients === null) return null;
    return dot(coefficients, features);
  }

  get coefficients(): readonly number[] | null {
    if (this.#isStale) this.#coefficients = this.#solve();
    this.#isStale = false;
    return this.#coefficients;
  }

  #makeRoom(): void {
    if (this.#buckets.size < FIT_BUCKETS_MAX) return;
    let oldest: string | null = null;
    let seenAt = Number.POSITIVE_INFINITY;
    for (const [key, bucket] of this.#buckets) {
      if (bucket.seenAt >= seenAt) continue;
      oldest = key;
      seenAt = bucket.seenAt;
    }
    if (oldest !== null) this.#buckets.delete(oldest);
  }

  /** Coordinate descent on the normal equations, with coefficients at or above 0; features are scaled to about 1. */
  #solve(): readonly number[] | null {
    if (this.#buckets.size === 0) return null;
    const scales = this.#scales();
    const scaledOf = (features: Features): Float64Array =>
      Float64Array.from(scales, (scale, at) => (features[at] ?? 0) / scale);
    const { length: many } = scales;
    const matrix = new Float64Array(many * many);
    const right = new Float64Array(many);
    let longest = 0;
    for (const { features, seconds, seenAt } of this.#buckets.values()) {
      const weight = FIT_FADE ** (this.#samples - seenAt) / (seconds * seconds);
      const scaled = scaledOf(features);
      addSample(matrix, scaled, weight);
      for (const [at, value] of scaled.entries()) {
        right[at] = (right[at] ?? 0) + weight * value * seconds;
      }
      longest = Math.max(longest, seconds);
    }
    // Each belief is one more sample of little weight, with the feature of weight 1 at its largest.
    for (const belief of this.#beliefs) {
      const most = scales[belief.indexOf(1)] ?? 0;
      const scaled = scaledOf(belief.map((part) => part * most));
      addSample(matrix, scaled, FIT_DOUBT / longest ** 2);
    }
    const descended = descend(matrix, right);
    return Array.from(scales, (scale, at) => (descended[at] ?? 0) / scale);
  }

  /** Returns the largest value of each feature. */
  #scales(): Float64Array {
    const scales = new Float64Array(this.#dimensions).fill(1e-12);
    for (const { features } of this.#buckets.values()) {
      for (const [at, value] of features.entries()) scales[at] = Math.max(scales[at] ?? 0, value);
    }
    return scales;
  }
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
}

/** Adds a sample's products to a square matrix. */
function addSample(matrix: Float64Array, scaled: Float64Array, weight: number): void {
  const many = scaled.length;
  for (let i = 0; i < many; i += 1) {
    for (let j = 0; j < many; j += 1) {
      const at = i * many + j;
      matrix[at] = (matrix[at] ?? 0) + weight * ((scaled[i] ?? 0) * (scaled[j] ?? 0));
    }
  }
}

/**
 * Solves least squares with coefficients >= 0; `matrix` is symmetric and positive semidefinite. Plain loops, because a router
 * solves after each answer, and thousands of sweeps through lists of lists take a third of a millisecond.
 */
function descend(matrix: Float64Array, right: Float64Array): Float64Array {
  const many = right.length;
  const values = new Float64Array(many);
  for (let sweep = 0; sweep < FIT_SWEEPS_MAX; sweep += 1) {
    let moved = 0;
    let size = 0;
    for (let at = 0; at < many; at += 1) {
      const own = matrix[at * many + at] ?? 0;
      if (own === 0) continue;
      const before = values[at] ?? 0;
      let product = 0;
      for (let j = 0; j < many; j += 1) {
        product += (matrix[at * many + j] ?? 0) * (values[j] ?? 0);
      }
      const now = Math.max(0, ((right[at] ?? 0) - product + own * before) / own);
      values[at] = now;
      moved = Math.max(moved, Math.abs(now - before));
      size = Math.max(size, now);
    }
    if (moved <= FIT_CHANGE_MIN * size) break;
  }
  return values;
}
