// Owns the blocks that no prompt can reach: held behind a gap at a look-up, and demoted when the gap is still there later.
import { countBits, hasBit, PACKED_KEY_BYTES } from "../../block.ts";
import type { Namespace, RecordClass } from "../../block.ts";
import { CALL_TIMEOUT_MS, DEMOTE_KEYS_MAX } from "../../limits.ts";
import { blocksOf, firstHole, packShards } from "./hinted.ts";
import type { AskedGroup, HintOptions } from "./hinted.ts";
import type { LookupAnswer } from "./lookup.ts";
import { SecondLooks } from "./second-looks.ts";

/** A block that all blocks of any prompt behind it need, and that nobody holds. */
interface Gap {
  recordClass: RecordClass;
  /** Packed, of all shards. */
  keys: Buffer;
  /** Prompt tokens before it. */
  tokens: number;
}

/** What is held behind a gap. */
interface Suspects {
  namespace: Namespace;
  gap: Gap;
  /** Packed. */
  behind: Readonly<Record<RecordClass, Buffer>>;
}

/**
 * Hashes are chained: without a block of attention, nothing behind it can be restored by any prompt. But the request that
 * finds the gap goes on to compute and save what is missing, and only that; so nothing is said before ORPHAN_WAIT_MS.
 */
export class Orphans {
  readonly #options: HintOptions;
  /** By the gap's keys. */
  readonly #looks: SecondLooks;

  constructor(options: HintOptions) {
    this.#options = options;
    this.#looks = new SecondLooks(options.logger);
  }

  /** Takes note of what a look-up found held behind the first gap; nothing where a vault did not answer. */
  note(
    namespace: Namespace,
    groups: readonly AskedGroup[],
    { held, isVaultDown }: LookupAnswer,
  ): void {
    if (isVaultDown) return;
    const gap = this.#firstGap(groups, held);
    if (gap === null) return;
    const id = gap.keys.toString("latin1");
    if (!this.#looks.hasRoomFor(id)) return;
    const behind = this.#heldBehind(groups, held, gap.tokens);
    const records = (behind.kv.length + behind.ssm.length) / PACKED_KEY_BYTES;
    if (records === 0) return;
    this.#options.counters.add("orphans_found", records);
    this.#looks.add(id, () => this.#judge({ namespace, gap, behind }));
  }

  close(): void {
    this.#looks.close();
  }

  /** Demotes them unless the gap is filled. */
  async #judge({ namespace, gap, behind }: Suspects): Promise<void> {
    const { gates, shards, counters } = this.#options;
    const asked = gates[gap.recordClass];
    if (asked === null) return;
    const present = await asked.lookup(namespace, gap.keys, CALL_TIMEOUT_MS, () => true);
    if (present === null || countBits(present, shards) === shards) return;
    for (const recordClass of ["ssm", "kv"] as const) {
      const told = gates[recordClass];
      const keys = behind[recordClass];
      if (told === null || keys.length === 0) continue;
      const demoted = await told.demote(namespace, keys);
      counters.add("orphans_demoted", demoted);
    }
  }

  /** Of the groups that need every block from the first one on. Blocks the engine has itself are no gap. */
  #firstGap(groups: readonly AskedGroup[], held: readonly Buffer[]): Gap | null {
    let first: { group: AskedGroup; index: number } | null = null;
    for (const [at, group] of groups.entries()) {
      const bitmap = held[at];
      if (group.tail !== 0 || bitmap === undefined) continue;
      const index = firstHole(group, bitmap);
      if (index === blocksOf(group)) continue;
      const isFirst = first === null || index * group.tokens < first.index * first.group.tokens;
      if (isFirst) first = { group, index };
    }
    if (first === null || this.#options.gates[first.group.class] === null) return null;
    const { group, index } = first;
    const tokens = index * group.tokens;
    return {
      recordClass: group.class,
      keys: packShards(group, [index], this.#options.shards),
      tokens,
    };
  }

  /** At most DEMOTE_KEYS_MAX: states and windows before attention, the deepest first. */
  #heldBehind(
    groups: readonly AskedGroup[],
    held: readonly Buffer[],
    gapTokens: number,
  ): Record<RecordClass, Buffer> {
    const behind: Record<RecordClass, Buffer[]> = { kv: [], ssm: [] };
    const { shards } = this.#options;
    let room = Math.floor(DEMOTE_KEYS_MAX / shards);
    const statesFirst = [...groups.entries()].toSorted(
      ([, a], [, b]) => Number(a.tail === 0) - Number(b.tail === 0),
    );
    for (const [at, group] of statesFirst) {
      const bitmap = held[at];
      if (bitmap === undefined) continue;
      const indexes: number[] = [];
      // What ends behind the gap's beginning is needed for boundaries behind it only.
      const first = Math.floor(gapTokens / group.tokens);
      for (let index = blocksOf(group) - 1; index >= first && room > 0; index -= 1) {
        if (!hasBit(bitmap, index)) continue;
        indexes.push(index);
        room -= 1;
      }
      behind[group.class].push(packShards(group, indexes, shards));
    }
    return { kv: Buffer.concat(behind.kv), ssm: Buffer.concat(behind.ssm) };
  }
}
