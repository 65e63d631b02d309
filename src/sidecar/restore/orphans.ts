// Owns the blocks that no prompt can reach: held behind a gap at a look-up, and demoted when the gap is still there later.
import { countBits, hasBit, PACKED_KEY_BYTES } from "../../block.ts";
import type { Namespace } from "../../block.ts";
import { CALL_TIMEOUT_MS, DEMOTE_KEYS_MAX } from "../../limits.ts";
import type { LookupGate } from "../vaults/vaults.ts";
import { blocksOf, firstHole, packShards } from "./hinted.ts";
import type { AskedGroup, HintOptions } from "./hinted.ts";
import type { LookupAnswer } from "./lookup.ts";
import { SecondLooks } from "./second-looks.ts";

/** A block that all blocks of any prompt behind it need, and that nobody holds. */
interface Gap {
  /** Who would hold it. */
  gate: LookupGate;
  /** Packed, of all shards. */
  keys: Buffer;
  /** Prompt tokens before it. */
  tokens: number;
}

/** What is held behind a gap. */
interface Suspects {
  namespace: Namespace;
  gap: Gap;
  /** Packed, by vault. */
  behind: ReadonlyMap<LookupGate, readonly Buffer[]>;
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
  note(namespace: Namespace, groups: readonly AskedGroup[], answer: LookupAnswer): void {
    if (answer.silent.size > 0) return;
    const gap = this.#firstGap(groups, answer);
    if (gap === null) return;
    const id = gap.keys.toString("latin1");
    if (!this.#looks.hasRoomFor(id)) return;
    const behind = this.#heldBehind(groups, answer, gap.tokens);
    const bytes = [...behind.values()].flat().reduce((sum, keys) => sum + keys.length, 0);
    const records = bytes / PACKED_KEY_BYTES;
    if (records === 0) return;
    this.#options.counters.add("orphans_found", records);
    this.#looks.add(id, () => this.#judge({ namespace, gap, behind }));
  }

  close(): void {
    this.#looks.close();
  }

  /** Demotes them unless the gap is filled. */
  async #judge({ namespace, gap, behind }: Suspects): Promise<void> {
    const { shards, counters } = this.#options;
    const asked = gap.gate;
    const present = await asked.lookup(namespace, gap.keys, CALL_TIMEOUT_MS, () => true);
    if (present === null || countBits(present, shards) === shards) return;
    for (const [told, keys] of behind) {
      counters.add("orphans_demoted", await told.demote(namespace, Buffer.concat(keys)));
    }
  }

  /** Of the groups that need every block from the first one on. Blocks the engine has itself are no gap. */
  #firstGap(groups: readonly AskedGroup[], { held, owners }: LookupAnswer): Gap | null {
    let first: { group: AskedGroup; index: number; owner: number } | null = null;
    for (const [at, group] of groups.entries()) {
      const bitmap = held[at];
      if (group.tail !== 0 || bitmap === undefined) continue;
      const index = firstHole(group, bitmap);
      if (index === blocksOf(group)) continue;
      const isFirst = first === null || index * group.tokens < first.index * first.group.tokens;
      if (isFirst) first = { group, index, owner: owners[at]?.[index] ?? 0 };
    }
    if (first === null) return null;
    const { group, index, owner } = first;
    const gate = this.#options.gates[group.class][owner];
    if (gate === undefined) return null;
    const tokens = index * group.tokens;
    return {
      gate,
      keys: packShards(group, [index], this.#options.shards),
      tokens,
    };
  }

  /** At most DEMOTE_KEYS_MAX: states and windows before attention, the deepest first. */
  #heldBehind(
    groups: readonly AskedGroup[],
    { held, owners }: LookupAnswer,
    gapTokens: number,
  ): Map<LookupGate, Buffer[]> {
    const behind = new Map<LookupGate, Buffer[]>();
    const { shards, gates } = this.#options;
    let room = Math.floor(DEMOTE_KEYS_MAX / shards);
    const statesFirst = [...groups.entries()].toSorted(
      ([, a], [, b]) => Number(a.tail === 0) - Number(b.tail === 0),
    );
    for (const [at, group] of statesFirst) {
      const bitmap = held[at];
      if (bitmap === undefined) continue;
      const byVault = gates[group.class].map((): number[] => []);
      // What ends behind the gap's beginning is needed for boundaries behind it only.
      const first = Math.floor(gapTokens / group.tokens);
      for (const index of heldFrom(first, group, bitmap, room)) {
        byVault[owners[at]?.[index] ?? 0]?.push(index);
        room -= 1;
      }
      for (const [vault, gate] of gates[group.class].entries()) {
        const keys = packShards(group, byVault[vault] ?? [], shards);
        if (keys.length > 0) behind.set(gate, [...(behind.get(gate) ?? []), keys]);
      }
    }
    return behind;
  }
}

/** The deepest held blocks from `first` on, `most` of them. */
function* heldFrom(
  first: number,
  group: AskedGroup,
  held: Buffer,
  most: number,
): Generator<number> {
  let left = most;
  for (let index = blocksOf(group) - 1; index >= first && left > 0; index -= 1) {
    if (!hasBit(held, index)) continue;
    left -= 1;
    yield index;
  }
}
