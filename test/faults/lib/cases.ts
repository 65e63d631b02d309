// Owns running a decoder over many cases: generators, counts, and the text of a failure.
import fc from "fast-check";
import { isTierkvError } from "../../../src/base/errors.ts";
import type { ErrorCode } from "../../../src/base/errors.ts";
import { testSeed } from "./random.ts";

/** Cases between turns of the event loop, because the runner expects signs of life. */
const STRETCH = 10_000;
/** Milliseconds spent on shrinking a failure. */
const SHRINK_MS_MAX = 10_000;

/** Passes `cases` values to `work`, which may throw these codes only. Returns how many were accepted. */
export async function meet<T>(
  cases: number,
  values: fc.Arbitrary<T>,
  codes: readonly ErrorCode[],
  work: (value: T) => unknown,
): Promise<number> {
  const seed = testSeed();
  let taken = 0;
  const property = fc.property(values, (value) => {
    try {
      work(value);
      taken += 1;
    } catch (error) {
      if (!isTierkvError(error) || !codes.includes(error.code)) throw error;
    }
  });
  for (let begun = 0; begun < cases; begun += STRETCH) {
    const numRuns = Math.min(STRETCH, cases - begun);
    const found = fc.check(property, { seed: seed + begun, numRuns, endOnFailure: true });
    if (found.failed) {
      const { seed: its, counterexamplePath: path } = found;
      const again = { seed: its, path: path ?? "", interruptAfterTimeLimit: SHRINK_MS_MAX };
      fc.assert(property, { ...again, numRuns });
    }
    await new Promise(setImmediate);
  }
  return taken;
}

const word = fc.integer({ min: 0, max: 0xffff_ffff });

/** Bytes, drawn four at a time, because a million cases take long. */
export const bytes = (most: number): fc.Arbitrary<Buffer> =>
  fc
    .tuple(fc.array(word, { maxLength: Math.ceil(most / 4) }), fc.nat(3))
    .map(([words, less]) => Buffer.from(Uint32Array.from(words).buffer, 0, cut(words, less)));

const cut = (words: readonly number[], less: number): number =>
  Math.max(0, words.length * 4 - less);

export const NUMBERS = [0, -0, -1, 1, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, -(2 ** 53), 1e308].concat([
  NaN,
  Infinity,
]);
const TEXTS = ["", "kv", "ssm", "attention", "bf16", "__proto__", "constructor", "\u0000", "ü"];

export const number = fc.constantFrom(...NUMBERS);
const text = fc.constantFrom(...TEXTS);
const scalar = fc.oneof(
  number,
  fc.nat(1000),
  text,
  fc.string({ maxLength: 8 }),
  bytes(80),
  fc.boolean(),
  fc.constant(null),
);

function nested(inside: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  const map = fc.tuple(text, inside, inside).map(([name, one, group]) => ({ [name]: one, group }));
  return fc.oneof({ weight: 6, arbitrary: scalar }, fc.array(inside, { maxLength: 3 }), map);
}

/** Any value that a frame can carry, a few levels deep. */
export const value = nested(nested(scalar));

/** Damages valid bytes: changes some, cuts or extends them. */
export type Damage = (good: Buffer) => Buffer;

const edit = fc.tuple(fc.nat(0xffff), fc.nat(0xff));
const ending = fc.oneof(
  { weight: 4, arbitrary: fc.constant(null) },
  fc.nat(0xffff),
  bytes(40) as fc.Arbitrary<Buffer | number | null>,
);

/** Damage of every kind. */
export const damage: fc.Arbitrary<Damage> = fc
  .tuple(fc.array(edit, { minLength: 1, maxLength: 4 }), ending)
  .map(([edits, end]) => (good) => {
    const copy = Buffer.from(good);
    for (const [place, byte] of edits) if (copy.length > 0) copy[place % copy.length] = byte;
    if (end === null) return copy;
    return typeof end === "number"
      ? copy.subarray(0, end % Math.max(1, copy.length))
      : Buffer.concat([copy, end]);
  });

/** The text with pieces inserted, removed and changed, 1 to `most` times. */
export const edited = (
  good: string,
  pieces: readonly string[],
  most: number,
): fc.Arbitrary<string> => {
  const change = fc.tuple(fc.nat(0xffff), fc.nat(5), fc.constantFrom(...pieces));
  return fc.array(change, { minLength: 1, maxLength: most }).map((changes) => {
    let made = good;
    for (const [place, without, piece] of changes) {
      const at = place % (made.length + 1);
      made = made.slice(0, at) + piece + made.slice(at + without);
    }
    return made;
  });
};
