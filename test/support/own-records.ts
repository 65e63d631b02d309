// Owns test records for a vault: random bytes under random keys, of no model.
import { Arena, SIDECAR_OWNER } from "../../src/arena/arena.ts";
import { classNumber, HASH_BYTES, ItemStatus, packKeys } from "../../src/base/block.ts";
import type { RecordClass } from "../../src/base/block.ts";
import { ARENA_POLL_MS } from "../../src/base/limits/general.ts";
import type { GeometryId } from "../../src/base/native.ts";
import {
  dropGeometry,
  geometryInfo,
  outboxPut,
  registerGeometry,
  slotHolds,
  writeRecord,
} from "../../src/base/native.ts";
import { randomToken, sleep } from "../../src/base/time.ts";
import type { StoreItem } from "../../src/client/source.ts";
import type { Vault } from "../../src/client/vault.ts";
import { OutboxRecord } from "../../src/codec/record.ts";

/** Shape of an opaque page. */
const SHAPE = { group: 0, layout: 1, dtype: 0, tokens: 1, layers: 1, heads: 0, dimK: 0, dimV: 0 };
const PLACES = { keyOffset: 0, valueOffset: 0, headStride: 0, tokenStride: 0 };
const IDENTITY = { codec: 0, fidelity: 0, shard: 0, shardCount: 1, parts: 0, endTokens: 1 };

export interface OwnRecord {
  /** Packed key. */
  key: Buffer;
  record: Buffer;
  payload: Buffer;
}

export interface OwnCall {
  client: Vault;
  deadlineMs: number;
  signal?: AbortSignal;
}

/** Comparison of a fetched record with the stored one; none: not held. */
export type Returned = "same" | "other" | "none";

/** Valid opaque records of group 0, shard 0, under random keys that no other client uses. */
export class OwnRecords {
  readonly all: readonly OwnRecord[];
  readonly #namespace: Buffer;
  readonly #arena: Arena;
  readonly #geometry: GeometryId;
  readonly #leases: Uint32Array;

  /** Resolves when all slots for fetching are mapped. */
  static async open(
    namespace: Buffer,
    recordClass: RecordClass,
    count: number,
    payloadBytes: number,
  ): Promise<OwnRecords> {
    const page = { ...SHAPE, recordClass: classNumber(recordClass) };
    const geometry = registerGeometry({ ...page, ...PLACES, layerBytes: payloadBytes });
    const { slotBytes } = geometryInfo(geometry);
    const arena = new Arena({ slotBytes, slotCount: count, dir: null });
    while (arena.status().touchedSlots < count) await sleep(ARENA_POLL_MS);
    const all = Array.from({ length: count }, () => {
      const blockHash = randomToken(HASH_BYTES);
      const payload = randomToken(payloadBytes);
      const bytes = { payloadBytes, sourceBytes: payloadBytes };
      const names = { namespace, blockHash, parentHash: Buffer.alloc(HASH_BYTES) };
      const record = writeRecord({ ...page, ...IDENTITY, ...bytes, ...names }, payload);
      return { key: packKeys(blockHash, 0, 0), record, payload };
    });
    return new OwnRecords(namespace, all, arena, geometry);
  }

  private constructor(
    namespace: Buffer,
    all: readonly OwnRecord[],
    arena: Arena,
    geometry: GeometryId,
  ) {
    this.#namespace = namespace;
    this.all = all;
    this.#arena = arena;
    this.#geometry = geometry;
    this.#leases = arena.lease(SIDECAR_OWNER, arena.slotCount);
  }

  /** Stores all records, or the given ones. */
  async store(
    { client, deadlineMs }: OwnCall,
    records: readonly Pick<OwnRecord, "key" | "record">[] = this.all,
  ): Promise<ItemStatus[]> {
    const items: (StoreItem & { record: OutboxRecord })[] = [];
    try {
      for (const { key, record } of records) {
        items.push({ key, record: new OutboxRecord(outboxPut(record), record.length, null) });
      }
      return await client.store(this.#namespace, items, deadlineMs);
    } finally {
      for (const { record } of items) record.drop();
    }
  }

  /** Fetches all records, or the given ones, and compares each. */
  async fetch(
    { client, ...call }: OwnCall,
    records: readonly OwnRecord[] = this.all,
  ): Promise<Returned[]> {
    const plan = {
      arena: this.#arena.id,
      fidelity: 0,
      keys: Buffer.concat(records.map(({ key }) => key)),
      geometries: new Uint32Array(records.length).fill(this.#geometry),
      leases: this.#leases.subarray(0, records.length * 2),
    };
    const { statuses } = await client.fetch(this.#namespace, plan, call);
    return records.map(({ payload }, at) => {
      if (statuses[at] === ItemStatus.BAD_RECORD) return "other";
      if (statuses[at] !== ItemStatus.ACCEPTED) return "none";
      const [slot = 0, generation = 0] = this.#leases.subarray(at * 2);
      return slotHolds(this.#arena.id, slot, generation, payload) ? "same" : "other";
    });
  }

  close(): void {
    this.#arena.close();
    dropGeometry(this.#geometry);
  }
}
