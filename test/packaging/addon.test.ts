// Owns the proof that packages are built with a Rust that rustup did not install and without an engine's environment, and that a missing standard library is named.
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { addStandardLibrary, packerIn } from "../../packaging/addon.js";
import { testDirectory } from "../support/sidecars.ts";

afterEach(() => vi.unstubAllEnvs());

/** A machine whose only programs are these; returns its folder. */
function machine(programs: Readonly<Record<string, string>>): string {
  const dir = testDirectory();
  for (const [name, script] of Object.entries(programs)) {
    writeFileSync(join(dir, name), `#!/bin/sh\n${script}\n`);
    chmodSync(join(dir, name), 0o755);
  }
  vi.stubEnv("PATH", dir);
  return dir;
}

test("a target whose standard library is there needs no rustup", () => {
  const dir = machine({ rustc: 'echo "${0%/*}/$4"' });
  mkdirSync(join(dir, "x86_64-unknown-linux-gnu"));
  addStandardLibrary("x86_64-unknown-linux-gnu");
});

test("another target is added by rustup", () => {
  const dir = machine({ rustc: "echo /nowhere", rustup: 'echo "$@" > "${0%/*}/asked"' });
  addStandardLibrary("aarch64-apple-darwin");
  expect(readFileSync(join(dir, "asked"), "utf8")).toBe("target add aarch64-apple-darwin\n");
});

test("without rustup the error names the target and the fix", () => {
  machine({ rustc: "echo /nowhere" });
  expect(() => addStandardLibrary("aarch64-apple-darwin")).toThrow(
    /^Rust has no standard library for aarch64-apple-darwin \(rustup cannot be run: .*\): install Rust from rustup\.rs/,
  );
});

/** Makes an environment whose pip writes what it was asked for. */
const VENV =
  'cd "${0%/*}"; /bin/mkdir -p "$3/bin"; printf "#!/bin/sh\\necho \\$@ > $3/asked" > "$3/bin/pip"; /bin/chmod +x "$3/bin/pip"';

test("a checkout without an engine's environment packs wheels in one of its own", () => {
  const dir = machine({ python3: VENV });
  const own = join(dir, "own");
  expect(packerIn(own, join(dir, "none"))).toBe(join(own, "bin"));
  expect(readFileSync(join(own, "asked"), "utf8")).toMatch(/^install .* setuptools==\S+\n$/);
});

test("set-up's environment packs wheels where it is there", () => {
  const prepared = machine({ python: "" });
  expect(packerIn("/nowhere", prepared)).toBe(prepared);
});
