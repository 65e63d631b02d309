// Owns tierKV's one file in EXO's Python environment: its path, its text, and the check that it is tierKV's.
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { shipped } from "../../base/shipped.ts";

const NAME = "tierkv-exo.pth";
/** Paths of the boot script from this file: in a checkout, and in an installed wheel. */
const BOOTS = ["python-shim/tierkv/mlx/exo_boot.py", "../mlx/exo_boot.py"];
const MARK = "# tierKV for EXO; `tierkv uninstall --exo-path` removes this file";

/** Python runs a line that starts with `import` whenever it starts in that environment. */
function textFor(boot: string): string {
  const path = JSON.stringify(boot);
  return `${MARK}\nimport os, runpy; os.path.isfile(${path}) and runpy.run_path(${path})\n`;
}

/** Returns the hook's path for EXO at `path`, a checkout with `.venv` or an environment. Throws USAGE without one. */
export function hookPath(path: string): string {
  const places = [join(path, ".venv"), path].filter((place) =>
    existsSync(join(place, "pyvenv.cfg")),
  );
  for (const place of places) {
    const lib = join(place, "lib");
    const pythons = existsSync(lib)
      ? readdirSync(lib).filter((name) => name.startsWith("python3"))
      : [];
    const found = pythons.map((name) => join(lib, name, "site-packages")).filter(existsSync);
    if (found[0] !== undefined) return join(found[0], NAME);
  }
  const reason = `--exo-path ${path}: no Python environment in it; run \`uv sync\` there, or name EXO's checkout`;
  throw new TierkvError("USAGE", { reason });
}

/** Writes or rewrites the file. Throws SYSTEM without tierKV's Python part, USAGE for a foreign file of that name. */
export function writeHook(path: string): void {
  const boot = BOOTS.map((name) => shipped(name)).find(existsSync);
  if (boot === undefined) {
    const reason = "this installation has no Python part; install tierKV's wheel for this platform";
    throw new TierkvError("SYSTEM", { reason });
  }
  isOurs(path);
  writeFileSync(path, textFor(boot));
}

/** Removes the file; false: there was none. Throws USAGE for a foreign file of that name. */
export function removeHook(path: string): boolean {
  if (!isOurs(path)) return false;
  rmSync(path);
  return true;
}

/** Whether the file is tierKV's; false: there is none. Throws USAGE for a foreign file. */
function isOurs(path: string): boolean {
  if (!existsSync(path)) return false;
  if (readFileSync(path, "utf8").startsWith(MARK)) return true;
  throw new TierkvError("USAGE", { reason: `${path} is not tierKV's; remove it by hand` });
}
