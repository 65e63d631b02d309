// Owns the memory of what became of blocks here, for the reasons of misses: bounded, and never asked whether a vault holds one.
import type { Namespace, RecordClass } from "../../block.ts";
import type { Takes } from "../../client/flush-feed.ts";
import { FATES_MAX, FLUSHES_KEPT_MAX } from "../../limits.ts";

interface Fate {
  namespace: Namespace;
  /** `stored`, or why it was dropped. */
  what: string;
  /** Losses before it. */
  losses: number;
}

/** What took stored blocks: by hand, or a vault that came back without them. */
interface Loss {
  why: "flushed" | "lost";
  recordClass: RecordClass;
  takes: Takes;
}

const STORED = "stored";

export class Fates {
  /** By block hash and group; the oldest first. */
  readonly #fates = new Map<string, Fate>();
  /** The last ones. */
  readonly #losses: Loss[] = [];
  #lossCount = 0;

  stored(namespace: Namespace, group: number, hash: Buffer): void {
    this.#note(namespace, group, hash, STORED);
  }

  dropped(namespace: Namespace, group: number, hash: Buffer, reason: string): void {
    this.#note(namespace, group, hash, `dropped_${reason}`);
  }

  /** What was stored of that class before, and `takes` names, is gone. */
  flushed(recordClass: RecordClass, takes: Takes): void {
    this.#lose({ why: "flushed", recordClass, takes });
  }

  /** The vault of that class was started again: what it held before may be gone. */
  restarted(recordClass: RecordClass): void {
    this.#lose({ why: "lost", recordClass, takes: () => true });
  }

  #lose(loss: Loss): void {
    this.#losses.push(loss);
    this.#lossCount += 1;
    if (this.#losses.length > FLUSHES_KEPT_MAX) this.#losses.shift();
  }

  /** Why a block of which no vault holds a record is missed: one word for a counter and for people. */
  missReason(
    namespace: Namespace,
    recordClass: RecordClass,
    group: number,
    hash: Buffer,
    tenant: number,
  ): string {
    const fate = this.#fates.get(keyOf(group, hash));
    if (fate === undefined) return "never_stored";
    if (!fate.namespace.equals(namespace)) return "other_namespace";
    if (fate.what !== STORED) return fate.what;
    const since = this.#losses.slice(
      Math.max(0, this.#losses.length - (this.#lossCount - fate.losses)),
    );
    const taken = since.filter(
      (loss) => loss.recordClass === recordClass && loss.takes(namespace, tenant),
    );
    if (taken.some(({ why }) => why === "flushed")) return "flushed";
    return taken.length > 0 ? "lost" : "evicted";
  }

  #note(namespace: Namespace, group: number, hash: Buffer, what: string): void {
    const key = keyOf(group, hash);
    this.#fates.delete(key);
    this.#fates.set(key, { namespace, what, losses: this.#lossCount });
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
