// Owns the guess of the key that a mistyped one was meant to be.

/** Edits (insert, delete, replace) that turn `a` into `b`: Levenshtein's distance. */
export function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_unused, index) => index);
  for (let i = 0; i < a.length; i += 1) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j += 1) {
      const replace = (row[j] ?? 0) + (a[i] === b[j] ? 0 : 1);
      next.push(Math.min(replace, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}

/** Longer words are not compared, because no key is that long. */
const WORD_LENGTH_MAX = 64;

/** Shorter common beginnings do not count. */
const PREFIX_LENGTH_MIN = 4;

/** The candidate closest to `word`, or null when none is close enough to be a typing error. */
export function nearest(word: string, candidates: readonly string[]): string | null {
  if (word.length > WORD_LENGTH_MAX) return null;
  const plain = simplify(word);
  const scored = candidates
    .map((candidate) => ({ candidate, distance: distanceTo(plain, simplify(candidate)) }))
    .sort((a, b) => a.distance - b.distance);
  const best = scored[0];
  if (best === undefined) return null;
  return best.distance <= Math.max(1, Math.ceil(best.candidate.length / 3)) ? best.candidate : null;
}

/** A key's beginning, or a key with a suffix, counts as one edit. */
function distanceTo(word: string, candidate: string): number {
  const isLongEnough = Math.min(word.length, candidate.length) >= PREFIX_LENGTH_MIN;
  if (isLongEnough && (candidate.startsWith(word) || word.startsWith(candidate))) return 1;
  return editDistance(word, candidate);
}

/** Makes maxBytes, max-bytes and max_bytes equal. */
export function simplify(word: string): string {
  return word.toLowerCase().replaceAll(/[-_ ]/g, "");
}
