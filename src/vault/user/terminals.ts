// Owns the user's idle time at terminals, from the access times that the kernel keeps.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { wallClockMs } from "../../base/time.ts";
import type { Source } from "./source.ts";

export interface Terminals {
  readonly folder: string;
  readonly names: RegExp;
}

/** Terminals of ssh and of windows, and the consoles. */
const FOLDERS: readonly Terminals[] = [
  { folder: "/dev/pts", names: /^\d+$/ },
  { folder: "/dev", names: /^tty\d+$/ },
];

/** Linux updates the access time at most every eight seconds, but at once for the first input after a pause. */
export function terminals(folders: readonly Terminals[] = FOLDERS): Source {
  return {
    name: "terminals",
    idleMs(): number {
      const last = folders.flatMap(({ folder, names }) =>
        namesOf(folder, names).map((name) => inputAt(join(folder, name))),
      );
      return wallClockMs() - Math.max(-Infinity, ...last);
    },
    close(): void {},
  };
}

function namesOf(folder: string, names: RegExp): string[] {
  try {
    return readdirSync(folder).filter((name) => names.test(name));
  } catch {
    return [];
  }
}

function inputAt(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? -Infinity : found.atimeMs;
}
