// Owns the worker ranks of one engine as a whole: who has come, whether they agree, and what their groups add up to.
import type { BlockShape } from "../../arena/sizing.ts";
import type { RecordClass } from "../../block.ts";
import { TierkvError } from "../../errors.ts";
import { groupsDiffer } from "../slots/groups.ts";
import type { Group, Groups } from "../slots/groups.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { Hello } from "../socket/hello.ts";
import type { GroupSpec } from "../socket/messages.ts";
import type { WorkerRank } from "./worker-rank.ts";

/** Blocks of one group, all shards together. */
export interface BlockKind {
  group: number;
  class: RecordClass;
  /** Per block. */
  tokens: number;
  /** How many of its last blocks a restore needs; 0: all of them. */
  tail: number;
  bytes: number;
}

export class Ranks implements Iterable<WorkerRank> {
  readonly #engine: string;
  readonly #world: number;
  readonly #shards: number;
  readonly #ranks = new Map<number, WorkerRank>();
  /** Of one block with all shards: decoded bytes, and bytes on the wire at most; what a group is. */
  readonly sizes = {
    shapeOf: (group: number): GroupSpec => this.groupAt(group, 0).spec,
    sourceBytes: (group: number): number => this.#sum(group, (of) => of.sourceBytes),
    blockBytes: (group: number): number => this.#sum(group, (of) => of.recordBytesMax),
    groupAt: (group: number, shard: number): Group => this.groupAt(group, shard),
  };

  constructor({ engine, world, shards }: Hello) {
    this.#engine = engine;
    this.#world = world;
    this.#shards = shards;
  }

  get count(): number {
    return this.#ranks.size;
  }

  get areMapped(): boolean {
    return [...this].every((worker) => worker.isMapped);
  }

  [Symbol.iterator](): IterableIterator<WorkerRank> {
    return this.#ranks.values();
  }

  /** Throws ENGINE_REFUSED when a connection says of its engine what no other one said. */
  checkHello({ world, shards }: Hello): void {
    if (world === this.#world && shards === this.#shards) return;
    throw this.#refused(
      `world = ${world}, shards = ${shards}, but another connection of it said ${this.#world}, ${this.#shards}`,
    );
  }

  /** The block's part that a rank has: ranks that hold the same heads share one. */
  shardOf(rank: number): number {
    return Math.floor(rank / (this.#world / this.#shards));
  }

  /** Throws ENGINE_REFUSED when that rank is connected. */
  checkFree(rank: number): void {
    if (this.#ranks.has(rank)) throw this.taken(`its worker of rank ${rank}`);
  }

  add(worker: WorkerRank): void {
    this.#ranks.set(worker.rank, worker);
  }

  /** True when all ranks have registered now. Throws ENGINE_REFUSED when they cannot share an engine. */
  register(worker: WorkerRank, groups: Groups): boolean {
    worker.groups = groups;
    for (const { groups: others } of this) {
      const difference = others === null ? null : groupsDiffer(groups, others);
      if (difference === null) continue;
      throw this.#refused(
        difference,
        "the engine runs on without tierKV; report its model and parallelism",
      );
    }
    return this.count === this.#world && [...this].every((other) => other.groups !== null);
  }

  /** A prefetch may only name groups that the workers registered. Throws BAD_FRAME. */
  checkAsked(asked: readonly PrefetchGroup[]): void {
    const [worker] = this;
    for (const { group, class: recordClass } of asked) {
      const known = worker?.groups?.get(group)?.spec.class ?? "not registered";
      if (known === recordClass) continue;
      throw new TierkvError("BAD_FRAME", {
        peer: `engine ${this.#engine}`,
        reason: `prefetch of group ${group} (${recordClass}), which is ${known}`,
      });
    }
  }

  /** What a slot of each rank has to hold. */
  slotNeeds(): BlockShape[][] {
    return [...this].map(({ groups }) =>
      [...(groups ?? NO_GROUPS).values()].map(({ slotBytes, spec: { tokens, tail } }) => ({
        bytes: slotBytes,
        tokens,
        tail,
      })),
    );
  }

  /** What its blocks are; none before all ranks have registered, or after one has left. */
  kinds(): BlockKind[] {
    const isWhole = this.count === this.#world && [...this].every(({ groups }) => groups !== null);
    if (!isWhole) return [];
    return this.groupIds().map((group) => {
      const { class: recordClass, tokens, tail } = this.sizes.shapeOf(group);
      return { group, class: recordClass, tokens, tail, bytes: this.sizes.sourceBytes(group) };
    });
  }

  groupIds(): number[] {
    return [...(this.#ranks.get(0)?.groups?.keys() ?? [])];
  }

  /** The group as the first rank that holds this shard describes it. */
  groupAt(group: number, shard: number): Group {
    const rank = shard * (this.#world / this.#shards);
    const worker = this.#ranks.get(rank);
    if (worker === undefined) throw new TierkvError("INTERNAL", { reason: `no rank ${rank}` });
    return worker.group(group);
  }

  taken(what: string): TierkvError {
    return this.#refused(`${what} is connected already`);
  }

  #refused(reason: string, fix = "give every engine an engine_id of its own"): TierkvError {
    return new TierkvError("ENGINE_REFUSED", { engine: this.#engine, reason, fix });
  }

  #sum(group: number, bytesOf: (of: Group) => number): number {
    let total = 0;
    for (let shard = 0; shard < this.#shards; shard += 1) {
      total += bytesOf(this.groupAt(group, shard));
    }
    return total;
  }
}

const NO_GROUPS: Groups = new Map();
