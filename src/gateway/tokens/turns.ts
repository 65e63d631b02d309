// Owns how many texts are turned into tokens at once, because the same threads read files and resolve names.
import { GATEWAY_ENCODES_AT_ONCE, GATEWAY_ENCODES_WAITING_MAX } from "../../base/limits/gateway.ts";

interface Waiting {
  begin(): void;
  giveUp(): void;
}

export class Turns {
  /** In the order of arrival. */
  readonly #waiting = new Set<Waiting>();
  #running = 0;

  /** Resolves to null where the work has not ended `withinMs` from now; work that began goes on. */
  take<T>(work: () => Promise<T>, withinMs: number): Promise<T | null> {
    // `setTimeout` takes 0 ms as 1 ms, and short work would be done by then.
    if (withinMs <= 0) return Promise.resolve(null);
    return new Promise((resolve, reject) => {
      const begin = (): void => {
        this.#running += 1;
        const ended = work().finally(() => {
          clearTimeout(timer);
          this.#running -= 1;
          this.#next();
        });
        ended.then(resolve, reject);
      };
      const giveUp = (): void => {
        clearTimeout(timer);
        this.#waiting.delete(waiting);
        resolve(null);
      };
      const waiting: Waiting = { begin, giveUp };
      const timer = setTimeout(giveUp, withinMs);
      this.#waiting.add(waiting);
      if (this.#waiting.size > GATEWAY_ENCODES_WAITING_MAX) first(this.#waiting)?.giveUp();
      this.#next();
    });
  }

  #next(): void {
    while (this.#running < GATEWAY_ENCODES_AT_ONCE) {
      const next = first(this.#waiting);
      if (next === undefined) return;
      this.#waiting.delete(next);
      next.begin();
    }
  }
}

function first<T>(all: ReadonlySet<T>): T | undefined {
  return all.values().next().value;
}
