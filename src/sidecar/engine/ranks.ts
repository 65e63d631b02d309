// Owns the worker ranks of one engine together: which have connected, whether they agree, and their groups.
import type { BlockShape } from "../../arena/sizing.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
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
  /** Tokens per block. */
  tokens: number;
  /** Number of last blocks that a restore needs; 0: all. */
  tail: number;
  bytes: number;
}

export class Ranks implements Iterable<WorkerRank> {
  readonly #engine: string;
  readonly #world: number;
  readonly #shards: number;
  readonly #ranks = new Map<number, WorkerRank>();
  /** Spec of a group, decoded bytes and largest wire bytes of one block with all shards. */
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

  /** Throws ENGINE_REFUSED when a connection contradicts an earlier one of its engine. */
  checkHello({ world, shards }: Hello): void {
    if (world === this.#world && shards === this.#shards) return;
    throw this.#refused(
      `world = ${world}, shards = ${shards}, but another connection of it said ${this.#world}, ${this.#shards}`,
    );
  }

  /** Returns the shard that a rank holds: ranks with the same heads share one. */
  shardOf(rank: number): number {
    return Math.floor(rank / (this.#world / this.#shards));
  }

  /** Throws ENGINE_REFUSED when that rank is already connected. */
  checkFree(rank: number): void {
    if (this.#ranks.has(rank)) throw this.taken(`its worker of rank ${rank}`);
  }

  add(worker: WorkerRank): void {
    this.#ranks.set(worker.rank, worker);
  }

  /** Registers a rank's groups; true when all ranks have. Throws ENGINE_REFUSED when they cannot share an engine. */
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

  /** Throws BAD_FRAME when a prefetch names groups that the workers have not registered. */
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

  /** Returns, per rank, the blocks that its slots must hold. */
  slotNeeds(): BlockShape[][] {
    return [...this].map(({ groups }) =>
      [...(groups ?? NO_GROUPS).values()].map(({ slotBytes, spec: { tokens, tail } }) => ({
        bytes: slotBytes,
        tokens,
        tail,
      })),
    );
  }

  /** Returns the kinds of blocks; empty before all ranks have registered, and after one has left. */
  kinds(): BlockKind[] {
    const isWhole = this.count === this.#world && [...this].every(({ groups }) => groups !== null);
    if (!isWhole) return [];
    return this.groupIds().map((group) => {
      const { class: recordClass, tokens, tail } = this.sizes.shapeOf(group);
      return { group, class: recordClass, tokens, tail, bytes: this.sizes.sourceBytes(group) };
    });
  }

  /** Returns the element type of attention KV; null: there is no attention group, or none has registered. */
  dtype(): GroupSpec["dtype"] | null {
    const [worker] = this;
    const groups = [...(worker?.groups ?? NO_GROUPS).values()];
    return groups.find(({ spec }) => spec.layout === "attention")?.spec.dtype ?? null;
  }

  groupIds(): number[] {
    return [...(this.#ranks.get(0)?.groups?.keys() ?? [])];
  }

  /** Returns the group as described by the first rank with this shard. */
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
