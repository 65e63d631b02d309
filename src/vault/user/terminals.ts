// Owns what terminals tell of the user: the kernel dates a terminal's last input.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { wallClockMs } from "../../time.ts";
import type { Source } from "./source.ts";

export interface Terminals {
  readonly folder: string;
  readonly names: RegExp;
}

/** Those of ssh and of windows, and the consoles. */
const FOLDERS: readonly Terminals[] = [
  { folder: "/dev/pts", names: /^\d+$/ },
  { folder: "/dev", names: /^tty\d+$/ },
];

/** Linux dates input to eight seconds, and the first after a pause at once. */
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
