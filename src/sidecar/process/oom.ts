// Owns the OOM score: the kernel should kill a sidecar, which costs hits, before an engine, which costs requests.
import { readFileSync, writeFileSync } from "node:fs";

const OWN_SCORE = "/proc/self/oom_score_adj";
/** The largest raise, because with less the kernel would still kill an engine that holds most of the memory. */
const RAISE = 1000;
const SCORE_MAX = 1000;

/**
 * Raises this process's score above its parent's, so that the kernel kills it first; children inherit it. Raising needs no
 * privileges. Returns the score; null on systems without one.
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
