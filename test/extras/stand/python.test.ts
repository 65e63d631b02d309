// Owns the proof that an engine's Python is found, and that a missing one is told with the command that makes it.
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { findPython } from "../../../src/extras/stand/python.ts";
import { testDirectory } from "../../support/sidecars.ts";

/** A folder of a package: no checkout, and no environment of its own. */
const packaged = (): string => `${testDirectory()}/`;

/** An interpreter that answers the question for missing packages. */
function pythonThatSays(answer: string, exitCode = 0): string {
  const path = join(testDirectory(), "python");
  writeFileSync(path, `#!/bin/sh\necho "${answer}"\nexit ${exitCode}\n`);
  chmodSync(path, 0o755);
  return path;
}

test("the checkout's own Python comes first, then the one that is named, if it has both packages", () => {
  const own = packaged();
  mkdirSync(join(own, ".venv", "bin"), { recursive: true });
  writeFileSync(join(own, ".venv", "bin", "python"), "");
  expect(findPython({}, own)).toBe(join(own, ".venv", "bin", "python"));
  const named = pythonThatSays("");
  expect(findPython({ TIERKV_PYTHON: named }, packaged())).toBe(named);
});

test("what is missing is told in one line with the command that installs it", () => {
  const root = packaged();
  const list = `-r ${root}python-shim/engine-lock.txt`;
  for (const [answer, has, packages] of [
    ["vllm", "no vllm", list],
    ["vllm tierkv", "no vllm and no tierkv", `${list} ./tierkv-*.whl`],
  ] as const) {
    const python = pythonThatSays(answer);
    expect(() => findPython({ TIERKV_PYTHON: python }, root)).toThrow(
      `${python} has ${has}; run \`${python} -m pip install --no-deps ${packages}\``,
    );
  }
  const broken = pythonThatSays("", 1);
  expect(() => findPython({ TIERKV_PYTHON: broken }, packaged())).toThrow("TIERKV_PYTHON");
  const checkout = packaged();
  mkdirSync(join(checkout, "python-shim"));
  writeFileSync(join(checkout, "python-shim", "engine.in"), "");
  expect(() => findPython({}, checkout)).toThrow("run `npm run setup`");
});
