// Owns how many texts are turned into tokens at once: threads that read files and resolve names are the same.
import { GATEWAY_ENCODES_AT_ONCE, GATEWAY_ENCODES_WAITING_MAX } from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";

interface Waiting {
  untilMs: number;
  begin(): void;
  giveUp(): void;
}

export class Turns {
  readonly #waiting: Waiting[] = [];
  #running = 0;

  /** null: it had not begun, or not ended, `withinMs` from now; what began goes on. */
  take<T>(work: () => Promise<T>, withinMs: number): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => resolve(null), withinMs);
      const giveUp = (): void => {
        clearTimeout(timer);
        resolve(null);
      };
      const begin = (): void => {
        this.#running += 1;
        const ended = work().finally(() => {
          clearTimeout(timer);
          this.#running -= 1;
          this.#next();
        });
        ended.then(resolve, reject);
      };
      this.#waiting.push({ untilMs: nowMs() + withinMs, begin, giveUp });
      if (this.#waiting.length > GATEWAY_ENCODES_WAITING_MAX) this.#waiting.shift()?.giveUp();
      this.#next();
    });
  }

  #next(): void {
    while (this.#running < GATEWAY_ENCODES_AT_ONCE) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      if (next.untilMs < nowMs()) next.giveUp();
      else next.begin();
    }
  }
}
