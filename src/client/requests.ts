// Owns the requests to a native peer that works on threads of its own: one promise each, bounded in time whatever the peer does.
import type { CancelSignal } from "../base/cancellation.ts";
import type { TierkvError } from "../base/errors.ts";
import { toTierkvError } from "../base/errors.ts";
import { StallWatch } from "./stall.ts";

/** Result of a request. */
export interface Outcome {
  /** Statuses, a bitmap, or what the request asked for. */
  data: Buffer;
  /** Numbers of the request's own. */
  numbers: readonly number[];
  /** Reason for refusing the first bad record. */
  reason: string | null;
}

/** Request, its error, what came back. */
export type Event = [
  request: number,
  error: string | null,
  data: Buffer,
  numbers: readonly number[],
];

export interface RunOptions {
  timeoutMs: number;
  /** Signals that give the request up. */
  signals: readonly CancelSignal[];
  /** Milliseconds in which some byte must move; left out: any time. */
  stallMs?: number | undefined;
  /** Returns the error for a time-out, of the whole request or between two bytes. */
  errorOf(code: "VAULT_DEADLINE" | "FETCH_STALLED"): TierkvError;
}

interface Waiting {
  resolve(outcome: Outcome): void;
  reject(error: Error): void;
}

export class Requests {
  readonly #waiting = new Map<number, Waiting>();

  /** Takes the peer's outcome of a request. */
  readonly settle = (...[request, text, data, numbers]: Event): void => {
    const waiting = this.#waiting.get(request);
    this.#waiting.delete(request);
    const error = text === null ? null : toTierkvError(new Error(text));
    if (error === null || error.code === "BAD_RECORD") {
      waiting?.resolve({ data, numbers, reason: error?.message ?? null });
    } else {
      waiting?.reject(error);
    }
  };

  /**
   * Runs one request, which `begin` begins, `cancel` gives up, and whose moved bytes `progress` returns. Rejects on failure, time-out and
   * signal. Slots are safe then, because only a lease's holder writes them.
   */
  async run(
    begin: () => number,
    cancel: (request: number) => void,
    progress: (request: number) => number | null,
    { timeoutMs, stallMs, signals, errorOf }: RunOptions,
  ): Promise<Outcome> {
    for (const signal of signals) if (signal.aborted) throw toTierkvError(signal.reason);
    const request = begin();
    let giveUp = (_reason: Error): void => {};
    const onAbort = (): void => giveUp(toTierkvError(reasonOf(signals)));
    const timer = setTimeout(() => giveUp(errorOf("VAULT_DEADLINE")), timeoutMs);
    const stall =
      stallMs === undefined
        ? null
        : new StallWatch(
            stallMs,
            () => progress(request),
            () => giveUp(errorOf("FETCH_STALLED")),
          );
    for (const signal of signals) signal.addEventListener("abort", onAbort, { once: true });
    try {
      return await new Promise<Outcome>((resolve, reject) => {
        this.#waiting.set(request, { resolve, reject });
        giveUp = (reason) => {
          this.#waiting.delete(request);
          cancel(request);
          reject(reason);
        };
      });
    } finally {
      clearTimeout(timer);
      stall?.stop();
      for (const signal of signals) signal.removeEventListener("abort", onAbort);
    }
  }
}

function reasonOf(signals: readonly CancelSignal[]): unknown {
  return signals.find(({ aborted }) => aborted)?.reason;
}
