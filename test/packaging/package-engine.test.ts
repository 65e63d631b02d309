// Owns the proof that `tierkv fidelity --model` runs from an unpacked package: its program and its shim, and a Python with vLLM.
// @module-tag alone
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const TARGET = process.arch === "arm64" ? "linux-arm64-gnu" : "linux-x64-gnu";
const ADDON = join(ROOT, "crates", "node", `tierkv-core.${TARGET}.node`);
const PYTHON = join(ROOT, ".venv", "bin", "python");
/** Only a hung command reaches it. */
const TIMEOUT_MS = 600_000;
/** 0: within the bound · 1: beyond it · 3: too few prompts to judge. */
const VERDICTS = [0, 1, 3];

const base = mkdtempSync(join(tmpdir(), "tierkv-package-"));
afterAll(() => rmSync(base, { recursive: true, force: true }));

test(
  "a model's answers are judged by the program of a wheel, with the shim of that wheel",
  () => {
    const release = join(base, "release");
    const script = join(ROOT, "packaging", "release.js");
    const made = [script, "--only", TARGET, "--addon", ADDON, "--folder", release];
    execFileSync(process.execPath, made, { cwd: ROOT, timeout: TIMEOUT_MS, stdio: "pipe" });
    const wheel = readdirSync(release).find((name) => name.endsWith(".whl"))!;
    const unpacked = join(base, "unpacked");
    execFileSync(PYTHON, ["-m", "zipfile", "-e", join(release, wheel), unpacked]);
    const home = join(base, "home");
    mkdirSync(join(home, "run"), { recursive: true, mode: 0o700 });
    const text = join(base, "text.txt");
    const line = (at: number): string => `def step_${at}(value):\n    return value + ${at}\n\n`;
    writeFileSync(text, Array.from({ length: 2_000 }, (_none, at) => line(at)).join(""));
    const program = join(unpacked, "tierkv", "_program", "bin", "tierkv.js");
    const model = join(ROOT, "bench", "fidelity", "model");
    const args = [
      program,
      "fidelity",
      "--model",
      model,
      "--text",
      text,
      "--prompts",
      "2",
      "--json",
    ];
    const { status, stdout, stderr } = spawnSync(process.execPath, args, {
      cwd: base,
      encoding: "utf8",
      timeout: TIMEOUT_MS,
      env: {
        PATH: `${dirname(process.execPath)}:/usr/bin:/bin`,
        HOME: home,
        XDG_RUNTIME_DIR: join(home, "run"),
        TIERKV_PYTHON: PYTHON,
        // Before the checkout's shim, which that Python has, too.
        PYTHONPATH: unpacked,
      },
    });
    expect(VERDICTS, stderr).toContain(status);
    expect(JSON.parse(stdout), stderr).toMatchObject({ model, prompts: 2, restored: 2 });
  },
  2 * TIMEOUT_MS,
);
