// Owns saved blocks between arena slots and records: batches per engine, rank and group, encoded when sent, or ahead where slots run short.
import { packKeys } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { failpoint } from "../../base/failpoint.ts";
import { blockKey, recordKey } from "../../base/key-text.ts";
import { SAVE_BATCH_BYTES, SAVE_DRAIN_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { becomes } from "../../base/time.ts";
import type { Takes } from "../../client/flush-feed.ts";
import type { EncodePool } from "../../codec/pool.ts";
import type { OutboxRecord } from "../../codec/record.ts";
import type { EncodeTask } from "../../codec/task.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { DropReason } from "../socket/reasons.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { Pools } from "../vaults/pools.ts";
import type { Quarantine } from "../vaults/quarantine.ts";
import type { CodecChoice } from "./codec-choice.ts";
import { isVariable } from "./codecs.ts";
import { DecodedBlocks } from "./decoded.ts";
import { destinationsOf } from "./destinations.ts";
import type { Destinations } from "./destinations.ts";
import { ownHashes, takeBatch } from "./pending.ts";
import type { Pending } from "./pending.ts";
import { completed, recallAll } from "./recall.ts";
import type { Wanted } from "./recall.ts";
import { SaveRoom } from "./room.ts";
import type { SaveSource } from "./source.ts";
import { along } from "./store-queue.ts";
import type { OutgoingRecord, StoreQueue } from "./store-queue.ts";

export interface SaverOptions {
  pool: EncodePool;
  pools: Pools;
  stores: Readonly<Record<RecordClass, readonly StoreQueue[]>>;
  codecs: CodecChoice;
  outcomes: BlockOutcomes;
  quarantine: Quarantine;
  counters: SidecarCounters;
  logger: Logger;
}

/** A block that an engine hands over. */
interface Offered extends Pick<Destinations, "refusal"> {
  source: SaveSource;
  namespace: Namespace | null;
  name: string | null;
  item: SaveItem;
  /** False where no restore of it could ever win. */
  isWorth: boolean;
  /** Where it goes first. */
  store: StoreQueue | undefined;
}

/** How a batch of blocks becomes records: by the lanes that send them, or ahead of them, which takes memory. */
interface Passed {
  isDeferred: boolean;
  isAhead: boolean;
}

/** Blocks of one source that go to one vault. */
interface Queue {
  readonly source: SaveSource;
  readonly store: StoreQueue;
  pending: Pending[];
  isBusy: boolean;
  /** Slots whose blocks a lane has yet to encode and send. */
  deferred: number;
  /** True once the engine is gone: its blocks no longer wait for room. */
  isLeaving: boolean;
}

export class Saver {
  readonly room: SaveRoom = new SaveRoom();
  readonly decoded: DecodedBlocks = new DecodedBlocks();
  readonly #options: SaverOptions;
  /** Longest without a turn first. */
  readonly #queues = new Set<Queue>();
  readonly #queuesOf = new Map<SaveSource, Queue[]>();
  /** Names of blocks from being taken to being stored or dropped: a block is saved once at a time. */
  readonly #inFlight = new Set<string>();
  /** Queues about to get deferred records, which will take their room. */
  readonly #deferring = new Set<StoreQueue>();
  /** Decoded bytes of all blocks in flight. */
  #bytes = 0;

  constructor(options: SaverOptions) {
    this.#options = options;
    for (const store of this.#stores) this.watch(store);
  }

  /** Sends to a vault's queue as soon as it has room, also to a vault that joins later. */
  watch(store: StoreQueue): void {
    store.whenRoom(() => this.#pumpAll());
  }

  get #stores(): StoreQueue[] {
    const { kv, ssm } = this.#options.stores;
    return [...kv, ...ssm];
  }

  get queuedBytes(): number {
    return this.#bytes;
  }

  get queuedBlocks(): number {
    return this.#inFlight.size;
  }

  /** Tells the vaults which model a namespace belongs to. */
  nameModel(namespace: Namespace, model: string): void {
    for (const store of this.#stores) store.nameModel(namespace, model);
  }

  /** Returns null when the model is not known. */
  modelOf(recordClass: RecordClass, namespace: Buffer): string | null {
    return this.#options.stores[recordClass][0]?.modelOf(namespace) ?? null;
  }

  /** Takes blocks whose slots the sidecar owns. Blocks that cannot be saved now are dropped and counted; none waits. */
  accept(source: SaveSource, namespace: Namespace | null, items: readonly SaveItem[]): void {
    const isWorth = source.isWorthSaving();
    let dropped = 0;
    for (const item of items) {
      const key = packKeys(item.hash, source.group, source.shard);
      const name = namespace === null ? null : recordKey(namespace, key);
      const { destinations, refusal } = destinationsOf(source, item, this.#options);
      const store = destinations[0]?.store;
      const reason = this.#refusal({ source, namespace, name, item, isWorth, refusal, store });
      if (reason !== null || name === null || namespace === null || store === undefined) {
        this.#dropped(namespace, key, reason ?? "no_namespace");
        source.finish(item.slot, item.generation);
        dropped += 1;
        continue;
      }
      this.#inFlight.add(name);
      this.#bytes += source.sourceBytes;
      const own = { ...item, ...ownHashes(key, item) };
      const isDecoded = this.decoded.has(blockKey(namespace, source.group, item.hash));
      const next = { item: own, key, name, namespace, destinations, isDecoded };
      this.#queueOf(source, store).pending.push(next);
    }
    if (dropped > 0) source.onBatch();
    for (const queue of this.#queuesOf.get(source) ?? []) this.#pump(queue);
  }

  /**
   * Drops the waiting blocks of a class that `takes` names, for one vault or all, and returns how many. The vault itself refuses
   * records already under way, because they were handed over before the flush.
   */
  flush(recordClass: RecordClass, takes: Takes, vault: number | null = null): number {
    const all = this.#options.stores[recordClass];
    const stores = vault === null ? all : all.slice(vault, vault + 1);
    let count = 0;
    for (const store of stores) count += store.flush(takes);
    for (const queue of this.#queues) {
      const { source } = queue;
      if (!stores.includes(queue.store)) continue;
      const gone = queue.pending.filter(({ namespace, item }) => takes(namespace, item.tenant));
      if (gone.length === 0) continue;
      queue.pending = queue.pending.filter(({ namespace, item }) => !takes(namespace, item.tenant));
      for (const { item, key, name, namespace } of gone) {
        this.#dropped(namespace, key, "flushed");
        source.finish(item.slot, item.generation);
        this.#forget(source, name);
      }
      source.onBatch();
      count += gone.length;
    }
    return count;
  }

  /** Resolves when no slot of `source` is in use, or after SAVE_DRAIN_MS, when the rest is dropped. */
  async settle(source: SaveSource): Promise<void> {
    const queues = this.#queuesOf.get(source) ?? [];
    for (const queue of queues) {
      queue.isLeaving = true;
      this.#pump(queue);
    }
    const isOpen = (queue: Queue): boolean =>
      queue.pending.length > 0 || queue.isBusy || queue.deferred > 0;
    if (!(await becomes(() => !queues.some(isOpen), SAVE_DRAIN_MS, SETTLE_POLL_MS))) {
      const left = queues.flatMap(({ pending }) => pending.splice(0));
      for (const { item, key, name, namespace } of left) {
        this.#dropped(namespace, key, "shutdown");
        source.finish(item.slot, item.generation);
        this.#forget(source, name);
      }
    }
    for (const queue of queues) this.#queues.delete(queue);
    this.#queuesOf.delete(source);
  }

  /** Resolves when every save is stored or dropped, or after SAVE_DRAIN_MS. */
  async drain(): Promise<void> {
    if (!(await becomes(() => this.#inFlight.size === 0, SAVE_DRAIN_MS, SETTLE_POLL_MS))) {
      this.#options.logger.warn({ blocks: this.#inFlight.size }, "stopping with saves unfinished");
    }
  }

  #queueOf(source: SaveSource, store: StoreQueue): Queue {
    const queues = this.#queuesOf.get(source) ?? [];
    const known = queues.find((queue) => queue.store === store);
    if (known !== undefined) return known;
    const queue = { source, store, pending: [], isBusy: false, deferred: 0, isLeaving: false };
    this.#queuesOf.set(source, [...queues, queue]);
    this.#queues.add(queue);
    return queue;
  }

  #dropped(namespace: Namespace | null, key: Buffer, reason: DropReason | "duplicate"): void {
    this.#options.counters.add(`dropped_${reason}`);
    if (namespace === null || reason === "duplicate") return;
    this.#options.outcomes.dropped(namespace, key, reason);
  }

  #refusal(offered: Offered): DropReason | "duplicate" | null {
    const { source, namespace, name, item, isWorth, refusal, store } = offered;
    if (name === null || namespace === null) return "no_namespace";
    if (this.#options.quarantine.has(namespace)) return "quarantined";
    if (refusal !== null || store === undefined) return refusal ?? "no_vault";
    if (this.#inFlight.has(name)) return "duplicate";
    if (!isWorth) return "slow_link";
    return this.#hasRoomFor(source.sourceBytes, store, item.endTokens) ? null : "queue_full";
  }

  /** Makes room: copies of records held elsewhere go first, then the deepest block, which is useless without the blocks before it. */
  #hasRoomFor(bytes: number, store: StoreQueue, endTokens: number): boolean {
    const isFull = (): boolean => this.#bytes + bytes > this.room.bytesMax;
    for (const other of this.#stores) while (isFull() && other.shedCopy());
    if (!isFull()) return true;
    return store.shedDeeperThan(endTokens, bytes) || this.#shed(store, endTokens, bytes);
  }

  /** Drops the deepest block that waits in its slot, if it is deeper and no smaller; false when there is none. */
  #shed(store: StoreQueue, endTokens: number, bytes: number): boolean {
    const queues = [...this.#queues].filter((queue) => queue.store === store);
    const waiting = queues.flatMap((queue) => queue.pending.map((next) => ({ queue, next })));
    const [deepest] = waiting
      .filter(
        ({ queue, next }) => next.item.endTokens > endTokens && queue.source.sourceBytes >= bytes,
      )
      .toSorted((a, b) => b.next.item.endTokens - a.next.item.endTokens);
    if (deepest === undefined) return false;
    const { queue, next } = deepest;
    queue.pending.splice(queue.pending.indexOf(next), 1);
    this.#dropped(next.namespace, next.key, "shed");
    queue.source.finish(next.item.slot, next.item.generation);
    this.#forget(queue.source, next.name);
    return true;
  }

  #pumpAll(): void {
    for (const queue of this.#queues) this.#pump(queue);
  }

  /** True where the worker is short of slots and little is encoded yet, or the engine leaves. Otherwise blocks wait in their slots. */
  #mayEncode({ isLeaving, source }: Queue): boolean {
    return isLeaving || (source.isShort() && source.sourceBytes <= this.room.aheadBytes);
  }

  /** True for records that are sent twice or have varying length: they are encoded before they are sent. */
  #isMadeAhead(
    namespace: Namespace,
    { recordClass, geometry }: SaveSource,
    { view }: StoreQueue,
  ): boolean {
    const { pools, codecs } = this.#options;
    const { isDouble, local } = pools[recordClass];
    const isAlone = !isDouble && local === NO_VAULT;
    return !isAlone || isVariable(codecs.idFor(namespace, recordClass, geometry, [view]));
  }

  /** Defers as many records as a lane can take now; the rest waits in its slots, or is encoded ahead. */
  #pump(queue: Queue): void {
    const [first] = queue.pending;
    if (queue.isBusy || first === undefined) return;
    const { source, store } = queue;
    const isMadeAhead = this.#isMadeAhead(first.namespace, source, store);
    const isDeferred = !isMadeAhead && store.hasRoom && !this.#deferring.has(store);
    if (!isMadeAhead && !isDeferred && !this.#mayEncode(queue)) return;
    queue.isBusy = true;
    if (isDeferred) this.#deferring.add(store);
    if (this.#queues.delete(queue)) this.#queues.add(queue);
    const how = { isDeferred, isAhead: !isDeferred && !isMadeAhead };
    const batch = takeBatch(queue.pending, source.sourceBytes, this.#mostOf(queue, how));
    this.#pass(queue, batch, how)
      .catch((error: unknown) => this.#options.logger.error({ err: error }, "a save failed"))
      .finally(() => {
        queue.isBusy = false;
        if (isDeferred) this.#deferring.delete(store);
        this.#pumpAll();
      });
  }

  /** Returns the most bytes of a queue's next batch. */
  #mostOf({ store, isLeaving }: Queue, { isDeferred, isAhead }: Passed): number {
    if (isDeferred) return store.batchBytes;
    const isBounded = isAhead && !isLeaving;
    return isBounded ? Math.min(SAVE_BATCH_BYTES, this.room.aheadBytes) : SAVE_BATCH_BYTES;
  }

  /** Encodes or defers one batch and passes the records on. Slots are free once their records are encoded, or if deferred, sent. */
  async #pass(queue: Queue, batch: readonly Pending[], how: Passed): Promise<void> {
    const { pool, logger } = this.#options;
    const { source } = queue;
    let { isDeferred } = how;
    const aheadBytes = how.isAhead ? source.sourceBytes : 0;
    this.room.made(aheadBytes * batch.length);
    const records: OutboxRecord[] = [];
    try {
      await failpoint("sidecar.save.taken");
      const encode = async (left: readonly Pending[]): Promise<OutboxRecord[]> => {
        const task = await this.#task(source, left);
        isDeferred &&= !isVariable(task.codec);
        return isDeferred ? pool.defer(task) : await pool.encode(task);
      };
      const recalled = await recallAll(toRecall(batch));
      records.push(...(await completed(batch, recalled, encode)));
    } catch (error) {
      logger.warn({ err: toTierkvError(error) }, "a batch of saves was not encoded");
    }
    const leave = (): void => {
      for (const { item } of batch) source.finish(item.slot, item.generation);
      source.onBatch();
    };
    if (isDeferred && records.length > 0) {
      let open = batch.length;
      queue.deferred += open;
      this.#store(queue, batch, records, () => {
        queue.deferred -= 1;
        open -= 1;
        if (open === 0) leave();
      });
    } else {
      leave();
      if (records.length > 0) this.#options.counters.add("blocks_encoded_ahead", records.length);
      this.room.made(-aheadBytes * (batch.length - records.length));
      this.#store(queue, batch, records, () => this.room.made(-aheadBytes));
    }
  }

  async #task(source: SaveSource, batch: readonly Pending[]): Promise<EncodeTask> {
    const { codecs, pool } = this.#options;
    const { arena, geometry, recordClass, shard, shardCount } = source;
    const [first] = batch;
    if (first === undefined) throw new TierkvError("INTERNAL", { reason: "a batch of no blocks" });
    const { namespace } = first;
    await codecs.weigh(pool, namespace, recordClass, { ...source, ...first.item });
    const views = batch.flatMap(({ destinations }) => destinations.map(({ store }) => store.view));
    return {
      arena,
      geometry,
      codec: codecs[first.isDecoded ? "idForRestored" : "idFor"](namespace, recordClass, geometry, [
        ...new Set(views),
      ]),
      fidelity: codecs.fidelityOf(namespace),
      namespace,
      shard,
      shardCount,
      blocks: batch.map(({ item }) => item),
    };
  }

  /** Queues the records at their store; `onEnd` is called once per record. */
  #store(
    { source, store }: Queue,
    batch: readonly Pending[],
    records: readonly OutboxRecord[],
    onEnd: () => void,
  ): void {
    const { sourceBytes } = source;
    const outgoing: OutgoingRecord[] = [];
    for (const [index, { item, key, name, namespace, destinations }] of batch.entries()) {
      const record = records[index];
      if (record === undefined) {
        this.#dropped(namespace, key, "encode_failed");
        this.#forget(source, name);
        continue;
      }
      const { endTokens, tenant } = item;
      const named = { namespace, tenant, key, endTokens, record, sourceBytes };
      outgoing.push(
        along(named, destinations, () => {
          this.#forget(source, name);
          onEnd();
        }),
      );
    }
    store.add(outgoing);
  }

  #forget(source: SaveSource, name: string): void {
    if (this.#inFlight.delete(name)) this.#bytes -= source.sourceBytes;
  }
}

/** Returns what decoded blocks may be recalled from. A vault alone is not asked, because it keeps the record it has. */
function toRecall(batch: readonly Pending[]): Wanted[] {
  return batch.map(({ namespace, key, item: { tenant }, isDecoded, destinations }) => {
    const stores = destinations.map(({ store }) => store);
    return { namespace, tenant, key, stores: isDecoded && stores.length > 1 ? stores : [] };
  });
}

const SETTLE_POLL_MS = 5;
