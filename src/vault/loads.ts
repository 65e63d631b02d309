// Owns how many loads from disk run at a time for calls over gRPC: each keeps one of Node's few threads as long as the disk hangs.
import { DISK_LOADS_MAX } from "../limits.ts";

export class Loads {
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  /** Runs `load` when its turn comes. What waits is bounded by the streams that a vault serves. */
  async run<T>(load: () => Promise<T>): Promise<T> {
    if (this.#running >= DISK_LOADS_MAX) {
      const { promise, resolve } = turn();
      this.#waiting.push(resolve);
      await promise;
    } else {
      this.#running += 1;
    }
    try {
      return await load();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#running -= 1;
      else next();
    }
  }
}

function turn(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
