// Owns the quarantined namespaces: an engine computed one of their blocks again, and the stored one was different.
import type { Namespace } from "../../base/block.ts";
import { QUARANTINED_MAX } from "../../base/limits/truth.ts";

/** A namespace stays until it is flushed or the sidecar restarts, after which the next check finds it again. */
export class Quarantine {
  readonly #names = new Set<string>();

  /** Adds a namespace; false when it was known. Beyond QUARANTINED_MAX the oldest is forgotten. */
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

  /** Lifts the quarantine of flushed namespaces, because their records are gone. */
  lift(takes: (namespace: Buffer) => boolean): void {
    for (const name of this.#names) {
      if (takes(Buffer.from(name, "latin1"))) this.#names.delete(name);
    }
  }
}

const nameOf = (namespace: Buffer): string => namespace.toString("latin1");
