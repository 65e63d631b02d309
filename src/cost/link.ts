// Owns what a vault's link does: bytes per second while it is busy, whoever shares it, and how long a question takes.
import {
  LINK_HEARD_MS,
  LINK_LUMP_BYTES,
  LINK_LUMP_GAP_MS,
  LINK_MEMORY_MS,
  LINK_PRIOR_MS,
  LINK_SAMPLE_BYTES_MIN,
  LINK_SPAN_MIN_MS,
  LINK_STALE_MS,
  LINK_TURN_BYTES_MIN,
  LINK_TURN_MS,
  RTT_SMOOTHING,
} from "../limits-cost.ts";
import { nowMs } from "../time.ts";
import { Average } from "./average.ts";
import { Fit } from "./fit.ts";

/**
 * One direction of the way to one vault. Measured over all transfers together: two that share it are each half as
 * fast, so a transfer waits for the bytes asked for before it.
 */
export class Flow {
  #open = 0;
  /** Busy time that is not noted yet: since when, the bytes in it, and what of it is waiting for the first of them. */
  #sinceMs = 0;
  #sinceBytes = 0;
  #latencyMs = 0;
  /** When bytes were last heard of. */
  #lumpMs = 0;
  /** Some of this busy time is noted already. */
  #isNoted = false;
  /** Bytes and busy milliseconds, older ones fading with LINK_MEMORY_MS of busy time. */
  #bytes = 0;
  #spanMs = 0;
  #lastMs: number | null = null;

  /** True when nothing has been measured for so long that it may well be another link. */
  get isStale(): boolean {
    return this.#lastMs === null || nowMs() - this.#lastMs > LINK_STALE_MS;
  }

  /** A transfer begins, of which `latencyMs` will be waiting. `end` must be called once. */
  begin(latencyMs: number): void {
    if (this.#open === 0) {
      this.#sinceMs = nowMs();
      this.#lumpMs = this.#sinceMs;
      this.#sinceBytes = 0;
      this.#latencyMs = latencyMs;
      this.#isNoted = false;
    }
    this.#open += 1;
  }

  /**
   * Bytes have passed. They are heard of in lumps; what came up to the last lump is noted when the next one comes: a link may
   * break down in the middle of a transfer.
   */
  moved(bytes: number): void {
    const now = nowMs();
    const isNewLump = now - this.#lumpMs >= LINK_LUMP_GAP_MS;
    const spanMs = this.#lumpMs - this.#sinceMs - this.#latencyMs;
    if (bytes > 0 && isNewLump && spanMs >= LINK_PRIOR_MS) this.#noteUntil(this.#lumpMs);
    this.#sinceBytes += bytes;
    this.#lumpMs = now;
  }

  /** `isCut`: it was given up. Next to nothing in a long time is a rate, too; in a short time it is what was not heard of. */
  end(isCut = false): void {
    this.#open -= 1;
    if (this.#open > 0) return;
    const spanMs = nowMs() - this.#sinceMs - this.#latencyMs;
    const isLong = spanMs >= LINK_PRIOR_MS;
    if (isCut && isLong && this.#isRefuted(spanMs)) this.#forget();
    const saysSomething = isCut ? isLong : this.#sinceBytes >= LINK_SAMPLE_BYTES_MIN;
    if (saysSomething) this.#noteUntil(nowMs());
  }

  /** What was believed should have brought twice what came at most. */
  #isRefuted(spanMs: number): boolean {
    return (this.#bytes / this.#spanMs) * spanMs > 2 * (this.#sinceBytes + LINK_LUMP_BYTES);
  }

  /**
   * A link that broke down is known as such from its first transfer on: a mean with what it was would call it usable for some
   * requests more, each of which would wait in vain. What has come and is not heard of yet counts for it.
   */
  #forget(): void {
    this.#bytes = this.#spanMs = 0;
    this.#sinceBytes += LINK_LUMP_BYTES;
  }

  /** Until when what has come is known: bytes are heard of a little later. */
  get #heardMs(): number {
    const now = nowMs();
    return now - this.#lumpMs <= LINK_HEARD_MS ? this.#lumpMs : now;
  }

  #noteUntil(untilMs: number): void {
    const bytes = this.#sinceBytes;
    const spanMs = untilMs - this.#sinceMs - this.#latencyMs;
    const isWhole = !this.#isNoted;
    this.#isNoted = true;
    this.#sinceMs = untilMs;
    this.#sinceBytes = 0;
    this.#latencyMs = 0;
    this.note(bytes, spanMs, isWhole);
  }

  /**
   * Takes a measurement: `bytes` in `spanMs` of busy time. A whole transfer that was faster than all before it counts for
   * half at least: small ones may seem slow, but none is faster than the link.
   */
  note(bytes: number, spanMs: number, isWhole = false): void {
    const span = Math.max(spanMs, LINK_SPAN_MIN_MS);
    let keep = Math.exp(-span / LINK_MEMORY_MS);
    const isFaster = bytes * this.#spanMs > this.#bytes * span;
    if (isWhole && isFaster && bytes >= LINK_TURN_BYTES_MIN) {
      keep = Math.min(keep, span / this.#spanMs);
    }
    this.#bytes = this.#bytes * keep + bytes;
    this.#spanMs = this.#spanMs * keep + span;
    this.#lastMs = nowMs();
  }

  /** Bytes per second; null before the first measurement. What is under way counts as soon as it has taken a while. */
  get rate(): number | null {
    return this.rateAfter(null);
  }

  /** The same, with a rate to believe in before the first measurement. */
  rateAfter(prior: number | null): number | null {
    const known = this.#spanMs > 0 ? (this.#bytes / this.#spanMs) * 1000 : prior;
    if (this.#open === 0) return known;
    const busyMs = Math.max(0, this.#heardMs - this.#sinceMs - this.#latencyMs);
    if (known === null) {
      const isEarly = busyMs < LINK_PRIOR_MS || this.#sinceBytes === 0;
      return isEarly ? null : (this.#sinceBytes / busyMs) * 1000;
    }
    const believed = (known / 1000) * LINK_PRIOR_MS;
    const now = ((this.#sinceBytes + believed) / (busyMs + LINK_PRIOR_MS)) * 1000;
    if (busyMs > LINK_PRIOR_MS) return now;
    // Bytes are heard of in lumps: an early one is no reason to call the link fast, nor is it slow before the first.
    const isFirstDue = this.#sinceBytes === 0 && !this.#isNoted;
    return isFirstDue ? known : Math.min(known, now);
  }
}

/** The way to one vault, for all engines of the sidecar. */
export class Link {
  readonly down: Flow = new Flow();
  readonly up: Flow = new Flow();
  /** Seconds by [1, bytes of the question]. */
  readonly #questions = new Fit(2, 1);
  /** What answers took over what was expected. */
  readonly #late = new Average(RTT_SMOOTHING);
  #answeredMs: number | null = null;

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
    return this.down.rateAfter(this.up.rate);
  }

  /** Bytes that this direction carries in about one turn. */
  turnBytes(direction: "down" | "up", most: number): number {
    const rate = this[direction].rate ?? this.restoreRate;
    if (rate === null) return LINK_TURN_BYTES_MIN;
    return Math.min(most, Math.max(LINK_TURN_BYTES_MIN, (rate * LINK_TURN_MS) / 1000));
  }
}
