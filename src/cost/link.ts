// Owns what is known of a vault's link: bytes per second as the core measures them, and how long a question takes.
import {
  LINK_BATCH_BYTES_MIN,
  LINK_BATCH_MS,
  LINK_STALE_MS,
  RTT_SMOOTHING,
} from "../limits/cost.ts";
import { Goodput } from "../native.ts";
import { nowMs } from "../time.ts";
import { Average } from "./average.ts";
import { Fit } from "./fit.ts";

/** Measured over all transfers together: two that share a link are each half as fast, so one waits for the bytes asked for before it. */
interface Flows {
  readonly down: Goodput;
  readonly up: Goodput;
}

/** True when nothing has been measured for so long that it may well be another link. */
export function isStale(flow: Goodput): boolean {
  const idleMs = flow.idleMs();
  return idleMs === null || idleMs > LINK_STALE_MS;
}

/** The way to one vault, for all engines of the sidecar. */
export class Link {
  readonly down: Goodput;
  readonly up: Goodput;
  /** Seconds by [1, bytes of the question]. */
  readonly #questions = new Fit(2, [[0, 1]]);
  /** What answers took over what was expected. */
  readonly #late = new Average(RTT_SMOOTHING);
  #answeredMs: number | null = null;
  /** How long records take that only the vault's archive has, ms, as it said last; null: it does not know. */
  farPace: { readonly firstMs: number; readonly nextMs: number } | null = null;

  /** `flows` are those of the vault's client. */
  constructor({ down = new Goodput(), up = new Goodput() }: Partial<Flows> = {}) {
    this.down = down;
    this.up = up;
  }

  /** True when nothing was asked for so long that its pace may well be another. */
  get isUnasked(): boolean {
    return this.#answeredMs === null || nowMs() - this.#answeredMs > LINK_STALE_MS;
  }

  /** A question of `bytes` was answered. The first one connects as well, and says nothing of the next. */
  answered(bytes: number, ms: number): void {
    const isFirst = this.#answeredMs === null;
    this.#answeredMs = nowMs();
    if (isFirst) return;
    const expected = this.questionMs(bytes);
    if (expected !== null) this.#late.add(ms - expected);
    this.#questions.add([1, bytes], ms / 1000);
  }

  /** Milliseconds a question of `bytes` takes; null before the first. */
  questionMs(bytes: number): number | null {
    const seconds = this.#questions.predict([1, bytes]);
    return seconds === null ? null : seconds * 1000;
  }

  /** Milliseconds within which nearly every answer comes. */
  questionMostMs(bytes: number): number | null {
    const expected = this.questionMs(bytes);
    if (expected === null) return null;
    return expected * 2 + Math.max(0, this.#late.mean ?? 0) + 4 * this.#late.deviation;
  }

  /** Bytes per second that a restore gets: as measured; else as saves are sent, the same way back. */
  get restoreRate(): number | null {
    return this.down.rate(this.up.rate());
  }

  /** Seconds that so many records of the archive are waited for, beside what the link takes; null: not known. */
  farS(records: number): number | null {
    if (records <= 0) return 0;
    if (this.farPace === null) return null;
    const { firstMs, nextMs } = this.farPace;
    return (firstMs + (records - 1) * nextMs) / 1000;
  }

  /** Bytes that this direction carries in about LINK_BATCH_MS. */
  batchBytes(direction: "down" | "up", most: number): number {
    const rate = this[direction].rate() ?? this.restoreRate;
    if (rate === null) return LINK_BATCH_BYTES_MIN;
    return Math.min(most, Math.max(LINK_BATCH_BYTES_MIN, (rate * LINK_BATCH_MS) / 1000));
  }
}
