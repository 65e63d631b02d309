// Owns finding the processes of a test by what stands in their command line. Linux only.
import { readdirSync, readFileSync } from "node:fs";

/** Ids of the running processes whose command line has every one of `words`. */
export function processesWith(...words: string[]): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => words.every((word) => commandLine(pid).includes(word)));
}

/** Empty for a process that has ended, and for a dead one that nobody has collected. */
function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
  } catch {
    return "";
  }
}
