// Owns the names under which nothing is believed: an engine computed a block again, and what was stored of it was something else.
import type { Namespace } from "../../block.ts";
import { QUARANTINED_MAX } from "../../limits/truth.ts";

/** Until they are flushed, or the sidecar restarts: then the next check finds them again. */
export class Quarantine {
  readonly #names = new Set<string>();

  /** False where it was known. Beyond QUARANTINED_MAX the oldest is forgotten. */
  add(namespace: Namespace): boolean {
    const name = nameOf(namespace);
    if (this.#names.has(name)) return false;
    for (const oldest of this.#names) {
      if (this.#names.size < QUARANTINED_MAX) break;
      this.#names.delete(oldest);
    }
    this.#names.add(name);
    return true;
  }

  has(namespace: Namespace): boolean {
    return this.#names.size > 0 && this.#names.has(nameOf(namespace));
  }

  /** Their records are gone, so what is stored now is new. */
  lift(takes: (namespace: Buffer) => boolean): void {
    for (const name of this.#names) {
      if (takes(Buffer.from(name, "latin1"))) this.#names.delete(name);
    }
  }
}

const nameOf = (namespace: Buffer): string => namespace.toString("latin1");
