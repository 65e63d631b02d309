// Owns the place of files that ship with the program: `bin/`, `proto/`, `page/` and, in a checkout, everything else.
import { fileURLToPath } from "node:url";

/** The program's folder: this file, its build in `dist/base/` and each file of a bundle lie two folders below it. */
const FOLDER = new URL("../../", import.meta.url);

/** Returns the absolute path of `path`, which is relative to the program's folder. */
export function shipped(path: string): string {
  return fileURLToPath(new URL(path, FOLDER));
}
