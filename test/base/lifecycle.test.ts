// Owns the proof that starts are stepwise and undone on failure, and that signals drain first and end at once the second time.
import { EventEmitter } from "node:events";
import { expect, test, vi } from "vitest";
import { runUntilSignal, startSteps } from "../../src/base/lifecycle.ts";
import type { Running, SignalSource } from "../../src/base/lifecycle.ts";
import { createLogger } from "../../src/base/log.ts";

const logger = createLogger("test", { level: "silent" });
/** Ends when everything that waits for nothing outside has gone on. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const never = (): Promise<never> => new Promise<never>(() => {});

function running(name: string, log: string[]): () => Promise<Running> {
  return () => {
    log.push(`+${name}`);
    return Promise.resolve({
      close(): Promise<void> {
        log.push(`-${name}`);
        return Promise.resolve();
      },
    });
  };
}

class Signals extends EventEmitter implements SignalSource {
  exitCode: number | null = null;

  exit(code: number): void {
    this.exitCode = code;
  }
}

test("steps start in order and close in reverse, once", async () => {
  const log: string[] = [];
  const all = await startSteps([
    { name: "a", run: running("a", log) },
    { name: "b", run: running("b", log) },
  ]);
  await all.close();
  await all.close();
  expect(log).toEqual(["+a", "+b", "-b", "-a"]);
});

test("a step that fails closes those before it", async () => {
  const log: string[] = [];
  const failing = startSteps([
    { name: "a", run: running("a", log) },
    { name: "b", run: () => Promise.reject(new Error("no room")) },
    { name: "c", run: running("c", log) },
  ]);
  await expect(failing).rejects.toThrow("no room");
  expect(log).toEqual(["+a", "-a"]);
});

test("a step that hangs names itself", async () => {
  const log: string[] = [];
  const hanging = startSteps([
    { name: "a", run: running("a", log) },
    { name: "scan", run: never, timeoutMs: 10 },
  ]);
  await expect(hanging).rejects.toMatchObject({
    code: "START_TIMEOUT",
    message: "start step `scan` did not end within 10 ms",
  });
  expect(log).toEqual(["+a", "-a"]);
});

test("closing goes on after a failure, and tells it", async () => {
  const log: string[] = [];
  const broken = { close: () => Promise.reject(new Error("stuck")) };
  const all = await startSteps([
    { name: "a", run: running("a", log) },
    { name: "b", run: () => Promise.resolve(broken) },
  ]);
  await expect(all.close()).rejects.toThrow("stuck");
  expect(log).toEqual(["+a", "-a"]);
});

test.each(["SIGTERM", "SIGINT"] as const)("%s drains and ends with 0", async (signal) => {
  const log: string[] = [];
  const source = new Signals();
  const ended = runUntilSignal(running("it", log), { logger, source });
  await vi.waitFor(() => expect(log).toEqual(["+it"]));
  source.emit(signal, signal);
  await expect(ended).resolves.toBe(0);
  expect(log).toEqual(["+it", "-it"]);
  expect(source.exitCode).toBeNull();
  expect(source.eventNames()).toEqual([]);
});

test("it stops without a signal when it is told to, also when that was before it had started", async () => {
  for (const isEarly of [true, false]) {
    const log: string[] = [];
    const source = new Signals();
    const stop = new AbortController();
    if (isEarly) stop.abort("nobody needs it");
    const ended = runUntilSignal(running("it", log), { logger, source, stop: stop.signal });
    if (!isEarly) {
      await vi.waitFor(() => expect(log).toEqual(["+it"]));
      stop.abort("nobody needs it");
    }
    await expect(ended).resolves.toBe(0);
    expect(log).toEqual(["+it", "-it"]);
    expect(source.eventNames()).toEqual([]);
  }
});

test.each([
  ["SIGTERM", 143],
  ["SIGINT", 130],
] as const)("a second signal (%s) ends at once with %i", async (signal, exitCode) => {
  const source = new Signals();
  const hung = runUntilSignal(() => Promise.resolve({ close: never }), {
    logger,
    source,
    drainTimeoutMs: 50,
  });
  await settled();
  source.emit("SIGTERM", "SIGTERM");
  expect(source.exitCode).toBeNull();
  source.emit(signal, signal);
  expect(source.exitCode).toBe(exitCode);
  await hung;
});

test("a drain that takes too long, or fails, ends with 1", async () => {
  for (const close of [never, (): Promise<never> => Promise.reject(new Error("x"))]) {
    const source = new Signals();
    const ended = runUntilSignal(() => Promise.resolve({ close }), {
      logger,
      source,
      drainTimeoutMs: 20,
    });
    await settled();
    source.emit("SIGTERM", "SIGTERM");
    await expect(ended).resolves.toBe(1);
  }
});

test("F45 a signal during the start takes effect when the start has ended", async () => {
  const log: string[] = [];
  const source = new Signals();
  const start = running("slow", log);
  let goOn = (): void => {};
  const gate = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  const ended = runUntilSignal(
    async () => {
      await gate;
      return start();
    },
    { logger, source },
  );
  source.emit("SIGTERM", "SIGTERM");
  await settled();
  expect(log).toEqual([]);
  goOn();
  await expect(ended).resolves.toBe(0);
  expect(log).toEqual(["+slow", "-slow"]);
});

test("a start that fails takes its listeners away", async () => {
  const source = new Signals();
  const failed = runUntilSignal(() => Promise.reject(new Error("no")), { logger, source });
  await expect(failed).rejects.toThrow("no");
  expect(source.eventNames()).toEqual([]);
});
