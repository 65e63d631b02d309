// Owns the proof that a command is bounded in time and that nothing it started survives it.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { elapsed, run } from "../../.ci/lib/process.js";

let folder = "";

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "tierkv-process-"));
});

afterEach(() => rmSync(folder, { recursive: true }));

function bash(script: string, timeoutMs = 10_000) {
  const options = { cwd: folder, env: {}, timeoutMs, logPath: join(folder, "log") };
  return run("bash", ["-c", script], options);
}

const log = (): string => readFileSync(join(folder, "log"), "utf8");

/** Whether the process whose id the script wrote to `pid` still runs; collected or not. */
function isAlive(): boolean {
  const pid = Number(readFileSync(join(folder, "pid"), "utf8"));
  expect(pid).toBeGreaterThan(1);
  const { stdout } = spawnSync("ps", ["-o", "stat=", "-p", String(pid)], { encoding: "utf8" });
  return /^[^Z\s]/.test(stdout);
}

test("gives the exit code, and the log holds both streams to the last line", async () => {
  const result = await bash("echo one; echo two >&2; printf three; exit 3");
  expect(result).toMatchObject({ code: 3, timedOut: false, leftovers: false });
  expect(result.tail.toSorted()).toEqual(["one", "three", "two"]);
  expect(log()).toContain("three");
});

test("a command that does not exist fails with a reason", async () => {
  const options = { cwd: folder, env: {}, timeoutMs: 1_000, logPath: join(folder, "log") };
  const result = await run("no-such-command-of-ours", [], options);
  expect(result.code).toBe(127);
  expect(log()).toContain("ENOENT");
});

test("a command past its time is ended together with its children", async () => {
  const result = await bash("sleep 60 & echo $! > pid; wait", 300);
  expect(result.timedOut).toBe(true);
  expect(result.ms).toBeLessThan(50_000);
  expect(isAlive()).toBe(false);
});

test("what a command leaves running is noticed and ended", async () => {
  const result = await bash("sleep 60 >/dev/null 2>&1 & echo $! > pid; exit 0");
  expect(result).toMatchObject({ code: 0, leftovers: true });
  expect(isAlive()).toBe(false);
});

test("times read well", () => {
  expect(elapsed(41_234)).toBe("41.2 s");
  expect(elapsed(185_000)).toBe("3 m 05 s");
});
