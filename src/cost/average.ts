// Owns a moving average with its spread: the expected value of a repeated measurement, and its deviation.

/** Exponentially weighted mean and variance; the first samples count fully. */
export class Average {
  readonly #smoothing: number;
  #samples = 0;
  #mean = 0;
  #variance = 0;

  /** `smoothing`: weight of a new sample, 0 to 1. */
  constructor(smoothing: number) {
    this.#smoothing = smoothing;
  }

  get samples(): number {
    return this.#samples;
  }

  /** null before the first sample. */
  get mean(): number | null {
    return this.#samples === 0 ? null : this.#mean;
  }

  /** Standard deviation; 0 with fewer than two samples. */
  get deviation(): number {
    return Math.sqrt(this.#variance);
  }

  /** Adds a value; `weight`: number of samples it is worth. */
  add(value: number, weight = 1): void {
    this.#samples += 1;
    const share = Math.max(1 - (1 - this.#smoothing) ** weight, 1 / this.#samples);
    const difference = value - this.#mean;
    this.#mean += share * difference;
    this.#variance = (1 - share) * (this.#variance + share * difference * difference);
  }
}
