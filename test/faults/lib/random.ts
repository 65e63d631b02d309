// Owns the randomness of fault tests: a seed that is printed on failure, and numbers that depend on it alone.
import { randomInt } from "node:crypto";
import { onTestFailed } from "vitest";

/** Numbers in [0, 1), the same ones for the same seed (mulberry32). */
export class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** A whole number in [0, below). */
  below(below: number): number {
    return Math.floor(this.next() * below);
  }

  /** Returns the distance to the next event at a mean of `mean`; never where `mean` is 0. */
  distance(mean: number): number {
    return mean === 0 ? Infinity : 1 + Math.floor(-Math.log(1 - this.next()) * mean);
  }

  /** Returns independent dice that depend on these and on `name`. */
  apart(name: string): Dice {
    let seed = this.#state;
    for (const letter of name) seed = Math.imul(seed ^ letter.charCodeAt(0), 0x01000193) >>> 0;
    return new Dice(seed);
  }
}

/** Returns a new seed for each run, or TIERKV_TEST_SEED; printed when the test fails. */
export function testSeed(): number {
  const given = process.env["TIERKV_TEST_SEED"];
  const seed = given === undefined ? randomInt(2 ** 31) : Number(given);
  onTestFailed(() => {
    process.stderr.write(`run it again with TIERKV_TEST_SEED=${seed}\n`);
  });
  return seed;
}
