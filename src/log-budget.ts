// Owns how often one thing may be logged: what a peer makes a process say a million times is said a few times, and counted.
import { LOG_KINDS_MAX, LOG_LINES_BURST, LOG_REFILL_MS } from "./limits/access.ts";
import { nowMs } from "./time.ts";

interface Kind {
  left: number;
  refilledMs: number;
  suppressed: number;
}

/** Lines by kind; our messages are constants, so that the message is the kind. */
export class LogBudget {
  readonly #kinds = new Map<string, Kind>();

  /** null: this one is not said. Else how many of its kind were not said since the last one. */
  spend(message: string): number | null {
    const kind = this.#kindOf(message);
    const now = nowMs();
    const refilled = Math.floor((now - kind.refilledMs) / LOG_REFILL_MS);
    kind.left = Math.min(LOG_LINES_BURST, kind.left + refilled);
    kind.refilledMs += refilled * LOG_REFILL_MS;
    if (kind.left === 0) {
      kind.suppressed += 1;
      return null;
    }
    kind.left -= 1;
    const { suppressed } = kind;
    kind.suppressed = 0;
    return suppressed;
  }

  /** What comes when the table is full is of one kind. */
  #kindOf(message: string): Kind {
    const name = this.#kinds.size < LOG_KINDS_MAX || this.#kinds.has(message) ? message : "";
    const known = this.#kinds.get(name);
    if (known !== undefined) return known;
    const fresh = { left: LOG_LINES_BURST, refilledMs: nowMs(), suppressed: 0 };
    this.#kinds.set(name, fresh);
    return fresh;
  }
}
