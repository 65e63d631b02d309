// Owns the way of saved blocks from arena slots to encoded records: batches by engine, rank and group, one being encoded while the next fills.
import { packKeys } from "../block.ts";
import type { Namespace, RecordClass } from "../block.ts";
import { packBlocks } from "../codec/pool.ts";
import type { EncodedRecord, EncodePool } from "../codec/pool.ts";
import { toTierkvError } from "../errors.ts";
import { failpoint } from "../failpoint.ts";
import {
  SAVE_BATCH_BYTES,
  SAVE_BATCH_ITEMS,
  SAVE_DRAIN_MS,
  SAVE_QUEUE_BYTES_MAX,
} from "../limits.ts";
import type { Logger } from "../log.ts";
import type { SidecarCounters } from "../metrics.ts";
import { nowMs, sleep } from "../time.ts";
import type { Codecs } from "./codecs.ts";
import type { Fates } from "./fates.ts";
import type { SaveItem } from "./messages.ts";
import type { OutgoingRecord, StoreQueue } from "./store-queue.ts";

/** Where blocks come from: one group of one rank of one engine. */
export interface SaveSource {
  readonly arena: number;
  readonly geometry: number;
  readonly recordClass: RecordClass;
  readonly group: number;
  readonly shard: number;
  readonly shardCount: number;
  /** Decoded bytes of one block's shard. */
  readonly sourceBytes: number;
  /** The slot is of no use to the save any more; called exactly once per item taken. */
  finish(slot: number, generation: number): void;
  /** Slots of a batch were finished: good time to grant new ones. */
  onBatch(): void;
  /** False while a block could not be restored faster than computed. */
  isWorthSaving(): boolean;
}

export interface SaverOptions {
  pool: EncodePool;
  stores: Readonly<Record<RecordClass, StoreQueue | null>>;
  codecs: Codecs;
  fates: Fates;
  counters: SidecarCounters;
  logger: Logger;
}

interface Pending {
  item: SaveItem;
  key: string;
  namespace: Namespace;
}

interface Lane {
  pending: Pending[];
  isEncoding: boolean;
}

export class Saver {
  readonly #options: SaverOptions;
  readonly #lanes = new Map<SaveSource, Lane>();
  /** Keys between being taken and being stored or dropped: the same block is saved once. */
  readonly #inFlight = new Set<string>();
  /** Decoded bytes of everything in flight. */
  #bytes = 0;

  constructor(options: SaverOptions) {
    this.#options = options;
  }

  get queuedBytes(): number {
    return this.#bytes;
  }

  get queuedBlocks(): number {
    return this.#inFlight.size;
  }

  /** Which model a namespace belongs to, for the vaults. */
  nameModel(namespace: Namespace, model: string): void {
    for (const store of Object.values(this.#options.stores)) store?.nameModel(namespace, model);
  }

  /** Takes blocks whose slots the sidecar owns. What cannot be saved now is dropped and counted; nothing waits. */
  accept(source: SaveSource, namespace: Namespace | null, items: readonly SaveItem[]): void {
    const lane = this.#laneOf(source);
    const isWorth = source.isWorthSaving();
    let dropped = 0;
    for (const item of items) {
      const key = namespace === null ? null : saveKey(namespace, source, item);
      const reason = this.#refusal(source, key, item, isWorth);
      if (reason !== null || key === null || namespace === null) {
        this.#dropped(source, namespace, item.hash, reason ?? "no_namespace");
        source.finish(item.slot, item.generation);
        dropped += 1;
        continue;
      }
      this.#inFlight.add(key);
      this.#bytes += source.sourceBytes;
      lane.pending.push({ item: { ...item, ...ownHashes(item) }, key, namespace });
    }
    if (dropped > 0) source.onBatch();
    this.#pump(source, lane);
  }

  /** Resolves when nothing of `source` is left to encode, or when SAVE_DRAIN_MS have passed: then the rest is dropped. */
  async settle(source: SaveSource): Promise<void> {
    const untilMs = nowMs() + SAVE_DRAIN_MS;
    const lane = this.#lanes.get(source);
    if (lane === undefined) return;
    while (lane.pending.length > 0 || lane.isEncoding) {
      if (nowMs() > untilMs) {
        for (const { item, key } of lane.pending.splice(0)) {
          this.#options.counters.add("dropped_shutdown");
          source.finish(item.slot, item.generation);
          this.#forget(source, key);
        }
        break;
      }
      await sleep(SETTLE_POLL_MS);
    }
    this.#lanes.delete(source);
  }

  /** Resolves when every save is stored or dropped, or when SAVE_DRAIN_MS have passed. */
  async drain(): Promise<void> {
    const untilMs = nowMs() + SAVE_DRAIN_MS;
    while (this.#inFlight.size > 0 && nowMs() < untilMs) await sleep(SETTLE_POLL_MS);
    if (this.#inFlight.size > 0) {
      this.#options.logger.warn({ blocks: this.#inFlight.size }, "stopping with saves unfinished");
    }
  }

  #laneOf(source: SaveSource): Lane {
    let lane = this.#lanes.get(source);
    if (lane === undefined) {
      lane = { pending: [], isEncoding: false };
      this.#lanes.set(source, lane);
    }
    return lane;
  }

  #dropped(source: SaveSource, namespace: Namespace | null, hash: Buffer, reason: string): void {
    this.#options.counters.add(`dropped_${reason}`);
    if (namespace === null || reason === "duplicate") return;
    this.#options.fates.dropped(namespace, source.group, Buffer.from(hash), reason);
  }

  #refusal(
    source: SaveSource,
    key: string | null,
    { endTokens }: SaveItem,
    isWorth: boolean,
  ): string | null {
    if (key === null) return "no_namespace";
    const store = this.#options.stores[source.recordClass];
    if (store === null) return "no_vault";
    if (store.isDown) return "vault_down";
    if (store.isReadOnly) return "read_only";
    if (this.#inFlight.has(key)) return "duplicate";
    if (!isWorth) return "slow_link";
    if (this.#bytes + source.sourceBytes <= SAVE_QUEUE_BYTES_MAX) return null;
    // The deepest block goes first: it is of no use without those before it.
    return store.shedDeeperThan(endTokens, source.sourceBytes) ? null : "queue_full";
  }

  #pump(source: SaveSource, lane: Lane): void {
    if (lane.isEncoding || lane.pending.length === 0) return;
    lane.isEncoding = true;
    const batch = takeBatch(lane.pending, source.sourceBytes);
    this.#encode(source, batch)
      .catch((error: unknown) => this.#options.logger.error({ err: error }, "a save failed"))
      .finally(() => {
        lane.isEncoding = false;
        this.#pump(source, lane);
      });
  }

  /** Encodes one batch, frees its slots, and passes the records on. */
  async #encode(source: SaveSource, batch: readonly Pending[]): Promise<void> {
    const [first] = batch;
    if (first === undefined) return;
    let records: EncodedRecord[] = [];
    try {
      await failpoint("sidecar.save.taken");
      records = await this.#options.pool.encode({
        arena: source.arena,
        geometry: source.geometry,
        codec: this.#options.codecs.byClass[source.recordClass],
        fidelity: this.#options.codecs.fidelity,
        namespace: first.namespace,
        shard: source.shard,
        shardCount: source.shardCount,
        ...packBlocks(batch.map(({ item }) => item)),
      });
    } catch (error) {
      this.#options.logger.warn({ err: toTierkvError(error) }, "a batch of saves was not encoded");
    }
    for (const { item } of batch) source.finish(item.slot, item.generation);
    source.onBatch();
    this.#store(source, batch, records);
  }

  #store(source: SaveSource, batch: readonly Pending[], records: readonly EncodedRecord[]): void {
    const { group, shard, sourceBytes, recordClass } = source;
    const outgoing: OutgoingRecord[] = [];
    for (const [index, { item, key, namespace }] of batch.entries()) {
      const record = records[index];
      const onEnd = (): void => this.#forget(source, key);
      if (record === undefined) {
        this.#options.counters.add("dropped_encode_failed");
        onEnd();
      } else {
        const packed = packKeys(item.hash, group, shard);
        const { endTokens, tenant } = item;
        outgoing.push({ namespace, tenant, key: packed, record, sourceBytes, endTokens, onEnd });
      }
    }
    this.#options.stores[recordClass]?.add(outgoing);
  }

  #forget(source: SaveSource, key: string): void {
    if (this.#inFlight.delete(key)) this.#bytes -= source.sourceBytes;
  }
}

const SETTLE_POLL_MS = 5;

/** Blocks of one namespace and tenant, up to a batch's bytes. */
function takeBatch(pending: Pending[], blockBytes: number): Pending[] {
  const [first] = pending;
  const most = Math.max(1, Math.min(SAVE_BATCH_ITEMS, Math.floor(SAVE_BATCH_BYTES / blockBytes)));
  let count = 0;
  const isOfFirst = ({ namespace, item }: Pending): boolean =>
    namespace === first?.namespace && item.tenant === first.item.tenant;
  for (const next of pending) {
    if (count === most || !isOfFirst(next)) break;
    count += 1;
  }
  return pending.splice(0, count);
}

function saveKey(namespace: Namespace, source: SaveSource, { hash }: SaveItem): string {
  return `${source.group}:${source.shard}:${hash.toString("latin1")}${namespace.toString("latin1")}`;
}

/** The hashes outlive the frame they came in. */
function ownHashes({ hash, parent }: SaveItem): Pick<SaveItem, "hash" | "parent"> {
  return { hash: Buffer.from(hash), parent: Buffer.from(parent) };
}
