// Owns reuse statistics, for sizing a vault: time from a block's last use to the next request, and bytes stored in between.
import { HASH_BYTES, hasBit } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { blockKeys } from "../../base/key-text.ts";
import { REUSE_KEPT_MAX, REUSE_SAMPLED_EVERY } from "../../base/limits/seen.ts";
import { Histogram } from "../../base/metrics.ts";
import type { HistogramSnapshot, SidecarCounters } from "../../base/metrics.ts";
import { nowMs } from "../../base/time.ts";
import type { BlockOutcomes } from "./block-outcomes.ts";

/** Blocks of one group in a request; the engine itself held the ones before `from`. */
export interface AskedBlocks {
  group: number;
  /** Block hashes, 32 bytes each. */
  hashes: Buffer;
  from: number;
}

/** Whether a block that is not held was stored before, by its key. */
export type WasStored = (key: string) => boolean;

/** Split by whether the block was still held; one that was never stored is in neither, as no vault could have kept it. */
export type ByOutcome = Record<"held" | "gone", HistogramSnapshot>;

export interface ReuseStatus {
  /** Seconds between two uses of a block, by whether it was still held (`held`, `gone`). */
  gapS: ByOutcome;
  /** Record bytes that this sidecar stored between the two uses, in the same way. */
  storedBytes: ByOutcome;
}

/** Reasons of misses (`BlockOutcomes.missReason`) of blocks that a vault had. */
const GONE: ReadonlySet<string> = new Set(["evicted", "flushed", "lost"]);
/** From a second to a month. */
const GAP_BOUNDS_S = [1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800, 2_592_000] as const;
/** From 64 MB to 4 TB, each four times the last. */
const STORED_BOUNDS = Array.from({ length: 9 }, (_, at) => 64e6 * 4 ** at);

interface Use {
  atMs: number;
  sentBytes: number;
  isHeld: boolean;
}

export class Reuse {
  readonly #counters: SidecarCounters;
  /** By hash, namespace and group, longest unused first. */
  readonly #uses = new Map<string, Use>();
  readonly #gapS = { held: new Histogram(GAP_BOUNDS_S), gone: new Histogram(GAP_BOUNDS_S) };
  readonly #storedBytes = {
    held: new Histogram(STORED_BOUNDS),
    gone: new Histogram(STORED_BOUNDS),
  };

  constructor(counters: SidecarCounters) {
    this.#counters = counters;
  }

  /** Observes all groups of a look-up; none where a vault was silent, because holdings are then unknown. */
  answered(
    namespace: Namespace,
    groups: readonly (AskedBlocks & { class: RecordClass; tenant: number })[],
    answer: { groups: readonly { held: Buffer }[]; silent: ReadonlySet<unknown> },
    outcomes: Pick<BlockOutcomes, "missReason">,
  ): void {
    if (answer.silent.size > 0) return;
    for (const [at, { held }] of answer.groups.entries()) {
      const group = groups[at];
      if (group === undefined) continue;
      this.asked(namespace, group, held, (key) =>
        GONE.has(outcomes.missReason(namespace, group, key)),
      );
    }
  }

  /** Observes one group of a request, one block in REUSE_SAMPLED_EVERY; `held` is a bitmap over the blocks. */
  asked(
    namespace: Namespace,
    { group, hashes, from }: AskedBlocks,
    held: Buffer,
    wasStored: WasStored,
  ): void {
    const keyOf = blockKeys(namespace, group, hashes);
    const [atMs, sentBytes] = [nowMs(), this.#counters.get("bytes_sent")];
    for (let at = 0; at < hashes.length; at += HASH_BYTES) {
      if ((hashes[at] ?? 0) % REUSE_SAMPLED_EVERY !== 0) continue;
      const index = at / HASH_BYTES;
      const key = keyOf(index);
      const last = this.#uses.get(key);
      const use = { atMs, sentBytes, isHeld: hasBit(held, index) };
      if (last !== undefined && index >= from) {
        if (use.isHeld || last.isHeld || wasStored(key)) this.#again(last, use);
      }
      this.#uses.delete(key);
      this.#uses.set(key, use);
    }
    for (const key of this.#uses.keys()) {
      if (this.#uses.size <= REUSE_KEPT_MAX) break;
      this.#uses.delete(key);
    }
  }

  status(): ReuseStatus {
    const both = (of: Record<"held" | "gone", Histogram>): ByOutcome => ({
      held: of.held.snapshot(),
      gone: of.gone.snapshot(),
    });
    return { gapS: both(this.#gapS), storedBytes: both(this.#storedBytes) };
  }

  #again(last: Use, use: Use): void {
    const outcome = use.isHeld ? "held" : "gone";
    this.#gapS[outcome].observe((use.atMs - last.atMs) / 1000);
    this.#storedBytes[outcome].observe(use.sentBytes - last.sentBytes);
  }
}
