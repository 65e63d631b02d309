// Owns the outcomes of blocks at this sidecar, for the reasons of misses: bounded, and overruled by what a vault says.
import type { Namespace, RecordClass } from "../../base/block.ts";
import { blockOf, blockText } from "../../base/key-text.ts";
import { OUTCOMES_MAX, FLUSHES_KEPT_MAX } from "../../base/limits/general.ts";
import type { Takes } from "../../client/flush-feed.ts";

interface Outcome {
  namespace: Namespace;
  /** `stored`, or the reason for the drop. */
  what: string;
  /** Number of losses before it. */
  losses: number;
}

/** A loss of stored blocks: a flush by hand, or a vault that restarted. */
interface Loss {
  why: "flushed" | "lost";
  recordClass: RecordClass;
  takes: Takes;
}

const STORED = "stored";

export class BlockOutcomes {
  /** By block, in any namespace; oldest first. */
  readonly #outcomes = new Map<string, Outcome>();
  /** Latest losses. */
  readonly #losses: Loss[] = [];
  #lossCount = 0;

  /** Notes a stored block; `key` is its packed key with any shard. */
  stored(namespace: Namespace, key: Buffer): void {
    this.#note(namespace, key, STORED);
  }

  dropped(namespace: Namespace, key: Buffer, reason: string): void {
    this.#note(namespace, key, `dropped_${reason}`);
  }

  /** Notes a flush: the blocks of that class stored before, and named by `takes`, are gone. */
  flushed(recordClass: RecordClass, takes: Takes): void {
    this.#lose({ why: "flushed", recordClass, takes });
  }

  /** Notes the restart of a vault of that class: blocks it held before may be gone. */
  restarted(recordClass: RecordClass): void {
    this.#lose({ why: "lost", recordClass, takes: () => true });
  }

  #lose(loss: Loss): void {
    this.#losses.push(loss);
    this.#lossCount += 1;
    if (this.#losses.length > FLUSHES_KEPT_MAX) this.#losses.shift();
  }

  /** Returns, in one word, why no vault holds a block. */
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

  /** True when the block was stored and no loss is known; the vault may still have dropped it. */
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
