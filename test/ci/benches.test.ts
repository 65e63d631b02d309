// Owns the check that each bench still finds what it imports from the programs.
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const BENCH = new URL("../../bench/", import.meta.url);

/** Modules; a file that exports nothing is a program and runs when it is loaded. */
const files = ["", "lib/"].flatMap((folder) =>
  readdirSync(new URL(folder, BENCH))
    .map((name) => new URL(`${folder}${name}`, BENCH))
    .filter(({ href }) => href.endsWith(".js"))
    .filter((url) => /^export /m.test(readFileSync(url, "utf8"))),
);

/** Loads all and prints what does not load. Node itself, as vitest gives a missing export the value undefined. */
const PROGRAM = `for (const url of process.argv.slice(1)) {
  await import(url).catch(({ message }) => console.log(url, message));
}
process.exit(0);`;

test("each module of bench/ loads", async () => {
  expect(files.length).toBeGreaterThan(40);
  const argv = ["--input-type=module", "-e", PROGRAM, ...files.map(({ href }) => href)];
  const { stdout } = await promisify(execFile)(process.execPath, argv, { timeout: 60_000 });
  expect(stdout).toBe("");
});
