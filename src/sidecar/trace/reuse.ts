// Owns how long after its last use a block is asked for again, and how much was stored meanwhile: what says how large a vault should be.
import { HASH_BYTES, hasBit } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import { blockKeys } from "../../key-text.ts";
import { REUSE_KEPT_MAX, REUSE_SAMPLED_EVERY } from "../../limits/seen.ts";
import { Histogram } from "../../metrics.ts";
import type { HistogramSnapshot, SidecarCounters } from "../../metrics.ts";
import { nowMs } from "../../time.ts";

/** Blocks of one group that a request asked for; those before `from` its engine held itself. */
export interface AskedBlocks {
  group: number;
  /** 32 bytes each. */
  hashes: Buffer;
  from: number;
}

/** By whether it was still held. */
export type ByOutcome = Record<"held" | "gone", HistogramSnapshot>;

export interface ReuseStatus {
  gapS: ByOutcome;
  /** Record bytes that this sidecar stored between the two. */
  storedBytes: ByOutcome;
}

/** From a second to a month. */
const GAP_BOUNDS_S = [1, 10, 60, 300, 900, 3600, 14_400, 86_400, 604_800, 2_592_000] as const;
/** From 64 MB to 4 TB, four times each. */
const STORED_BOUNDS = Array.from({ length: 9 }, (_, at) => 64e6 * 4 ** at);

interface Use {
  atMs: number;
  sentBytes: number;
}

export class Reuse {
  readonly #counters: SidecarCounters;
  /** By hash, namespace and group, the longest unused first. */
  readonly #uses = new Map<string, Use>();
  readonly #gapS = { held: new Histogram(GAP_BOUNDS_S), gone: new Histogram(GAP_BOUNDS_S) };
  readonly #storedBytes = {
    held: new Histogram(STORED_BOUNDS),
    gone: new Histogram(STORED_BOUNDS),
  };

  constructor(counters: SidecarCounters) {
    this.#counters = counters;
  }

  /** The same of all groups; where a vault was silent, what is held is not known. */
  answered(
    namespace: Namespace,
    groups: readonly AskedBlocks[],
    { held, silent }: { held: readonly Buffer[]; silent: ReadonlySet<unknown> },
  ): void {
    if (silent.size > 0) return;
    for (const [at, bits] of held.entries()) {
      const group = groups[at];
      if (group !== undefined) this.asked(namespace, group, bits);
    }
  }

  /** A request asked for these, and `held` is a bitmap over them. Looks at one block in REUSE_SAMPLED_EVERY. */
  asked(namespace: Namespace, { group, hashes, from }: AskedBlocks, held: Buffer): void {
    const keyOf = blockKeys(namespace, group, hashes);
    const use = { atMs: nowMs(), sentBytes: this.#counters.get("bytes_sent") };
    for (let at = 0; at < hashes.length; at += HASH_BYTES) {
      if ((hashes[at] ?? 0) % REUSE_SAMPLED_EVERY !== 0) continue;
      const index = at / HASH_BYTES;
      const key = keyOf(index);
      const last = this.#uses.get(key);
      if (last !== undefined && index >= from) this.#again(last, use, hasBit(held, index));
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

  #again(last: Use, use: Use, isHeld: boolean): void {
    const outcome = isHeld ? "held" : "gone";
    this.#gapS[outcome].observe((use.atMs - last.atMs) / 1000);
    this.#storedBytes[outcome].observe(use.sentBytes - last.sentBytes);
  }
}
