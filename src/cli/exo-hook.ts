// Owns tierKV's one file in EXO's Python environment: where it goes, what it says, and that it is ours.
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { TierkvError } from "../errors.ts";

const NAME = "tierkv-exo.pth";
/** In a checkout, and in an installed wheel, inside of which this program lies. */
const BOOTS = ["../../python-shim/tierkv/mlx/exo_boot.py", "../../../mlx/exo_boot.py"];
const MARK = "# tierKV for EXO; `tierkv uninstall --exo-path` removes this file";

/** Lines that start with `import` are run whenever a Python of that environment starts. */
function textFor(boot: string): string {
  const path = JSON.stringify(boot);
  return `${MARK}\nimport os, runpy; os.path.isfile(${path}) and runpy.run_path(${path})\n`;
}

/** The file for EXO at `path`: a checkout with its `.venv`, or an environment itself. Throws USAGE where there is none. */
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

/** Writes the file, again where it is there. Throws SYSTEM where our Python part is not here, USAGE for a file of somebody else. */
export function writeHook(path: string): void {
  const boot = BOOTS.map((name) => fileURLToPath(new URL(name, import.meta.url))).find(existsSync);
  if (boot === undefined) {
    const reason = "this installation has no Python part; install tierKV's wheel for this platform";
    throw new TierkvError("SYSTEM", { reason });
  }
  isOurs(path);
  writeFileSync(path, textFor(boot));
}

/** False where there was none. Throws USAGE for a file of somebody else under our name. */
export function removeHook(path: string): boolean {
  if (!isOurs(path)) return false;
  rmSync(path);
  return true;
}

/** False where there is no file. */
function isOurs(path: string): boolean {
  if (!existsSync(path)) return false;
  if (readFileSync(path, "utf8").startsWith(MARK)) return true;
  throw new TierkvError("USAGE", { reason: `${path} is not tierKV's; remove it by hand` });
}
