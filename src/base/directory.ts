// Owns the making of a private directory with its missing parents, and the check whether it could be made.
import { accessSync, constants, mkdirSync, statSync } from "node:fs";
import { dirname } from "node:path";

/** Makes a directory, by default for this user alone; an existing one stays unchanged. Throws the system's error. Not recursive mkdir, because Node's never ends below /proc. */
export function makeDirectory(path: string, mode = 0o700): void {
  if (statSync(path, { throwIfNoEntry: false }) !== undefined) return;
  makeDirectory(dirname(path), mode);
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    // Another process made it first.
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  }
}

/** Returns whether the directory exists with these rights; false: it could be made. Makes nothing. Throws the system's error. */
export function isThere(path: string, rights: number): boolean {
  let there = path;
  while (statSync(there, { throwIfNoEntry: false }) === undefined) there = dirname(there);
  const isWhole = there === path;
  // The dot, because a file with these rights is still no directory.
  accessSync(`${there}/.`, isWhole ? rights : constants.W_OK | constants.X_OK);
  return isWhole;
}
