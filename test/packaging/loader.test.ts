// Owns the proof that packages get the loader of the native core that its build writes, without that build.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { writeLoader } from "../../packaging/bundle.js";
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

test("the loader is that of the build", async () => {
  const folder = testDirectory();
  await writeLoader(folder);
  expect(linesOf(join(folder, "index.js"))).toEqual(linesOf(BUILT));
});
