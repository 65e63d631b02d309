// Owns the making of a private directory, with what is missing above it, and whether it could be made.
import { accessSync, constants, mkdirSync, statSync } from "node:fs";
import { dirname } from "node:path";

/** Throws what the system says; what exists already stays as it is. Node's own recursive way never ends below /proc. */
export function makeDirectory(path: string): void {
  if (statSync(path, { throwIfNoEntry: false }) !== undefined) return;
  makeDirectory(dirname(path));
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    // Somebody else was quicker.
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  }
}

/** Whether it is there, with these rights for this process; false: it could be made. Nothing is. Throws what the system says. */
export function isThere(path: string, rights: number): boolean {
  let there = path;
  while (statSync(there, { throwIfNoEntry: false }) === undefined) there = dirname(there);
  const isWhole = there === path;
  // The dot, because a file is no directory whatever it lets do.
  accessSync(`${there}/.`, isWhole ? rights : constants.W_OK | constants.X_OK);
  return isWhole;
}
