// Owns the making of a private directory, with what is missing above it.
import { mkdirSync, statSync } from "node:fs";
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
