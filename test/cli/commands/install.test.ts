// Owns the proof that `tierkv install` writes one file into EXO's environment, which waits for EXO's cache, and `uninstall` removes it alone.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { runInside } from "../../support/command-line.ts";
import { testDirectory } from "../../support/sidecars.ts";

const PYTHON = fileURLToPath(new URL("../../../.venv/bin/python", import.meta.url));

/** A checkout with a real environment, whose Python is started below. */
function checkout(): { path: string; packages: string; python: string } {
  const path = testDirectory();
  execFileSync(PYTHON, ["-m", "venv", "--without-pip", join(path, ".venv")]);
  const lib = join(path, ".venv", "lib");
  const [name = ""] = readdirSync(lib);
  return {
    path,
    packages: join(lib, name, "site-packages"),
    python: join(path, ".venv", "bin", "python"),
  };
}

/** EXO's module in the environment; it has no class that tierKV knows. */
function addStranger(packages: string): void {
  const folder = join(packages, "exo", "worker", "engines", "mlx");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "cache.py"), "class KVPrefixCache:\n    pass\n");
}

const IMPORTS = "import exo.worker.engines.mlx.cache as c, sys; print(c.KVPrefixCache.__name__)";

test("one file, which leaves other programs alone, speaks up once in EXO, and goes again", async () => {
  const { path, packages, python } = checkout();
  addStranger(packages);
  const before = readdirSync(packages).toSorted();
  const { exitCode } = await runInside(["install", "--exo-path", path]);
  expect(exitCode).toBe(0);
  expect(readdirSync(packages).toSorted()).toEqual([...before, "tierkv-exo.pth"].toSorted());
  const run = (code: string): string =>
    execFileSync("sh", ["-c", 'exec "$0" -c "$1" 2>&1', python, code], { encoding: "utf8" });
  expect(run("import sys; print('tierkv' in sys.modules)")).toBe("False\n");
  // It has no mlx: EXO's own class is there all the same.
  const said = run(IMPORTS).split("\n");
  expect(said.filter((line) => line.startsWith("tierKV: off"))).toHaveLength(1);
  expect(said).toContain("KVPrefixCache");
  const removed = await runInside(["uninstall", "--exo-path", path, "--json"]);
  expect(JSON.parse(removed.stdout)).toEqual({
    schema: 1,
    removed: [join(packages, "tierkv-exo.pth")],
    failed: [],
  });
  expect(readdirSync(packages).toSorted()).toEqual(before);
  expect(run(IMPORTS)).toBe("KVPrefixCache\n");
});

test("a folder without an environment, and a file that is not ours, are refused by name", async () => {
  const empty = testDirectory();
  const nothing = await runInside(["install", "--exo-path", empty]);
  expect([nothing.exitCode, nothing.stderr]).toEqual([2, expect.stringContaining("uv sync")]);
  const { path, packages } = checkout();
  writeFileSync(join(packages, "tierkv-exo.pth"), "import os\n");
  for (const what of ["install", "uninstall"]) {
    const foreign = await runInside([what, "--exo-path", path]);
    expect([foreign.exitCode, foreign.stderr]).toEqual([2, expect.stringContaining("by hand")]);
  }
  expect(existsSync(join(packages, "tierkv-exo.pth"))).toBe(true);
  const both = await runInside(["uninstall", "--exo-path", path, "--purge", "--yes"]);
  expect([both.exitCode, both.stderr]).toEqual([2, expect.stringContaining("without --purge")]);
});
