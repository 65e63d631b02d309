// Owns the search for a test's processes by their command line. Linux only.
import { readdirSync, readFileSync } from "node:fs";

/** Returns the ids of running processes whose command line has all of `words`. */
export function processesWith(...words: string[]): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => words.every((word) => commandLine(pid).includes(word)));
}

/** Returns "" for an ended process or a zombie. */
function commandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
  } catch {
    return "";
  }
}
