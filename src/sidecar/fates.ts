// Owns the memory of what became of blocks here, for the reasons of misses: bounded, and never asked whether a vault holds one.
import type { Namespace } from "../block.ts";
import { FATES_MAX } from "../limits.ts";

interface Fate {
  namespace: Namespace;
  /** `stored`, or why it was dropped. */
  what: string;
}

const STORED = "stored";

export class Fates {
  /** By block hash and group; the oldest first. */
  readonly #fates = new Map<string, Fate>();

  stored(namespace: Namespace, group: number, hash: Buffer): void {
    this.#note(namespace, group, hash, STORED);
  }

  dropped(namespace: Namespace, group: number, hash: Buffer, reason: string): void {
    this.#note(namespace, group, hash, `dropped_${reason}`);
  }

  /** Why a block of which no vault holds a record is missed: one word for a counter and for people. */
  missReason(namespace: Namespace, group: number, hash: Buffer): string {
    const fate = this.#fates.get(keyOf(group, hash));
    if (fate === undefined) return "never_stored";
    if (!fate.namespace.equals(namespace)) return "other_namespace";
    return fate.what === STORED ? "evicted" : fate.what;
  }

  #note(namespace: Namespace, group: number, hash: Buffer, what: string): void {
    const key = keyOf(group, hash);
    this.#fates.delete(key);
    this.#fates.set(key, { namespace, what });
    if (this.#fates.size <= FATES_MAX) return;
    for (const oldest of this.#fates.keys()) {
      this.#fates.delete(oldest);
      break;
    }
  }
}

function keyOf(group: number, hash: Buffer): string {
  return `${group}:${hash.toString("latin1")}`;
}
