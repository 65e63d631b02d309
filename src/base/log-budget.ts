// Owns the limit on repeated log lines: a burst per message, then few, with the suppressed ones counted.
import { LOG_KINDS_MAX, LOG_LINES_BURST, LOG_REFILL_MS } from "./limits/access.ts";
import { nowMs } from "./time.ts";

interface Kind {
  left: number;
  refilledMs: number;
  suppressed: number;
}

/** Budget per kind of line; the message is the kind, because our messages are constants. */
export class LogBudget {
  readonly #kinds = new Map<string, Kind>();

  /** Returns how many lines of this kind were suppressed since the last one; null: suppress this one, too. */
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

  /** Messages beyond LOG_KINDS_MAX share one kind. */
  #kindOf(message: string): Kind {
    const name = this.#kinds.size < LOG_KINDS_MAX || this.#kinds.has(message) ? message : "";
    const known = this.#kinds.get(name);
    if (known !== undefined) return known;
    const fresh = { left: LOG_LINES_BURST, refilledMs: nowMs(), suppressed: 0 };
    this.#kinds.set(name, fresh);
    return fresh;
  }
}
