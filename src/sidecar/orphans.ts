// Owns the blocks that no prompt can reach: held behind a gap at a look-up, and demoted when the gap is still there later.
import { countBits, HASH_BYTES, hasBit, PACKED_KEY_BYTES, packKey } from "../block.ts";
import type { Namespace, RecordClass } from "../block.ts";
import { CALL_TIMEOUT_MS, DEMOTE_KEYS_MAX } from "../limits.ts";
import type { Logger } from "../log.ts";
import type { SidecarCounters } from "../metrics.ts";
import type { GroupShape } from "./boundary.ts";
import type { LookupAnswer, LookupGroup } from "./lookup.ts";
import { SecondLooks } from "./second-looks.ts";
import type { LookupGates } from "./vaults.ts";

export interface OrphansOptions {
  shards: number;
  gates: LookupGates;
  counters: SidecarCounters;
  logger: Logger;
}

type Asked = LookupGroup & GroupShape & { from: number };

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
  readonly #options: OrphansOptions;
  /** By the gap's keys. */
  readonly #looks: SecondLooks;

  constructor(options: OrphansOptions) {
    this.#options = options;
    this.#looks = new SecondLooks(options.logger);
  }

  /** Takes note of what a look-up found held behind the first gap; nothing where a vault did not answer. */
  note(namespace: Namespace, groups: readonly Asked[], { held, isVaultDown }: LookupAnswer): void {
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
  #firstGap(groups: readonly Asked[], held: readonly Buffer[]): Gap | null {
    let first: { group: Asked; index: number } | null = null;
    for (const [at, group] of groups.entries()) {
      const bitmap = held[at];
      if (group.tail !== 0 || bitmap === undefined) continue;
      let index = group.from;
      while (index < count(group) && hasBit(bitmap, index)) index += 1;
      if (index === count(group)) continue;
      const isFirst = first === null || index * group.tokens < first.index * first.group.tokens;
      if (isFirst) first = { group, index };
    }
    if (first === null || this.#options.gates[first.group.class] === null) return null;
    const { group, index } = first;
    const tokens = index * group.tokens;
    return { recordClass: group.class, keys: this.#pack(group, [index]), tokens };
  }

  /** At most DEMOTE_KEYS_MAX: states and windows before attention, the deepest first. */
  #heldBehind(
    groups: readonly Asked[],
    held: readonly Buffer[],
    gapTokens: number,
  ): Record<RecordClass, Buffer> {
    const behind: Record<RecordClass, Buffer[]> = { kv: [], ssm: [] };
    let room = Math.floor(DEMOTE_KEYS_MAX / this.#options.shards);
    const statesFirst = [...groups.entries()].toSorted(
      ([, a], [, b]) => Number(a.tail === 0) - Number(b.tail === 0),
    );
    for (const [at, group] of statesFirst) {
      const bitmap = held[at];
      if (bitmap === undefined) continue;
      const indexes: number[] = [];
      // What ends behind the gap's beginning is needed for boundaries behind it only.
      const first = Math.floor(gapTokens / group.tokens);
      for (let index = count(group) - 1; index >= first && room > 0; index -= 1) {
        if (!hasBit(bitmap, index)) continue;
        indexes.push(index);
        room -= 1;
      }
      behind[group.class].push(this.#pack(group, indexes));
    }
    return { kv: Buffer.concat(behind.kv), ssm: Buffer.concat(behind.ssm) };
  }

  #pack({ hashes, group }: Asked, indexes: readonly number[]): Buffer {
    const { shards } = this.#options;
    const packed = Buffer.allocUnsafe(indexes.length * shards * PACKED_KEY_BYTES);
    let at = 0;
    for (const index of indexes) {
      for (let shard = 0; shard < shards; shard += 1) {
        at = packKey(packed, at, hashes, index, group, shard);
      }
    }
    return packed;
  }
}

function count({ hashes }: LookupGroup): number {
  return hashes.length / HASH_BYTES;
}
