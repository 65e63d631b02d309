// Owns the progress on stderr of a command that takes longer than two seconds.
import { PROGRESS_AFTER_MS, PROGRESS_EVERY_MS, PROGRESS_SAY_MS } from "../../base/limits/tools.ts";
import { showMs } from "../../base/text.ts";
import { nowMs } from "../../base/time.ts";
import type { Io } from "./io.ts";

const BAR_CHARS = 24;
/** Share of the work from which the time that is left can be told. */
const LEAST_SHARE = 0.01;
/** Part by which two estimates of the whole time in a row may differ, so that the second one is shown. */
const DRIFT_MOST = 0.25;

/** Shows progress, without a terminal as a line every few seconds; a call that shows nothing costs one clock read. */
export class Progress {
  readonly #io: Pick<Io, "progress" | "err">;
  readonly #now: () => number;
  readonly #startedMs: number;
  #shownMs = -Infinity;
  #saidMs = -Infinity;
  #latest: [done: number, all: number, what: string] | null = null;
  #share = 0;
  /** Estimate of the whole time at the latest step, and whether the step before agreed; null: none yet. */
  #whole: { ms: number; holds: boolean } | null = null;

  constructor(io: Pick<Io, "progress" | "err">, now: () => number = nowMs) {
    this.#io = io;
    this.#now = now;
    this.#startedMs = now();
  }

  /** Repeats the latest report while the work runs, because a part may take long. */
  async during<T>(work: () => Promise<T>): Promise<T> {
    return await ticking(() => {
      if (this.#latest !== null) this.at(...this.#latest);
    }, work);
  }

  /** Reports `done` of `all` parts; `what`: the work in progress. */
  at(done: number, all: number, what: string): void {
    this.#latest = [done, all, what];
    const ms = this.#now();
    const tookMs = ms - this.#startedMs;
    const share = all > 0 ? Math.min(1, done / all) : 0;
    this.#estimate(share, tookMs);
    if (tookMs < PROGRESS_AFTER_MS || ms - this.#shownMs < PROGRESS_EVERY_MS) return;
    this.#shownMs = ms;
    const leftMs = share < 1 ? this.#leftMs(tookMs) : null;
    if (this.#io.progress(progressLine(share, leftMs, what)) !== false) return;
    if (ms - this.#saidMs < PROGRESS_SAY_MS) return;
    this.#saidMs = ms;
    this.#io.err(`${what}: ${showShare(share, leftMs)}`);
  }

  #estimate(share: number, tookMs: number): void {
    if (share === this.#share || share < LEAST_SHARE) return;
    this.#share = share;
    const ms = tookMs / share;
    const holds = this.#whole !== null && Math.abs(ms - this.#whole.ms) <= DRIFT_MOST * ms;
    this.#whole = { ms, holds };
  }

  /** null: parts have taken unequal times, or the present one takes longer than the others did. */
  #leftMs(tookMs: number): number | null {
    if (this.#whole?.holds !== true || tookMs > this.#whole.ms) return null;
    return this.#whole.ms - tookMs;
  }
}

/** Tells of steps and parts: on a terminal over the line before, elsewhere as lines of their own, at a longer interval. */
export class SpokenProgress {
  readonly #io: Pick<Io, "progress" | "err">;
  readonly #now: () => number;
  readonly #startedMs: number;
  #saidMs = -Infinity;
  #latest: [done: number, all: number, what: string, leftMs: number | null] | null = null;

  constructor(io: Pick<Io, "progress" | "err">, now: () => number = nowMs) {
    this.#io = io;
    this.#now = now;
    this.#startedMs = now();
  }

  /** Milliseconds since the start. */
  get tookMs(): number {
    return this.#now() - this.#startedMs;
  }

  /** Tells of a step at once. */
  step(what: string): void {
    this.#saidMs = this.#now();
    if (this.#io.progress(what) === false) this.#io.err(what);
  }

  /** Tells of a step at once, and how long it has taken while its work runs. */
  async during<T>(what: string, work: () => Promise<T>): Promise<T> {
    this.step(what);
    const begunMs = this.#now();
    return await ticking(() => {
      const line = `${what} (${showMs(this.#now() - begunMs)})`;
      if (this.#io.progress(line) !== false) return;
      if (this.#now() - this.#saidMs < PROGRESS_SAY_MS) return;
      this.#saidMs = this.#now();
      this.#io.err(line);
    }, work);
  }

  /** Repeats the latest report of `at` while the work runs, because a part may take long. */
  async repeating<T>(work: () => Promise<T>): Promise<T> {
    this.#latest = null;
    return await ticking(() => {
      if (this.#latest !== null) this.at(...this.#latest);
    }, work);
  }

  /** Reports `done` of `all` parts, `leftMs` before the end; null: not known. */
  at(done: number, all: number, what: string, leftMs: number | null): void {
    this.#latest = [done, all, what, leftMs];
    const left = leftMs === null ? "" : `, about ${showMs(leftMs)} left`;
    const line = `${done} of ${all} ${what}${left}`;
    if (this.#io.progress(line) !== false) return;
    if (this.#now() - this.#saidMs < PROGRESS_SAY_MS) return;
    this.#saidMs = this.#now();
    this.#io.err(line);
  }
}

/** Calls `tick` every PROGRESS_EVERY_MS while `work` runs. */
async function ticking<T>(tick: () => void, work: () => Promise<T>): Promise<T> {
  const ticker = setInterval(tick, PROGRESS_EVERY_MS);
  try {
    return await work();
  } finally {
    clearInterval(ticker);
  }
}

/** Says once what a command waits for, if `work` takes longer than two seconds. */
export async function whileWaiting<T>(
  io: Pick<Io, "progress" | "err">,
  what: () => string,
  work: () => Promise<T>,
): Promise<T> {
  const timer = setTimeout(() => {
    const text = `waiting for ${what()}`;
    if (io.progress(text) === false) io.err(text);
  }, PROGRESS_AFTER_MS);
  try {
    return await work();
  } finally {
    clearTimeout(timer);
  }
}

/** Exported for its test. `leftMs`: null: not known. */
export function progressLine(share: number, leftMs: number | null, what: string): string {
  const full = Math.round(share * BAR_CHARS);
  const bar = "#".repeat(full) + "-".repeat(BAR_CHARS - full);
  return `[${bar}] ${showShare(share, leftMs)}  ${what}`;
}

function showShare(share: number, leftMs: number | null): string {
  const left = leftMs === null ? "" : `, ${showMs(leftMs)} left`;
  return `${Math.floor(share * 100)} %${left}`;
}
