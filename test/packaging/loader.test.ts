// Owns the proof that packages get the loader of the native core that its build writes, without that build.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { LAB, writeLoader } from "../../packaging/bundle.js";
import { testDirectory } from "../support/sidecars.ts";

const BUILT = fileURLToPath(new URL("../../crates/node/index.js", import.meta.url));

/** Lines in any order: a build lists the names in the order of its files. */
const linesOf = (path: string): string[] =>
  readFileSync(path, "utf8")
    .replaceAll(/const \{ (.+) \} = nativeBinding/g, (_line, names: string) =>
      names.split(", ").toSorted().join("\n"),
    )
    .split("\n")
    .toSorted();

test("packages carry each file that the makers of the demo's models import, also while they run", () => {
  const lab = fileURLToPath(new URL("../../python-shim/lab/", import.meta.url));
  const imported = LAB.flatMap((name) => {
    const text = readFileSync(join(lab, `${name}.py`), "utf8");
    return Array.from(text.matchAll(/^\s*(?:from|import) lab\.(\w+)/gm), ([, found]) => found!);
  });
  expect(imported).toContain("geometries");
  expect(imported.filter((name) => !LAB.includes(name))).toEqual([]);
});

test("the loader is that of the build", async () => {
  const folder = testDirectory();
  await writeLoader(folder);
  expect(linesOf(join(folder, "index.js"))).toEqual(linesOf(BUILT));
});
