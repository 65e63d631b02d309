// Owns the measurements of a vault's link: bytes per second as the core measures them, and round-trip times.
import {
  LINK_BATCH_BYTES_MIN,
  LINK_BATCH_MS,
  LINK_STALE_MS,
  RTT_SMOOTHING,
} from "../base/limits/cost.ts";
import { Goodput } from "../base/native.ts";
import { nowMs } from "../base/time.ts";
import { Average } from "./average.ts";
import { Fit } from "./fit.ts";

/** Measured over all transfers together, because transfers that share a link halve each other's rate. */
interface Flows {
  readonly down: Goodput;
  readonly up: Goodput;
}

/** True when the last measurement is so old that the link may have changed. */
export function isStale(flow: Goodput): boolean {
  const idleMs = flow.idleMs();
  return idleMs === null || idleMs > LINK_STALE_MS;
}

/** The link to one vault, for all engines of the sidecar. */
export class Link {
  readonly down: Goodput;
  readonly up: Goodput;
  /** Seconds of a round trip by [1, bytes of the request]. */
  readonly #roundTrips = new Fit(2, [[0, 1]]);
  /** Milliseconds by which answers exceeded the expected time. */
  readonly #late = new Average(RTT_SMOOTHING);
  #answeredMs: number | null = null;
  /** Milliseconds for records that only the vault's archive has, as last reported; null: not known. */
  farPace: { readonly firstMs: number; readonly nextMs: number } | null = null;

  /** Takes the meters of the vault's client. */
  constructor({ down = new Goodput(), up = new Goodput() }: Partial<Flows> = {}) {
    this.down = down;
    this.up = up;
  }

  /** True when the last answer is so old that round trips may have changed. */
  get isUnasked(): boolean {
    return this.#answeredMs === null || nowMs() - this.#answeredMs > LINK_STALE_MS;
  }

  /** Learns a round trip of a request of `bytes`. The first also connects, and says nothing of the next. */
  answered(bytes: number, ms: number): void {
    const isFirst = this.#answeredMs === null;
    this.#answeredMs = nowMs();
    if (isFirst) return;
    const expected = this.roundTripMs(bytes);
    if (expected !== null) this.#late.add(ms - expected);
    this.#roundTrips.add([1, bytes], ms / 1000);
  }

  /** Expected milliseconds of a round trip with `bytes`; null before the first sample. */
  roundTripMs(bytes: number): number | null {
    const seconds = this.#roundTrips.predict([1, bytes]);
    return seconds === null ? null : seconds * 1000;
  }

  /** Milliseconds within which nearly every answer comes; null before the first sample. */
  roundTripMaxMs(bytes: number): number | null {
    const expected = this.roundTripMs(bytes);
    if (expected === null) return null;
    return expected * 2 + Math.max(0, this.#late.mean ?? 0) + 4 * this.#late.deviation;
  }

  /** Bytes per second of a restore: as measured; otherwise the rate of saves, over the same link. */
  get restoreRate(): number | null {
    return this.down.rate(this.up.rate());
  }

  /** Seconds that `records` of the archive take beside the link's time; null: not known. */
  farS(records: number): number | null {
    if (records <= 0) return 0;
    if (this.farPace === null) return null;
    const { firstMs, nextMs } = this.farPace;
    return (firstMs + (records - 1) * nextMs) / 1000;
  }

  /** Bytes that this direction carries in about LINK_BATCH_MS, at most `most`. */
  batchBytes(direction: "down" | "up", most: number): number {
    const rate = this[direction].rate() ?? this.restoreRate;
    if (rate === null) return LINK_BATCH_BYTES_MIN;
    return Math.min(most, Math.max(LINK_BATCH_BYTES_MIN, (rate * LINK_BATCH_MS) / 1000));
  }
}
