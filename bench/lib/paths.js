// Owns the paths of the files that `npm run setup` makes, and the check that they exist.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const at = (...parts) => join(ROOT, ...parts);

export const TIERKV = at("bin", "tierkv.js");
export const PYTHON = at(".venv", "bin", "python");

const MADE_BY_SETUP = [
  "dist/cli/main.js",
  "crates/node/index.js",
  "node_modules/.bin/tsc",
  ".venv/bin/python",
];

/** Returns the first path that set-up makes and that is missing, or null. */
export function missingFromSetup() {
  return MADE_BY_SETUP.find((path) => !existsSync(at(path))) ?? null;
}
