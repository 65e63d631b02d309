// Owns whom the kernel ends first when memory runs out: a sidecar, which costs hits, before an engine, which costs requests.
import { readFileSync, writeFileSync } from "node:fs";

const OWN_SCORE = "/proc/self/oom_score_adj";
/** All that counts: with less, an engine that holds most of the memory would go first, however little we hold. */
const RAISE = 1000;
const SCORE_MAX = 1000;

/**
 * Puts this process, and those that it starts, before whoever started it, from whom it has its score. Raising it needs no
 * privileges. Returns the score; null, and nothing happens, on systems without one.
 */
export function goBeforeEngines(path: string = OWN_SCORE): number | null {
  try {
    const score = Math.min(SCORE_MAX, Number(readFileSync(path, "utf8")) + RAISE);
    writeFileSync(path, String(score), { flag: "r+" });
    return score;
  } catch {
    return null;
  }
}
