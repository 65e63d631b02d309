// Owns the path of saved blocks from arena slots to records: batches by engine, rank and group, encoded by the lane that sends them (deferred), or ahead where slots run short.
import { packKeys } from "../../block.ts";
import type { Namespace, RecordClass } from "../../block.ts";
import type { Takes } from "../../client/flush-feed.ts";
import type { EncodePool } from "../../codec/pool.ts";
import type { OutboxRecord } from "../../codec/record.ts";
import { packBlocks } from "../../codec/task.ts";
import type { EncodeTask } from "../../codec/task.ts";
import { toTierkvError } from "../../errors.ts";
import { failpoint } from "../../failpoint.ts";
import { recordKey } from "../../key-text.ts";
import { SAVE_AHEAD_BYTES_MAX, SAVE_BATCH_BYTES, SAVE_DRAIN_MS } from "../../limits/general.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { ArenaId, GeometryId } from "../../native.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import { nowMs, sleep } from "../../time.ts";
import type { SaveItem } from "../socket/messages.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { Pools } from "../vaults/pools.ts";
import type { Quarantine } from "../vaults/quarantine.ts";
import type { CodecChoice } from "./codec-choice.ts";
import { isVariable } from "./codecs.ts";
import { destinationsOf } from "./destinations.ts";
import { ParityMaker } from "./parity.ts";
import type { Member } from "./parity.ts";
import { ownHashes, takeBatch } from "./pending.ts";
import type { Pending } from "./pending.ts";
import { SaveRoom } from "./room.ts";
import { along } from "./store-queue.ts";
import type { OutgoingRecord, StoreQueue } from "./store-queue.ts";

/** Where blocks come from: one group of one rank of one engine. */
export interface SaveSource {
  readonly arena: ArenaId;
  readonly geometry: GeometryId;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly shard: number;
  readonly shardCount: number;
  /** Of one block. */
  readonly tokens: number;
  /** Decoded bytes of one block's shard. */
  readonly sourceBytes: number;
  /** The slot is of no use to the save any more; called exactly once per item taken. */
  finish(slot: number, generation: number): void;
  /** Slots of a batch were finished: good time to grant new ones. */
  onBatch(): void;
  /** Its worker may soon have no slot to save into. */
  isShort(): boolean;
  /** False while a block could not be restored faster than computed. */
  isWorthSaving(): boolean;
}

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

/** Blocks of one source on their way to one vault. */
interface Lane {
  readonly source: SaveSource;
  readonly store: StoreQueue;
  pending: Pending[];
  isBusy: boolean;
  /** Slots that wait until a lane has sent what is in them. */
  deferred: number;
  /** Its engine is gone: nothing waits for room any more. */
  isLeaving: boolean;
}

export class Saver {
  readonly room: SaveRoom = new SaveRoom();
  readonly #options: SaverOptions;
  /** Who had a turn longest ago first. */
  readonly #lanes = new Set<Lane>();
  readonly #lanesOf = new Map<SaveSource, Lane[]>();
  /** Keys between being taken and being stored or dropped: the same block is saved once. */
  readonly #inFlight = new Set<string>();
  /** Those that are about to be given a deferred record: what room they have is taken. */
  readonly #deferring = new Set<StoreQueue>();
  readonly #parity: ParityMaker;
  /** Decoded bytes of everything in flight, and parity records. */
  #bytes = 0;

  constructor(options: SaverOptions) {
    this.#options = options;
    this.#parity = new ParityMaker({ ...options, onBytes: (bytes) => (this.#bytes += bytes) });
    for (const store of this.#stores) this.watch(store);
  }

  /** A queue to a vault, also one that comes later. */
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

  /** Which model a namespace belongs to, for the vaults. */
  nameModel(namespace: Namespace, model: string): void {
    for (const store of this.#stores) store.nameModel(namespace, model);
  }

  /** null: not known. */
  modelOf(recordClass: RecordClass, namespace: Buffer): string | null {
    return this.#options.stores[recordClass][0]?.modelOf(namespace) ?? null;
  }

  /** Takes blocks whose slots the sidecar owns. What cannot be saved now is dropped and counted; nothing waits. */
  accept(source: SaveSource, namespace: Namespace | null, items: readonly SaveItem[]): void {
    const isWorth = source.isWorthSaving();
    let dropped = 0;
    for (const item of items) {
      const key = packKeys(item.hash, source.group, source.shard);
      const name = namespace === null ? null : recordKey(namespace, key);
      const { destinations, parity } = destinationsOf(source, item, this.#options);
      const store = destinations[0]?.store;
      const reason = this.#refusal(source, store, namespace, name, item, isWorth);
      if (reason !== null || name === null || namespace === null || store === undefined) {
        this.#dropped(namespace, key, reason ?? "no_namespace");
        source.finish(item.slot, item.generation);
        dropped += 1;
        continue;
      }
      this.#inFlight.add(name);
      this.#bytes += source.sourceBytes;
      const own = { ...item, ...ownHashes(key, item) };
      const next = { item: own, key, name, namespace, destinations, parity };
      this.#laneOf(source, store).pending.push(next);
    }
    if (dropped > 0) source.onBatch();
    for (const lane of this.#lanesOf.get(source) ?? []) this.#pump(lane);
  }

  /**
   * Drops what waits of a class, for one of its vaults or all, and `takes` names; how many. What is being made or sent already the
   * vault refuses, because it was handed over before the flush.
   */
  flush(recordClass: RecordClass, takes: Takes, vault: number | null = null): number {
    const all = this.#options.stores[recordClass];
    const stores = vault === null ? all : all.slice(vault, vault + 1);
    this.#parity.flush(recordClass, takes);
    let count = 0;
    for (const store of stores) count += store.flush(takes);
    for (const lane of this.#lanes) {
      const { source } = lane;
      if (!stores.includes(lane.store)) continue;
      const gone = lane.pending.filter(({ namespace, item }) => takes(namespace, item.tenant));
      if (gone.length === 0) continue;
      lane.pending = lane.pending.filter(({ namespace, item }) => !takes(namespace, item.tenant));
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

  /** Resolves when nothing of `source` is left in a slot, or when SAVE_DRAIN_MS have passed: then the rest is dropped. */
  async settle(source: SaveSource): Promise<void> {
    const untilMs = nowMs() + SAVE_DRAIN_MS;
    const lanes = this.#lanesOf.get(source) ?? [];
    for (const lane of lanes) {
      lane.isLeaving = true;
      this.#pump(lane);
    }
    const isOpen = (lane: Lane): boolean =>
      lane.pending.length > 0 || lane.isBusy || lane.deferred > 0;
    while (lanes.some(isOpen)) {
      if (nowMs() > untilMs) {
        for (const { item, name } of lanes.flatMap(({ pending }) => pending.splice(0))) {
          this.#options.counters.add("dropped_shutdown");
          source.finish(item.slot, item.generation);
          this.#forget(source, name);
        }
        break;
      }
      await sleep(SETTLE_POLL_MS);
    }
    for (const lane of lanes) this.#lanes.delete(lane);
    this.#lanesOf.delete(source);
  }

  /** Resolves when every save is stored or dropped, or when SAVE_DRAIN_MS have passed. */
  async drain(): Promise<void> {
    const untilMs = nowMs() + SAVE_DRAIN_MS;
    while (this.#inFlight.size > 0 && nowMs() < untilMs) await sleep(SETTLE_POLL_MS);
    if (this.#inFlight.size > 0) {
      this.#options.logger.warn({ blocks: this.#inFlight.size }, "stopping with saves unfinished");
    }
  }

  #laneOf(source: SaveSource, store: StoreQueue): Lane {
    const lanes = this.#lanesOf.get(source) ?? [];
    const known = lanes.find((lane) => lane.store === store);
    if (known !== undefined) return known;
    const lane = { source, store, pending: [], isBusy: false, deferred: 0, isLeaving: false };
    this.#lanesOf.set(source, [...lanes, lane]);
    this.#lanes.add(lane);
    return lane;
  }

  #dropped(namespace: Namespace | null, key: Buffer, reason: string): void {
    this.#options.counters.add(`dropped_${reason}`);
    if (namespace === null || reason === "duplicate") return;
    this.#options.outcomes.dropped(namespace, key, reason);
  }

  #refusal(
    source: SaveSource,
    store: StoreQueue | undefined,
    namespace: Namespace | null,
    name: string | null,
    { endTokens }: SaveItem,
    isWorth: boolean,
  ): string | null {
    if (name === null || namespace === null) return "no_namespace";
    if (this.#options.quarantine.has(namespace)) return "quarantined";
    if (store === undefined) return "no_vault";
    if (store.isDown) return "vault_down";
    if (store.isReadOnly) return "read_only";
    if (this.#inFlight.has(name)) return "duplicate";
    if (!isWorth) return "slow_link";
    return this.#hasRoomFor(source.sourceBytes, store, endTokens) ? null : "queue_full";
  }

  /** What lies elsewhere already goes first, then the deepest block: it is of no use without those before it. */
  #hasRoomFor(bytes: number, store: StoreQueue, endTokens: number): boolean {
    const isFull = (): boolean => this.#bytes + bytes > this.room.bytesMax;
    for (const other of this.#stores) while (isFull() && other.shedCopy());
    if (!isFull()) return true;
    return store.shedDeeperThan(endTokens, bytes) || this.#shed(store, endTokens, bytes);
  }

  /** Drops the deepest of the blocks that wait in their slots, where it is deeper and no smaller; false: there is none. */
  #shed(store: StoreQueue, endTokens: number, bytes: number): boolean {
    const lanes = [...this.#lanes].filter((lane) => lane.store === store);
    const waiting = lanes.flatMap((lane) => lane.pending.map((next) => ({ lane, next })));
    const [deepest] = waiting
      .filter(
        ({ lane, next }) => next.item.endTokens > endTokens && lane.source.sourceBytes >= bytes,
      )
      .toSorted((a, b) => b.next.item.endTokens - a.next.item.endTokens);
    if (deepest === undefined) return false;
    const { lane, next } = deepest;
    lane.pending.splice(lane.pending.indexOf(next), 1);
    this.#dropped(next.namespace, next.key, "shed");
    lane.source.finish(next.item.slot, next.item.generation);
    this.#forget(lane.source, next.name);
    return true;
  }

  #pumpAll(): void {
    for (const lane of this.#lanes) this.#pump(lane);
  }

  /** Where the worker has slots left, or enough is encoded, blocks wait in theirs: the engine's own cache keeps what has none. */
  #mayEncode(lane: Lane): boolean {
    return lane.isLeaving || (lane.source.isShort() && this.#bytes <= SAVE_AHEAD_BYTES_MAX);
  }

  /** A record that is sent twice, or is part of a parity record, is made once, and one of varying length is made before it is sent. */
  #isMadeAhead({ recordClass, geometry }: SaveSource, { way }: StoreQueue): boolean {
    const { pools, codecs } = this.#options;
    const { isDouble, width, local } = pools[recordClass];
    const isAlone = !isDouble && width === 0 && local === NO_VAULT;
    return !isAlone || isVariable(codecs.idFor(recordClass, geometry, [way]));
  }

  /** What a lane can take now goes as a deferred record; the rest waits in its slots, or is encoded ahead. */
  #pump(lane: Lane): void {
    if (lane.isBusy || lane.pending.length === 0) return;
    const { source, store } = lane;
    const isMadeAhead = this.#isMadeAhead(source, store);
    const isDeferred = !isMadeAhead && store.hasRoom && !this.#deferring.has(store);
    if (!isMadeAhead && !isDeferred && !this.#mayEncode(lane)) return;
    lane.isBusy = true;
    if (isDeferred) this.#deferring.add(store);
    if (this.#lanes.delete(lane)) this.#lanes.add(lane);
    const most = isDeferred ? store.batchBytes : SAVE_BATCH_BYTES;
    const batch = takeBatch(lane.pending, source.sourceBytes, most);
    this.#pass(lane, batch, isDeferred)
      .catch((error: unknown) => this.#options.logger.error({ err: error }, "a save failed"))
      .finally(() => {
        lane.isBusy = false;
        if (isDeferred) this.#deferring.delete(store);
        this.#pumpAll();
      });
  }

  /** Makes one batch, or deferred records of it, and passes the records on. Slots are free once they are made, those of deferred records once they are sent. */
  async #pass(lane: Lane, batch: readonly Pending[], mayDefer: boolean): Promise<void> {
    const { pool, logger } = this.#options;
    const { source } = lane;
    let isDeferred = mayDefer;
    const records: OutboxRecord[] = [];
    const members = batch.map((next) => this.#parity.join(source, next));
    try {
      await failpoint("sidecar.save.taken");
      const task = await this.#task(source, batch);
      isDeferred &&= !isVariable(task.codec);
      records.push(...(isDeferred ? pool.defer(task) : await pool.encode(task)));
      await this.#parity.take(members, records);
    } catch (error) {
      logger.warn({ err: toTierkvError(error) }, "a batch of saves was not encoded");
    }
    const leave = (): void => {
      for (const { item } of batch) source.finish(item.slot, item.generation);
      source.onBatch();
    };
    if (isDeferred && records.length > 0) {
      let open = batch.length;
      lane.deferred += open;
      this.#store(lane, batch, records, members, () => {
        lane.deferred -= 1;
        open -= 1;
        if (open === 0) leave();
      });
    } else {
      leave();
      if (records.length > 0) this.#options.counters.add("blocks_encoded_ahead", records.length);
      this.#store(lane, batch, records, members, () => {});
    }
  }

  async #task(source: SaveSource, batch: readonly Pending[]): Promise<EncodeTask> {
    const { codecs, pool } = this.#options;
    const { arena, geometry, recordClass, shard, shardCount } = source;
    const [first] = batch;
    if (first !== undefined) await codecs.weigh(pool, recordClass, { ...source, ...first.item });
    const ways = new Set(batch.flatMap(({ destinations }) => destinations.map((d) => d.store.way)));
    return {
      arena,
      geometry,
      codec: codecs.idFor(recordClass, geometry, [...ways]),
      fidelity: codecs.fidelity,
      namespace: batch[0]?.namespace ?? Buffer.alloc(0),
      shard,
      shardCount,
      ...packBlocks(batch.map(({ item }) => item)),
    };
  }

  /** `onEnd` is called once for each record that there is. */
  #store(
    { source, store }: Lane,
    batch: readonly Pending[],
    records: readonly OutboxRecord[],
    members: readonly (Member | null)[],
    onEnd: () => void,
  ): void {
    const { sourceBytes } = source;
    const outgoing: OutgoingRecord[] = [];
    for (const [index, { item, key, name, namespace, destinations }] of batch.entries()) {
      const record = records[index];
      if (record === undefined) {
        this.#options.counters.add("dropped_encode_failed");
        this.#forget(source, name);
        continue;
      }
      const { endTokens, tenant } = item;
      const onOwner = (isTaken: boolean): void =>
        this.#parity.settle(members[index] ?? null, isTaken);
      const named = { namespace, tenant, key, endTokens, record, sourceBytes, onOwner };
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

const SETTLE_POLL_MS = 5;
