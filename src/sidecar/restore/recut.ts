// Owns hand-offs from an engine with longer blocks: its records are fetched by its names and cut into this engine's blocks.
import { HASH_BYTES, hashAt, hasBit, ItemStatus, packKeys } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { blockKeys } from "../../base/key-text.ts";
import { HANDOFF_ROOM_SHARE } from "../../base/limits/cost.ts";
import {
  CALL_TIMEOUT_MS,
  FETCH_WINDOW_BYTES,
  FETCH_WINDOW_KEYS,
} from "../../base/limits/general.ts";
import { outboxDrop, outboxReserve, recutSlots } from "../../base/native.ts";
import type { Block, BlockUser } from "../slots/block.ts";
import type { LongerBlocks, PrefetchGroup } from "../socket/asked.ts";
import type { Prefetch } from "../socket/messages.ts";
import type { Quarantine } from "../vaults/quarantine.ts";
import type { ArenaContext } from "./arena-context.ts";
import { lookUp } from "./lookup.ts";
import type { LookupContext } from "./lookup.ts";
import type { Plan } from "./plan.ts";

export interface RecutOptions {
  plan: Plan;
  message: Prefetch;
  arena: ArenaContext;
  lookup: Omit<LookupContext, "cache">;
  quarantine: Quarantine;
}

type Settled = Pick<RecutOptions, "plan" | "arena" | "lookup"> & {
  group: PrefetchGroup & { tenant: number };
  longer: LongerBlocks;
};

/** A record of the other engine, and the blocks of this one that lie in it. */
interface Part {
  at: number;
  vault: number;
  blocks: Block[];
}

/** Keeps the cut blocks in use until the plan uses them, so that they are not evicted. */
export class Recut implements BlockUser {
  readonly #options: Settled;
  readonly #ratio: number;
  readonly #keyOf: (index: number) => string;
  readonly #used: Block[] = [];
  /** Per record: 1 once it need not be asked for any more. */
  readonly #isOver: Uint8Array;
  #isSpent = false;

  private constructor(options: Settled, ratio: number) {
    const { group, longer, lookup } = options;
    this.#options = options;
    this.#ratio = ratio;
    this.#keyOf = blockKeys(lookup.namespace, group.group, group.hashes);
    this.#isOver = new Uint8Array(longer.hashes.length / HASH_BYTES);
  }

  /** Returns null when the other blocks are as long as these, cannot be cut into them, or are quarantined. */
  static of({ plan, message, arena, lookup, quarantine }: RecutOptions): Recut | null {
    const { groups, longer, tenant } = message;
    const [group, more] = groups;
    if (longer === null || group === undefined || more !== undefined) return null;
    const { spec } = arena.groupAt(group.group, 0);
    const ratio = longer.tokens / spec.tokens;
    const isWhole = Number.isInteger(ratio) && spec.layout === "attention" && spec.tail === 0;
    if (!isWhole || quarantine.has(longer.namespace)) return null;
    const recut = new Recut({ plan, group: { ...group, tenant }, longer, arena, lookup }, ratio);
    plan.kept.push(recut);
    return recut;
  }

  /** True when nothing was on its way after the last step, and nothing more can come. */
  get isSpent(): boolean {
    return this.#isSpent;
  }

  onBlock(): void {}

  leaveAll(): void {
    // The tail first, as runs do.
    for (const block of this.#used.splice(0).toReversed()) {
      this.#options.arena.cache.leave(block, this);
    }
  }

  /** Fetches and cuts the records held by now; resolves when all are placed or given up. Never rejects. */
  async step(): Promise<void> {
    const isAsked = this.#isOver.every((isOver) => isOver > 0);
    if (!isAsked && !this.#options.plan.isOver) await this.#bringHeld();
    // Other hand-offs of the prompt may bring some of the blocks.
    const isComing = this.#used.some(({ state }) => state === "wanted" || state === "fetching");
    this.#isSpent = !isComing && this.#isOver.every((isOver) => isOver > 0);
  }

  async #bringHeld(): Promise<void> {
    const { plan, longer, group, lookup } = this.#options;
    const { hashes } = longer;
    const asked = { group: group.group, class: group.class, hashes };
    const context = { ...lookup, namespace: longer.namespace, cache: null };
    const [answer] = (await lookUp([asked], context)).groups;
    if (answer === undefined) return;
    const { held, offers } = answer;
    const found = [...this.#isOver.keys()].filter(
      (at) => this.#isOver[at] === 0 && hasBit(held, at),
    );
    const each = this.#recordsPerCall();
    for (let at = 0; at < found.length && !plan.isOver; at += each) {
      const parts = found.slice(at, at + each).map((record) => {
        const vault = offers.find(({ end }) => record < end)?.vault ?? 0;
        return { at: record, vault, blocks: this.#take(record, vault) };
      });
      await this.#bring(parts.filter(({ blocks }) => blocks.length > 0));
    }
  }

  #recordsPerCall(): number {
    const { arena, group, lookup } = this.#options;
    const bytes = arena.sourceBytes(group.group) * this.#ratio;
    const most = Math.min(FETCH_WINDOW_BYTES / bytes, FETCH_WINDOW_KEYS / lookup.shards);
    return Math.max(1, Math.floor(most));
  }

  /** Gives slots to the blocks of a record that no call brings yet; blocks without room are computed. */
  #take(record: number, vault: number): Block[] {
    const { group, longer, lookup, arena } = this.#options;
    const { cache } = arena;
    const end = Math.min(group.hashes.length / HASH_BYTES, (record + 1) * this.#ratio);
    const first = Math.max(group.from, record * this.#ratio);
    this.#isOver[record] = 1;
    // The same share as for other early fetches of hand-offs.
    const room = Math.floor(cache.room - cache.capacity * HANDOFF_ROOM_SHARE);
    if (first >= end || room < end - first) return [];
    const run = {
      namespace: lookup.namespace,
      recordClass: group.class,
      group: group.group,
      hashes: Buffer.from(group.hashes.subarray(first * HASH_BYTES, end * HASH_BYTES)),
      parent: Buffer.from(first === 0 ? Buffer.alloc(HASH_BYTES) : hashAt(group, first - 1)),
      first,
      tenant: group.tenant,
      vault,
      second: null,
      archived: 0,
      source: null,
      cutFrom: longer.namespace,
    };
    const blocks = Array.from({ length: end - first }, (_, index) => {
      const block = cache.use(this.#keyOf(first + index), run, index, this);
      this.#used.push(block);
      return block;
    });
    const wanted = blocks.filter(({ state, run: of }) => state === "wanted" && of === run);
    const count = cache.startFetch(wanted);
    for (const block of wanted.slice(count)) cache.fail(block, "no_slot");
    return wanted.slice(0, count);
  }

  /** Calls each vault once, then cuts all records that came. */
  async #bring(parts: readonly Part[]): Promise<void> {
    if (parts.length === 0) return;
    const { lookup, arena } = this.#options;
    const { shards, counters, logger } = lookup;
    const ids = [...outboxReserve(parts.length * shards)];
    // Incomplete until a call says otherwise.
    let statuses: Uint8Array = new Uint8Array(ids.length).fill(ItemStatus.INCOMPLETE);
    const { priority } = arena.recut;
    priority.begin();
    try {
      const vaults = [...new Set(parts.map(({ vault }) => vault))];
      await Promise.all(vaults.map((vault) => this.#collect(vault, parts, ids, statuses)));
      statuses = await this.#cut(parts, ids, statuses);
    } catch (error) {
      logger.warn({ err: toTierkvError(error) }, "records of longer blocks were not cut");
    } finally {
      priority.end();
      for (const id of ids) outboxDrop(id);
      for (const [index, { blocks }] of parts.entries()) {
        const of = statuses.subarray(index * shards, (index + 1) * shards);
        const isWhole = of.every((status) => status === ItemStatus.ACCEPTED);
        counters.add(isWhole ? "handoff_records_cut" : "handoff_records_uncut");
        for (const block of blocks) this.#end(block, isWhole, of);
      }
    }
  }

  #end(block: Block, isWhole: boolean, statuses: Uint8Array): void {
    const { arena, lookup } = this.#options;
    if (block.state !== "fetching") return;
    if (isWhole) {
      arena.cache.place(block);
      lookup.counters.add("handoff_blocks_cut");
      return;
    }
    const isBad = statuses.includes(ItemStatus.BAD_RECORD);
    arena.cache.fail(block, isBad ? "bad_record" : "end_of_hit");
  }

  /** Fetches the records of one vault and notes their statuses. Never rejects. */
  async #collect(
    vault: number,
    parts: readonly Part[],
    ids: readonly number[],
    statuses: Uint8Array,
  ): Promise<void> {
    const { group, longer, lookup, arena } = this.#options;
    const { counters, logger } = lookup;
    const client = arena.recut.vaults[group.class][vault];
    if (client?.collect === undefined) return;
    const places = this.#places(parts).filter(({ part }) => part.vault === vault);
    const keys = Buffer.concat(places.map(({ key }) => key));
    try {
      const named = places.map(({ place }) => ids[place] ?? 0);
      const { callMs } = arena.recut;
      const found = await client.collect(longer.namespace, keys, named, callMs, group.tenant);
      counters.add("bytes_fetched", found.bytes);
      for (const [index, { place, key }] of places.entries()) {
        const status = found.statuses[index] ?? ItemStatus.INCOMPLETE;
        statuses[place] = status;
        if (status !== ItemStatus.BAD_RECORD) continue;
        counters.add("bad_records");
        const reason = found.reason ?? "the record is damaged";
        // Sound records do not wait for it.
        client
          .report(longer.namespace, key, reason, CALL_TIMEOUT_MS, group.tenant)
          .catch((error: unknown) => logger.debug({ err: error }, "the report did not arrive"));
      }
    } catch (error) {
      counters.add("vault_errors");
      logger.debug({ err: toTierkvError(error), vault: client.address }, "fetch failed");
    }
  }

  /** Cuts the records that came, in the core; returns all statuses, unchanged for the others. */
  async #cut(
    parts: readonly Part[],
    ids: readonly number[],
    statuses: Uint8Array,
  ): Promise<Uint8Array> {
    const { group, longer, lookup, arena } = this.#options;
    const { shards } = lookup;
    const came = this.#places(parts).filter(({ place }) => statuses[place] === ItemStatus.ACCEPTED);
    const pieces = came.flatMap(({ part, shard }, at) =>
      part.blocks.flatMap((block) => {
        const pair = (block.leaseAt + shard) * 2;
        const first = (block.at - part.at * this.#ratio) * (longer.tokens / this.#ratio);
        return [at, first, block.leases[pair] ?? 0, block.leases[pair + 1] ?? 0];
      }),
    );
    const geometry = Array.from(
      { length: shards },
      (_, shard) => arena.groupAt(group.group, shard).geometry,
    );
    const made = await recutSlots(
      arena.recut.arena,
      arena.recut.fidelityOf(lookup.namespace),
      longer.namespace,
      Buffer.concat(came.map(({ key }) => key)),
      longer.tokens,
      Uint32Array.from(came.flatMap(({ shard, place }) => [geometry[shard] ?? 0, ids[place] ?? 0])),
      Uint32Array.from(pieces),
    );
    const ended = Uint8Array.from(statuses);
    for (const [index, { place }] of came.entries()) ended[place] = made[index] ?? 0;
    return ended;
  }

  /** Returns every shard of every record, with its key and the place of its status. */
  #places(parts: readonly Part[]): { part: Part; shard: number; place: number; key: Buffer }[] {
    const { group, longer, lookup } = this.#options;
    return parts.flatMap((part, at) =>
      Array.from({ length: lookup.shards }, (_, shard) => ({
        part,
        shard,
        place: at * lookup.shards + shard,
        key: packKeys(hashAt(longer, part.at), group.group, shard),
      })),
    );
  }
}
