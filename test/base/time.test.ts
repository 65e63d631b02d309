// Owns the proof that waits end when they should, with the error that names them, and leave nothing behind.
import { spawnSync } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { expect, test } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import {
  becomes,
  clearAlarm,
  deadlineSignal,
  jitterMs,
  nowMs,
  randomId,
  setAlarm,
  sleep,
  withDeadline,
} from "../../src/base/time.ts";

const never = new Promise<never>(() => {});

test("a deadline names what was late and after how long", async () => {
  await expect(withDeadline(never, 20, "the lookup")).rejects.toMatchObject({
    code: "DEADLINE",
    message: "the lookup took longer than 20 ms",
  });
});

test("alarms ring in the order of their times, and a cleared one does not", async () => {
  const rung: number[] = [];
  const startedMs = nowMs();
  await new Promise<void>((resolve) => {
    const cleared = setAlarm(5, () => rung.push(5));
    setAlarm(60, () => {
      rung.push(60);
      resolve();
    });
    setAlarm(20, () => {
      rung.push(20);
      // Set while another rings, and due before the next.
      setAlarm(10, () => rung.push(30));
    });
    clearAlarm(cleared);
    clearAlarm(cleared);
    clearAlarm(undefined);
  });
  expect(rung).toEqual([20, 30, 60]);
  expect(nowMs() - startedMs).toBeGreaterThanOrEqual(59);
});

test("an alarm keeps its process alive, a cleared one does not", () => {
  const url = new URL("../../dist/base/time.js", import.meta.url).href;
  const program = `const { clearAlarm, setAlarm } = await import(${JSON.stringify(url)});
    clearAlarm(setAlarm(600_000, () => {}));
    setAlarm(50, () => console.log("rung"));`;
  const argv = ["--input-type=module", "-e", program];
  const { stdout, status, signal } = spawnSync(process.execPath, argv, {
    timeout: 60_000,
    encoding: "utf8",
  });
  expect({ stdout, status, signal }).toEqual({ stdout: "rung\n", status: 0, signal: null });
});

test("what is in time passes, value or error", async () => {
  await expect(withDeadline(Promise.resolve(7), 1000, "x")).resolves.toBe(7);
  await expect(withDeadline(Promise.reject(new Error("own")), 1000, "x")).rejects.toThrow("own");
});

test("a sleep ends with its signal", async () => {
  const controller = new AbortController();
  const startMs = nowMs();
  const slept = sleep(10_000, controller.signal);
  controller.abort();
  await expect(slept).rejects.toMatchObject({ code: "CANCELLED" });
  expect(nowMs() - startMs).toBeLessThan(9000);
  await expect(sleep(10_000, controller.signal)).rejects.toMatchObject({ code: "CANCELLED" });
});

test("a deadline signal fires with a coded reason", async () => {
  const { signal } = deadlineSignal(10, undefined, "the call");
  await new Promise((resolve) => {
    signal.addEventListener("abort", resolve);
  });
  expect(signal.reason).toMatchObject({
    code: "DEADLINE",
    message: "the call took longer than 10 ms",
  });
});

test("a deadline signal follows its parent and takes its reason", () => {
  const parent = new AbortController();
  const reason = new TierkvError("CLOSED", { what: "it" });
  const before = deadlineSignal(10_000, parent.signal);
  parent.abort(reason);
  const after = deadlineSignal(10_000, parent.signal);
  expect(before.signal.reason).toBe(reason);
  expect(after.signal.reason).toBe(reason);
  before.clear();
  after.clear();
});

test("a cleared deadline never fires and leaves no listener on its parent", async () => {
  const parent = new AbortController();
  const deadline = deadlineSignal(5, parent.signal);
  expect(getEventListeners(parent.signal, "abort")).toHaveLength(1);
  deadline.clear();
  expect(getEventListeners(parent.signal, "abort")).toHaveLength(0);
  // Begun later and as long: fires after the other would have.
  const later = deadlineSignal(5);
  await once(later.signal, "abort");
  expect(deadline.signal.aborted).toBe(false);
});

test("jitter stays in its range", () => {
  for (let round = 0; round < 1000; round += 1) {
    const ms = jitterMs(5, 9);
    expect(ms >= 5 && ms < 9).toBe(true);
  }
});

test("ids do not repeat", () => {
  const ids = new Set(Array.from({ length: 1000 }, () => randomId()));
  expect(ids.size).toBe(1000);
  expect(randomId(3)).toMatch(/^[0-9a-f]{6}$/);
});

test("what becomes so is seen, what does not is not waited for longer, and a signal ends either", async () => {
  let asked = 0;
  const third = (): boolean => (asked += 1) === 3;
  expect([await becomes(third, 60_000, 1), asked]).toEqual([true, 3]);
  expect(await becomes(() => Promise.resolve(false), 5, 1)).toBe(false);
  const aborted = AbortSignal.abort();
  await expect(becomes(() => false, 60_000, 60_000, aborted)).rejects.toMatchObject({
    code: "CANCELLED",
  });
});
