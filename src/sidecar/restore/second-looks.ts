// Owns what is thought over: one deed per name, done ORPHAN_WAIT_MS later, so many at most at a time.
import { toTierkvError } from "../../errors.ts";
import { ORPHAN_WAIT_MS, ORPHANS_MAX } from "../../limits.ts";
import type { Logger } from "../../log.ts";

export class SecondLooks {
  readonly #logger: Logger;
  readonly #waiting = new Map<string, NodeJS.Timeout>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** False for a name that is waiting already, and for every one while too many are. */
  hasRoomFor(name: string): boolean {
    return this.#waiting.size < ORPHANS_MAX && !this.#waiting.has(name);
  }

  add(name: string, act: () => Promise<void>): void {
    const timer = setTimeout(() => {
      this.#waiting.delete(name);
      act().catch((error: unknown) =>
        this.#logger.debug({ err: toTierkvError(error) }, "a vault was not told what goes first"),
      );
    }, ORPHAN_WAIT_MS);
    this.#waiting.set(name, timer);
  }

  close(): void {
    for (const timer of this.#waiting.values()) clearTimeout(timer);
    this.#waiting.clear();
  }
}
