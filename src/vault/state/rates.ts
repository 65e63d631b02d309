// Owns the recent rates at which records leave and reach a vault.
import { RATE_SAMPLE_MS, RATE_SPAN_MS } from "../../base/limits/general.ts";
import { nowMs } from "../../base/time.ts";

/** Record bytes, since the start or per second. */
export interface Moved {
  out: number;
  in: number;
}

export class Rates {
  readonly #read: () => Moved;
  readonly #timer: NodeJS.Timeout;
  /** Oldest first, covering about RATE_SPAN_MS. */
  #samples: { atMs: number; moved: Moved }[] = [];

  /** `read` returns the bytes moved since the start. */
  constructor(read: () => Moved) {
    this.#read = read;
    this.sample();
    this.#timer = setInterval(() => this.sample(), RATE_SAMPLE_MS);
    this.#timer.unref();
  }

  /** Takes a sample; called every RATE_SAMPLE_MS. */
  sample(): void {
    const atMs = nowMs();
    const isRecent = (sample: { atMs: number }): boolean => atMs - sample.atMs <= RATE_SPAN_MS;
    this.#samples = [...this.#samples.filter(isRecent), { atMs, moved: this.#read() }];
  }

  /** Average since the oldest sample: about RATE_SPAN_MS, less after a start. */
  get perSecond(): Moved {
    const [oldest] = this.#samples;
    const ms = nowMs() - (oldest?.atMs ?? 0);
    if (oldest === undefined || ms <= 0) return { out: 0, in: 0 };
    const now = this.#read();
    const rate = (from: number, to: number): number => Math.round(((to - from) / ms) * 1e3);
    return { out: rate(oldest.moved.out, now.out), in: rate(oldest.moved.in, now.in) };
  }

  close(): void {
    clearInterval(this.#timer);
  }
}
