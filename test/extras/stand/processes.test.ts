// Owns the proof that what the demo starts is watched, and gone when it is stopped.
import { mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Process } from "../../../src/extras/stand/processes.ts";

const SIGNAL = new AbortController().signal;
let dir = "";

beforeEach(() => {
  dir = mkdtempSync(join(realpathSync(tmpdir()), "tierkv-test-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function shell(script: string): Process {
  return new Process({
    name: "sample",
    command: "/bin/sh",
    args: ["-c", script],
    env: process.env,
    cwd: dir,
    logPath: join(dir, "sample.log"),
  });
}

test("ready when it says so; stopping ends leader and children", async () => {
  const sample = shell("sleep 60 & echo ready; wait");
  await sample.ready(() => sample.log().includes("ready"), 5_000, SIGNAL);
  expect(sample.isRunning()).toBe(true);
  await sample.stop(100);
  expect(sample.isRunning()).toBe(false);
});

test("a process that ignores SIGTERM is killed after its grace", async () => {
  const sample = shell("trap '' TERM; echo ready; while :; do sleep 1; done");
  await sample.ready(() => sample.log().includes("ready"), 5_000, SIGNAL);
  await sample.stop(200);
  expect(sample.isRunning()).toBe(false);
});

test("one that ends early, and one that cannot start, are failures with the reason", async () => {
  const early = shell("echo trouble; exit 3");
  await expect(early.ready(() => false, 5_000, SIGNAL)).rejects.toThrow(
    "the sample: ended while starting (exit code 3)",
  );
  expect(early.tail()).toEqual(["trouble"]);
  const spec = { name: "ghost", args: [], env: {}, cwd: dir, logPath: join(dir, "ghost.log") };
  const ghost = new Process({ ...spec, command: join(dir, "nothing") });
  await expect(ghost.ready(() => false, 5_000, SIGNAL)).rejects.toThrow("ENOENT");
  await ghost.stop(10);
});

test("one that never gets ready is given up in time", async () => {
  const slow = shell("sleep 60");
  await expect(slow.ready(() => false, 200, SIGNAL)).rejects.toThrow("not ready after 200 ms");
  await slow.stop(100);
});

test("work that must end well does, or is a failure", async () => {
  await shell("exit 0").done(5_000, SIGNAL);
  await expect(shell("exit 1").done(5_000, SIGNAL)).rejects.toThrow("exit code 1");
});

test("an interrupt ends the waiting", async () => {
  const waiting = shell("sleep 60");
  const interrupt = new AbortController();
  const ready = waiting.ready(() => false, 60_000, interrupt.signal);
  interrupt.abort();
  await expect(ready).rejects.toMatchObject({ code: "CANCELLED" });
  await waiting.stop(100);
});
