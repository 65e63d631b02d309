// Owns the detection of a stalled request: no byte has moved for a while.
import { nowMs } from "../base/time.ts";

/** Looks at a request's bytes a few times within each `stallMs`; calls `onStall` once, when they have not changed for that long. */
export class StallWatch {
  readonly #timer: NodeJS.Timeout;

  constructor(stallMs: number, bytes: () => number | null, onStall: () => void) {
    let [last, lastMs] = [bytes(), nowMs()];
    this.#timer = setInterval(
      () => {
        const now = bytes();
        if (now !== last) [last, lastMs] = [now, nowMs()];
        if (nowMs() - lastMs <= stallMs) return;
        this.stop();
        onStall();
      },
      Math.max(1, stallMs / 4),
    );
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
