// Owns what became of blocks here, for the reasons of misses: bounded, and never believed where a vault says otherwise.
import type { Namespace, RecordClass } from "../../block.ts";
import type { Takes } from "../../client/flush-feed.ts";
import { blockOf, blockText } from "../../key-text.ts";
import { OUTCOMES_MAX, FLUSHES_KEPT_MAX } from "../../limits/general.ts";

interface Outcome {
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

export class BlockOutcomes {
  /** By block, whatever the namespace; the oldest first. */
  readonly #outcomes = new Map<string, Outcome>();
  /** The last ones. */
  readonly #losses: Loss[] = [];
  #lossCount = 0;

  /** `key`: packed, of any shard. */
  stored(namespace: Namespace, key: Buffer): void {
    this.#note(namespace, key, STORED);
  }

  dropped(namespace: Namespace, key: Buffer, reason: string): void {
    this.#note(namespace, key, `dropped_${reason}`);
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
    { class: recordClass, tenant }: { class: RecordClass; tenant: number },
    key: string,
  ): string {
    const outcome = this.#outcomes.get(blockOf(key));
    if (outcome === undefined) return "never_stored";
    if (!outcome.namespace.equals(namespace)) return "other_namespace";
    if (outcome.what !== STORED) return outcome.what;
    const since = this.#losses.slice(
      Math.max(0, this.#losses.length - (this.#lossCount - outcome.losses)),
    );
    const taken = since.filter(
      (loss) => loss.recordClass === recordClass && loss.takes(namespace, tenant),
    );
    if (taken.some(({ why }) => why === "flushed")) return "flushed";
    return taken.length > 0 ? "lost" : "evicted";
  }

  /** It was stored, and nothing is known that took it; the vault may have dropped it. */
  isStored(namespace: Namespace, of: { class: RecordClass; tenant: number }, key: string): boolean {
    return this.missReason(namespace, of, key) === "evicted";
  }

  #note(namespace: Namespace, key: Buffer, what: string): void {
    const block = blockText(key);
    this.#outcomes.delete(block);
    this.#outcomes.set(block, { namespace, what, losses: this.#lossCount });
    if (this.#outcomes.size <= OUTCOMES_MAX) return;
    for (const oldest of this.#outcomes.keys()) {
      this.#outcomes.delete(oldest);
      break;
    }
  }
}
