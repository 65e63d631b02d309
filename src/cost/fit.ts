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
    const indices = Array.from({ length: this.#dimensions }, (_, index) => index);
    const rows = [...this.#buckets.values()].map(({ features, seconds, seenAt }) => ({
      features,
      seconds,
      weight: FIT_FADE ** (this.#samples - seenAt) / (seconds * seconds),
    }));
    const scales = indices.map((at) =>
      Math.max(1e-12, ...rows.map((row) => row.features[at] ?? 0)),
    );
    const of = (row: Row, at: number): number => (row.features[at] ?? 0) / (scales[at] ?? 1);
    const matrix = indices.map((i) =>
      indices.map((j) => sumOver(rows, (r) => of(r, i) * of(r, j))),
    );
    // Each belief is one more sample of little weight, with the feature of weight 1 at its largest.
    const longest = Math.max(...rows.map(({ seconds }) => seconds));
    for (const belief of this.#beliefs) {
      const most = scales[belief.indexOf(1)] ?? 0;
      const scaled = indices.map((at) => ((belief[at] ?? 0) * most) / (scales[at] ?? 1));
      for (const [i, row] of matrix.entries()) {
        for (const j of indices) {
          row[j] = (row[j] ?? 0) + ((scaled[i] ?? 0) * (scaled[j] ?? 0) * FIT_DOUBT) / longest ** 2;
        }
      }
    }
    const right = indices.map((i) => sumOver(rows, (row) => of(row, i) * row.seconds));
    return descend(matrix, right).map((value, at) => value / (scales[at] ?? 1));
  }
}

interface Row {
  features: Features;
  seconds: number;
  weight: number;
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
}

function sumOver(rows: readonly Row[], of: (row: Row) => number): number {
  return rows.reduce((sum, row) => sum + row.weight * of(row), 0);
}

/** Solves least squares with coefficients >= 0; `matrix` is symmetric and positive semidefinite. */
function descend(matrix: readonly (readonly number[])[], right: readonly number[]): number[] {
  const values = right.map(() => 0);
  for (let sweep = 0; sweep < FIT_SWEEPS_MAX; sweep += 1) {
    let moved = 0;
    let size = 0;
    for (const [at, row] of matrix.entries()) {
      const before = values[at] ?? 0;
      const own = row[at] ?? 0;
      if (own === 0) continue;
      const rest = (right[at] ?? 0) - dot(row, values) + own * before;
      const now = Math.max(0, rest / own);
      values[at] = now;
      moved = Math.max(moved, Math.abs(now - before));
      size = Math.max(size, now);
    }
    if (moved <= FIT_CHANGE_MIN * size) break;
  }
  return values;
}
