// Owns one worker rank of an engine: its groups, its credits, and the check of each slot it hands over.
import type { Arena } from "../../arena/arena.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { Saver } from "../save/save.ts";
import type { SaveSource } from "../save/source.ts";
import { Credits } from "../slots/credits.ts";
import { dropGroups } from "../slots/groups.ts";
import type { Group, Groups } from "../slots/groups.ts";
import type { Connection } from "../socket/connection.ts";
import { slotBytes } from "../socket/frames.ts";
import type { Save, SaveItem } from "../socket/messages.ts";

export interface WorkerRankOptions {
  connection: Connection;
  rank: number;
  shard: number;
  shardCount: number;
  saver: Saver;
  counters: SidecarCounters;
}

export class WorkerRank {
  readonly connection: Connection;
  readonly rank: number;
  readonly #options: WorkerRankOptions;
  #groups: Groups | null = null;
  #credits: Credits | null = null;
  #arenaId = 0;
  /** Bytes of its slots for saves. */
  #saveBytes = 0;
  readonly #sources = new Map<number, SaveSource>();
  isMapped = false;
  /** Reason why the worker cannot use the arena; null: none reported. */
  unmapped: string | null = null;

  constructor(options: WorkerRankOptions) {
    this.#options = options;
    this.connection = options.connection;
    this.rank = options.rank;
  }

  get groups(): Groups | null {
    return this.#groups;
  }

  set groups(groups: Groups) {
    this.#groups = groups;
  }

  /** Returns a group; throws INTERNAL for an unknown one, which no plan can name, as prefetches are checked on arrival. */
  group(id: number): Group {
    const group = this.#groups?.get(id);
    if (group === undefined) {
      throw new TierkvError("INTERNAL", { reason: `rank ${this.rank} has no group ${id}` });
    }
    return group;
  }

  /** Opens saves once the arena exists; they flow when it is mapped and touched. `wireId` is its id on the wire. */
  openSaves(arena: Arena, wireId: number, saveSlots: number, isWorthSaving: () => boolean): void {
    const { connection, shard, shardCount, saver } = this.#options;
    this.#arenaId = wireId;
    this.#saveBytes = saveSlots * arena.slotBytes;
    saver.room.add(this.#saveBytes);
    this.unmapped = null;
    const credits = new Credits(arena, connection.id, saveSlots, (leases) =>
      connection.send({ t: "credits", arena: wireId, slots: slotBytes(leases) }),
    );
    this.#credits = credits;
    for (const [id, group] of this.#groups ?? []) {
      this.#sources.set(id, {
        arena: arena.id,
        geometry: group.geometry,
        recordClass: group.spec.class,
        group: id,
        shard,
        shardCount,
        tokens: group.spec.tokens,
        sourceBytes: group.sourceBytes,
        finish: (slot, generation) => credits.finish(slot, generation),
        onBatch: () => credits.topUp(),
        isShort: () => credits.isShort,
        isWorthSaving,
      });
    }
  }

  onUnmapped(reason: string): void {
    const { counters } = this.#options;
    this.unmapped = reason;
    counters.add("arenas_unmapped");
  }

  topUp(): void {
    if (this.isMapped) this.#credits?.topUp();
  }

  /** Passes filled slots to the saver; `current` is the engine's namespace, and blocks of another come from former weights. */
  save({ arena, namespace, items }: Save, current: Namespace | null): void {
    const { counters, saver } = this.#options;
    if (this.#credits === null || arena !== this.#arenaId) {
      counters.add("dropped_stale_arena", items.length);
      return;
    }
    const byGroup = new Map<number, SaveItem[]>();
    for (const item of items) {
      if (!this.#credits.take(item.slot, item.generation)) {
        counters.add("dropped_bad_slot");
      } else if (!this.#sources.has(item.group)) {
        counters.add("dropped_unknown_group");
        this.#credits.finish(item.slot, item.generation);
      } else if (current !== null && !namespace.equals(current)) {
        counters.add("dropped_old_weights");
        this.#credits.finish(item.slot, item.generation);
      } else {
        const saved = byGroup.get(item.group) ?? [];
        saved.push(item);
        byGroup.set(item.group, saved);
      }
    }
    for (const [group, saved] of byGroup) {
      const source = this.#sources.get(group);
      if (source !== undefined) saver.accept(source, current, saved);
    }
    // The saver grants new slots with each batch, but got none.
    if (byGroup.size === 0) this.#credits.topUp();
  }

  giveBack(arena: number, pairs: Uint32Array): void {
    if (this.#credits === null || arena !== this.#arenaId) return;
    for (let at = 0; at + 1 < pairs.length; at += 2) {
      const isKnown = this.#credits.giveBack(pairs[at] ?? 0, pairs[at + 1] ?? 0);
      if (!isKnown) this.#options.counters.add("dropped_bad_slot");
    }
  }

  /** Stops granting credits; saves under way are finished. */
  stop(): void {
    this.#credits?.stop();
  }

  /** After the last read, waits until running saves have left their slots, then drops the geometries. */
  async leave(): Promise<void> {
    await Promise.all(
      [...this.#sources.values()].map((source) => this.#options.saver.settle(source)),
    );
    this.#options.saver.room.add(-this.#saveBytes);
    this.#saveBytes = 0;
    if (this.#groups !== null) dropGroups(this.#groups);
    this.#groups = null;
  }
}
