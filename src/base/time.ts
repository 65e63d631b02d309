// Owns clock, timers and randomness: the only file that reads them.
import { randomBytes } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { TierkvError } from "./errors.ts";

/** Monotonic milliseconds with a fraction; only differences mean anything. */
export function nowMs(): number {
  return performance.now();
}

/** Milliseconds since 1970, for people and file names; never for measuring. */
export function wallClockMs(): number {
  return Date.now();
}

/** Resolves after `ms`; rejects with CANCELLED when the signal fires first. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    throw new TierkvError("CANCELLED", { what: "a wait" }, { cause: error });
  }
}

/** Polls the condition every `everyMs`; returns false if it does not hold within `withinMs`. */
export async function becomes(
  isSo: () => boolean | Promise<boolean>,
  withinMs: number,
  everyMs: number,
  signal?: AbortSignal,
): Promise<boolean> {
  const endMs = nowMs() + withinMs;
  while (!(await isSo())) {
    if (nowMs() > endMs) return false;
    await sleep(everyMs, signal);
  }
  return true;
}

/** Yields once to the event loop. */
export function yieldToLoop(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}

const DONE = Promise.resolve();

/** Runs `work` before the event loop goes on, as `queueMicrotask` does without the async resource that it makes each time. */
export function soon(work: () => void): void {
  void DONE.then(work);
}

/** A call at a time; `clearAlarm` prevents it. */
export interface Alarm {
  readonly dueMs: number;
  readonly ring: () => void;
}

/**
 * Calls after a time, nearly all of which are prevented, because the work ends before. One timer serves all: it is armed for the earliest
 * and stays armed when that is cleared, so that setting and clearing cost no timer.
 */
class Alarms {
  readonly #open = new Set<Alarm>();
  #timer: NodeJS.Timeout | null = null;
  #armedMs = Number.POSITIVE_INFINITY;

  set(ms: number, ring: () => void): Alarm {
    const alarm = { dueMs: nowMs() + ms, ring };
    this.#open.add(alarm);
    if (alarm.dueMs < this.#armedMs) this.#arm(alarm.dueMs);
    else if (this.#open.size === 1) this.#timer?.ref();
    return alarm;
  }

  clear(alarm: Alarm): void {
    // A timer that nobody waits for must not keep the process alive.
    if (this.#open.delete(alarm) && this.#open.size === 0) this.#timer?.unref();
  }

  #arm(dueMs: number): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#armedMs = dueMs;
    this.#timer = setTimeout(() => this.#ring(), Math.max(1, dueMs - nowMs()));
  }

  #ring(): void {
    this.#timer = null;
    this.#armedMs = Number.POSITIVE_INFINITY;
    // Timers of the system are up to a millisecond early.
    const now = nowMs() + 1;
    const due = [...this.#open].filter(({ dueMs }) => dueMs <= now);
    for (const alarm of due) this.#open.delete(alarm);
    const next = Math.min(...[...this.#open].map(({ dueMs }) => dueMs));
    if (this.#open.size > 0) this.#arm(next);
    for (const { ring } of due) ring();
  }
}

const ALARMS = new Alarms();

/** Calls `ring` after `ms`, to the millisecond, unless the alarm is cleared. */
export function setAlarm(ms: number, ring: () => void): Alarm {
  return ALARMS.set(ms, ring);
}

/** Does nothing after the call. */
export function clearAlarm(alarm: Alarm | undefined): void {
  if (alarm !== undefined) ALARMS.clear(alarm);
}

/** Returns random milliseconds in [minMs, maxMs), because clients must not retry in step. */
export function jitterMs(minMs: number, maxMs: number): number {
  return minMs + Math.random() * (maxMs - minMs);
}

/** Returns `bytes` random bytes as hex, for ids that must be unique and unguessable. */
export function randomId(bytes = 8): string {
  return randomBytes(bytes).toString("hex");
}

/** Returns `bytes` unguessable random bytes. */
export function randomToken(bytes: number): Buffer {
  return randomBytes(bytes);
}

/** Returns a random number in [1, 2^48), exact as a JavaScript number and in any 64-bit field. */
export function randomNumber48(): number {
  return randomBytes(6).readUIntBE(0, 6) || 1;
}

/** Settles like `promise`, or rejects with DEADLINE naming `what`. The work itself goes on; cancel it with a signal. */
export async function withDeadline<T>(
  promise: Promise<T>,
  timeoutMs: number,
  what: string,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new TierkvError("DEADLINE", { what, timeoutMs })), timeoutMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A signal with a deadline. Call `clear` when the work ended, to drop timer and listener. */
export interface Deadline {
  signal: AbortSignal;
  clear(): void;
}

/** Fires after `timeoutMs` (reason: DEADLINE naming `what`) or together with `parent` (its reason). */
export function deadlineSignal(
  timeoutMs: number,
  parent?: AbortSignal,
  what = "the call",
): Deadline {
  const controller = new AbortController();
  const onParent = (): void => controller.abort(parent?.reason);
  const timer = setTimeout(
    () => controller.abort(new TierkvError("DEADLINE", { what, timeoutMs })),
    timeoutMs,
  );
  if (parent?.aborted === true) onParent();
  parent?.addEventListener("abort", onParent, { once: true });
  return {
    signal: controller.signal,
    clear(): void {
      clearTimeout(timer);
      parent?.removeEventListener("abort", onParent);
    },
  };
}

/** Sums the time in which any work is open, reported in whole microseconds whenever it falls idle. */
export class BusyTime {
  readonly #onIdle: (us: number) => void;
  #open = 0;
  #sinceMs = 0;

  constructor(onIdle: (us: number) => void) {
    this.#onIdle = onIdle;
  }

  begin(): void {
    if (this.#open === 0) this.#sinceMs = nowMs();
    this.#open += 1;
  }

  end(): void {
    this.#open -= 1;
    if (this.#open === 0) this.#onIdle(Math.round((nowMs() - this.#sinceMs) * 1e3));
  }
}
