// Owns the re-offering of blocks that a vault lost or evicted and an arena still holds: in idle time, prefix first, bounded.
import { hasBit, hashAt, keyCount, KeyPacker, packKeys } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import {
  AGAIN_ASK_MS,
  AGAIN_BYTES_PER_S,
  AGAIN_EVICTED_SHARE,
  AGAIN_KEYS,
  AGAIN_LINK_SHARE,
  AGAIN_PAUSE_MS,
} from "../../base/limits/again.ts";
import { CALL_TIMEOUT_MS, SAVE_BATCH_ITEMS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import type { ArenaId } from "../../base/native.ts";
import { jitterMs, nowMs, sleep } from "../../base/time.ts";
import { UNCOUNTED } from "../../client/source.ts";
import type { BlockStore } from "../../client/source.ts";
import { offered } from "../../client/vault/found.ts";
import type { EncodePool } from "../../codec/pool.ts";
import type { OutboxRecord } from "../../codec/record.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Block } from "../slots/block.ts";
import type { Group } from "../slots/groups.ts";
import type { Holding } from "../slots/holding.ts";
import type { VaultClients } from "../vaults/pools.ts";
import type { CodecChoice } from "./codec-choice.ts";
import { completed, recallAll } from "./recall.ts";
import type { Recalled } from "./recall.ts";
import type { OutgoingRecord, StoreQueue } from "./store-queue.ts";

/** The blocks in one engine's arena. */
export interface Copies {
  readonly arena: ArenaId;
  readonly cache: BlockCache;
  readonly shards: number;
  readonly namespace: Namespace;
  groupAt(group: number, shard: number): Group;
  /** False while a block could not be restored faster than computed. */
  isWorthSaving(): boolean;
}

export interface ReofferOptions {
  vaults: VaultClients;
  /** Returns false for a vault that has left its pool: it is offered nothing. */
  isMember(client: BlockStore): boolean;
  stores: Readonly<Record<RecordClass, readonly StoreQueue[]>>;
  pool: EncodePool;
  codecs: CodecChoice;
  /** Returns the blocks of every engine that has an arena and a name. */
  copies(): Copies[];
  /** True while nothing is restored or saved. */
  isIdle(): boolean;
  counters: SidecarCounters;
  logger: Logger;
}

/** One pass over one vault. */
interface Look {
  /** Index of the vault in its class. */
  readonly vault: number;
  readonly client: BlockStore;
  readonly store: StoreQueue;
  readonly epoch: number;
  /** Bytes that may still be offered: into free room, and in place of other records. null: not known yet. */
  room: { free: number; evicted: number } | null;
}

/** Looks at all vaults until closed; a failed look is tried again at the next, and no caller waits. */
export class Reoffer {
  readonly #options: ReofferOptions;
  readonly #closing = new AbortController();

  constructor(options: ReofferOptions) {
    this.#options = options;
    // Ends on close.
    void this.#run();
  }

  close(): void {
    this.#closing.abort();
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    const { vaults, logger } = this.#options;
    const { kv, ssm } = vaults;
    while (!signal.aborted) {
      await sleep(jitterMs(AGAIN_PAUSE_MS / 2, AGAIN_PAUSE_MS), signal).catch(() => {});
      for (const [vault, client] of [...kv.entries(), ...ssm.entries()]) {
        const store = this.#options.stores[client.name][vault];
        if (store === undefined || client.epoch === null) continue;
        if (!this.#options.isMember(client)) continue;
        const look = { vault, client, store, epoch: client.epoch, room: null };
        await this.#look(look).catch((error: unknown) => {
          if (signal.aborted) return;
          const err = toTierkvError(error);
          logger.debug({ err, vault: client.address }, "copies were not offered");
        });
      }
    }
  }

  /** False when other work goes on, or the vault has changed since the look began. */
  #mayGoOn({ client, epoch }: Look): boolean {
    const isThere = client.refusal === null && client.epoch === epoch;
    return isThere && !this.#closing.signal.aborted && this.#options.isIdle();
  }

  async #look(look: Look): Promise<void> {
    for (const copies of this.#options.copies()) {
      if (!copies.isWorthSaving()) continue;
      const { cache, namespace, shards } = copies;
      const doubted = [...cache.copies(look.client.name, namespace)]
        .filter((block) => isDoubted(holdingOf(block, look), look.epoch))
        .toSorted((a, b) => endTokens(a, copies) - endTokens(b, copies));
      const most = Math.max(1, Math.floor(AGAIN_KEYS / shards));
      for (let at = 0; at < doubted.length; at += most) {
        if (!this.#mayGoOn(look)) return;
        const missing = await this.#ask(look, copies, doubted.slice(at, at + most));
        if (!(await this.#offerAll(look, copies, missing))) return;
      }
    }
  }

  /** Asks the vault, and returns the blocks it does not hold. */
  async #ask(
    look: Look,
    { namespace, shards }: Pick<Copies, "namespace" | "shards">,
    blocks: readonly Block[],
  ): Promise<Block[]> {
    const { client, epoch } = look;
    const [first] = blocks;
    const others = blocks.filter(({ run }) => run.tenant !== first?.run.tenant);
    if (others.length > 0) {
      const own = blocks.filter(({ run }) => run.tenant === first?.run.tenant);
      const missing = await this.#ask(look, { namespace, shards }, own);
      return [...missing, ...(await this.#ask(look, { namespace, shards }, others))];
    }
    const packer = new KeyPacker(blocks.length * shards);
    for (const { hashes, index, group } of blocks) packer.add(hashes, index, group, shards);
    const { keys } = packer;
    const purpose = { ...UNCOUNTED, tenant: first?.run.tenant ?? 0 };
    const offers = await client.find(namespace, keys, CALL_TIMEOUT_MS, purpose);
    const present = offered(offers, keyCount(keys));
    const missing: Block[] = [];
    for (const [index, block] of blocks.entries()) {
      let held = 0;
      while (held < shards && hasBit(present, index * shards + held)) held += 1;
      if (held === shards) holdingOf(block, look)?.noteHeld(epoch);
      else missing.push(block);
    }
    return missing;
  }

  /** Offers blocks in paced batches; false when the look is over. */
  async #offerAll(look: Look, copies: Copies, missing: readonly Block[]): Promise<boolean> {
    this.#options.counters.add("copies_missing", missing.length);
    const left = missing.filter((block) => holdingOf(block, look)?.offeredEpoch !== look.epoch);
    while (left.length > 0) {
      if (!this.#mayGoOn(look)) return false;
      look.room ??= await roomOf(look.client);
      const batch = takeBatch(left, look, copies);
      if (batch.length === 0) continue;
      const startedMs = nowMs();
      const bytes = await this.#offer(look, copies, batch);
      const tookMs = nowMs() - startedMs;
      const sharedMs = tookMs / AGAIN_LINK_SHARE - tookMs;
      const pacedMs = (bytes / AGAIN_BYTES_PER_S) * 1000;
      await sleep(Math.max(sharedMs, pacedMs), this.#closing.signal);
    }
    return true;
  }

  /** Offers blocks of one group and tenant, and returns the bytes of their records. */
  async #offer(look: Look, copies: Copies, batch: readonly Block[]): Promise<number> {
    const { counters } = this.#options;
    const { flushed } = look.store;
    const lent = batch.filter((block) => copies.cache.lend(block));
    const held = new Map(lent.map((block) => [block, 0]));
    const ends: Promise<void>[] = [];
    let bytes = 0;
    try {
      for (let shard = 0; shard < copies.shards && lent.length > 0; shard += 1) {
        const recalled = await this.#recall(look, copies, lent, shard);
        const records = await completed(lent, recalled, (left) =>
          this.#encode(look, copies, left, shard),
        );
        const outgoing: OutgoingRecord[] = [];
        for (const [index, record] of records.entries()) {
          const block = lent[index];
          if (block === undefined) continue;
          bytes += record.bytes;
          let end = (): void => {};
          ends.push(
            new Promise((resolve) => {
              end = resolve;
            }),
          );
          outgoing.push({
            namespace: copies.namespace,
            tenant: block.run.tenant,
            flushed,
            key: keyOf(block, shard),
            record,
            sourceBytes: copies.groupAt(block.group, shard).sourceBytes,
            endTokens: endTokens(block, copies),
            isAgain: true,
            onEnd: (isHeld) => {
              if (isHeld) held.set(block, (held.get(block) ?? 0) + 1);
              end();
            },
          });
        }
        look.store.add(outgoing);
      }
    } finally {
      for (const block of lent) copies.cache.takeBack(block);
    }
    await Promise.all(ends);
    for (const [block, count] of held) {
      const holding = holdingOf(block, look);
      if (count < copies.shards || holding === null) continue;
      holding.noteHeld(look.epoch);
      holding.offeredEpoch = look.epoch;
      counters.add("copies_offered");
    }
    return bytes;
  }

  /** Gives the records that lossy blocks came with, as far as their other vaults have them. */
  #recall(
    look: Look,
    { namespace }: Copies,
    blocks: readonly Block[],
    shard: number,
  ): Promise<Recalled> {
    const { stores, codecs } = this.#options;
    const { name } = look.client;
    const isLossy = codecs.isLossy(namespace, name);
    const wanted = blocks.map((block) => {
      const other = isLossy ? otherVault(block, look) : null;
      const store = other === null ? undefined : stores[name][other];
      const { tenant } = block.run;
      const asked = store === undefined ? [] : [store];
      return { namespace, tenant, key: keyOf(block, shard), stores: asked };
    });
    return recallAll(wanted);
  }

  #encode(
    { store }: Look,
    copies: Copies,
    blocks: readonly Block[],
    shard: number,
  ): Promise<OutboxRecord[]> {
    const { pool, codecs } = this.#options;
    const { arena, namespace, shards, groupAt } = copies;
    const [{ group, recordClass } = NO_BLOCK] = blocks;
    const { geometry } = groupAt(group, shard);
    return pool.encode({
      arena,
      geometry,
      codec: codecs.idForRestored(namespace, recordClass, geometry, [store.view]),
      fidelity: codecs.fidelityOf(namespace),
      namespace,
      shard,
      shardCount: shards,
      blocks: blocks.map((block) => {
        const pair = (block.leaseAt + shard) * 2;
        return {
          slot: block.leases[pair] ?? 0,
          generation: block.leases[pair + 1] ?? 0,
          hash: hashAt(block, block.index),
          parent: block.index === 0 ? block.run.parent : hashAt(block, block.index - 1),
          endTokens: endTokens(block, copies),
        };
      }),
    });
  }
}

const NO_BLOCK = { group: 0, recordClass: "kv" } as const;

/** Returns what is known of a block at this vault; null when the vault is neither its owner nor its second. */
function holdingOf(block: Block, { vault }: Pick<Look, "vault">): Holding | null {
  if (block.owner === vault) return block;
  return block.second?.vault === vault ? block.second : null;
}

/** Returns the vault, beside the one looked at, that has the block or is to have it; null: there is none. */
function otherVault(block: Block, { vault }: Pick<Look, "vault">): number | null {
  return block.owner === vault ? (block.second?.vault ?? null) : block.owner;
}

function keyOf(block: Block, shard: number): Buffer {
  return packKeys(hashAt(block, block.index), block.group, shard);
}

/** True when it is not known whether the vault, in this epoch, holds the block. */
function isDoubted(holding: Holding | null, epoch: number): boolean {
  if (holding === null) return false;
  return holding.heldEpoch !== epoch || nowMs() - holding.heldMs > AGAIN_ASK_MS;
}

function endTokens({ at, group }: Block, { groupAt }: Copies): number {
  return (at + 1) * groupAt(group, 0).spec.tokens;
}

function bytesOf({ group }: Block, { shards, groupAt }: Copies): number {
  let bytes = 0;
  for (let shard = 0; shard < shards; shard += 1) bytes += groupAt(group, shard).recordBytesMax;
  return bytes;
}

/** True when the vault held the block in its present epoch. */
function wasEvicted(block: Block, look: Look): boolean {
  return holdingOf(block, look)?.heldEpoch === look.epoch;
}

async function roomOf(client: BlockStore): Promise<NonNullable<Look["room"]>> {
  // Without statistics nothing says that there is room.
  const stats = await client.stats?.(CALL_TIMEOUT_MS);
  if (stats === undefined) return { free: 0, evicted: 0 };
  const { maxBytes, usedBytes, reservedBytes, disk } = stats;
  // A vault that still recovers may hold blocks it does not know yet.
  if (disk?.recovering === true) return { free: 0, evicted: 0 };
  const free = Math.max(0, maxBytes - usedBytes - reservedBytes);
  return { free, evicted: maxBytes * AGAIN_EVICTED_SHARE };
}

/**
 * Takes the next blocks of one group and tenant off `left`, as many as one call carries. Blocks lost with the vault's memory get
 * only free room, because newer blocks took the rest. Blocks that the vault evicted may displace a little, once per use.
 */
function takeBatch(left: Block[], look: Look, copies: Copies): Block[] {
  const { room, store } = look;
  const batch: Block[] = [];
  let total = 0;
  for (let next = left[0]; next !== undefined && room !== null; next = left[0]) {
    const [first = next] = batch;
    const bytes = bytesOf(next, copies);
    const isOther = next.group !== first.group || next.run.tenant !== first.run.tenant;
    const isFull = total + bytes > store.batchBytes || batch.length === SAVE_BATCH_ITEMS;
    if (batch.length > 0 && (isOther || isFull)) break;
    left.shift();
    const from = wasEvicted(next, look) && room.free < bytes ? "evicted" : "free";
    if (room[from] < bytes) continue;
    room[from] -= bytes;
    total += bytes;
    batch.push(next);
  }
  return batch;
}
