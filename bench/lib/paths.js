// Owns where the benches find what `npm run setup` made, and the one line they say when it is not there.
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

/** The first thing that set-up makes and that is not there, or null. */
export function missingFromSetup() {
  return MADE_BY_SETUP.find((path) => !existsSync(at(path))) ?? null;
}
