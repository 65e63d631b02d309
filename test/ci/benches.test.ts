// Owns the check that each bench still finds what it imports from the programs.
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";

const BENCH = new URL("../../bench/", import.meta.url);

/** Modules; a file that exports nothing is a program and runs when it is loaded. */
const files = ["", "lib/"].flatMap((folder) =>
  readdirSync(new URL(folder, BENCH))
    .map((name) => `${folder}${name}`)
    .filter((file) => file.endsWith(".js"))
    .filter((file) => /^export /m.test(readFileSync(new URL(file, BENCH), "utf8"))),
);

test.each(files)("bench/%s", async (file) => {
  const loaded = (await import(new URL(file, BENCH).href)) as Record<string, unknown>;
  expect(Object.keys(loaded)).not.toEqual([]);
});
