// Owns the blocks that `tierkv bench` moves: pages in its own shared memory, encoded and fetched as a sidecar does.
import { Arena, SIDECAR_OWNER } from "../../arena/arena.ts";
import type { Leases } from "../../arena/arena.ts";
import {
  classNumber,
  HASH_BYTES,
  keyAt,
  measuringNamespace,
  packKeys,
  PACKED_KEY_BYTES,
} from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { ARENA_POLL_MS } from "../../base/limits/general.ts";
import { deferSlots, geometryInfo, registerGeometry, outboxMake } from "../../base/native.ts";
import type { Geometry, GeometryId } from "../../base/native.ts";
import { randomToken, sleep } from "../../base/time.ts";
import type { FetchWindow } from "../../client/source.ts";
import { OutboxRecord } from "../../codec/record.ts";
import type { MakeDeferred } from "../../codec/record.ts";

/** No block begins a sequence, whose first token is stored exactly. */
const PARENT: Buffer = Buffer.alloc(HASH_BYTES, 0xff);
/** Tokens of one block. */
export const BENCH_BLOCK_TOKENS = 16;
const LAYERS = 36;
const HEADS = 8;
const HEAD_BYTES = 256;
/** Bytes of one layer of a block: K and V of 8 heads of 128 bf16 numbers. */
const LAYER_BYTES: number = BENCH_BLOCK_TOKENS * HEADS * HEAD_BYTES * 2;
/** Bytes of one block in an engine with a model of 8 billion parameters. */
export const BENCH_PAGE_BYTES: number = LAYERS * LAYER_BYTES;

export interface BenchCodec {
  codec: number;
  fidelity: number;
}

export class BenchSet {
  /** Used by this run alone; the vault drops its records at the end of the run, or after some minutes. */
  readonly namespace: Namespace = measuringNamespace();
  readonly count: number;
  readonly recordClass: RecordClass;
  readonly #arena: Arena;
  readonly #codec: BenchCodec;
  readonly #geometry: GeometryId;
  readonly #leases: Leases;
  #hashes: Buffer;

  /** Resolves when all slots are mapped. */
  static async open(count: number, recordClass: RecordClass, codec: BenchCodec): Promise<BenchSet> {
    const geometry = registerGeometry(geometryOf(recordClass));
    const { slotBytes } = geometryInfo(geometry);
    const arena = new Arena({ slotBytes, slotCount: count, dir: null });
    while (arena.status().touchedSlots < count) await sleep(ARENA_POLL_MS);
    return new BenchSet(arena, geometry, recordClass, codec);
  }

  private constructor(
    arena: Arena,
    geometry: GeometryId,
    recordClass: RecordClass,
    codec: BenchCodec,
  ) {
    this.#arena = arena;
    this.#geometry = geometry;
    this.recordClass = recordClass;
    this.#codec = codec;
    this.count = arena.slotCount;
    this.#leases = arena.lease(SIDECAR_OWNER, this.count);
    this.#hashes = randomToken(this.count * HASH_BYTES);
  }

  /** Gives the blocks new keys, none of which the vault holds. */
  renew(): void {
    this.#hashes = randomToken(this.count * HASH_BYTES);
  }

  /** Returns the packed keys of blocks `from` to `to`. */
  keys(from = 0, to: number = this.count): Buffer {
    return packKeys(this.#hashes.subarray(from * HASH_BYTES, to * HASH_BYTES), 0, 0);
  }

  /** Returns deferred records of blocks `from` to `to`; the sending lane encodes each. The caller drops all of them. */
  deferred(from: number, to: number): { key: Buffer; record: OutboxRecord }[] {
    const keys = this.keys(from, to);
    const items = Array.from({ length: to - from }, (_, index) => ({
      slot: this.#leases[(from + index) * 2] ?? 0,
      generation: this.#leases[(from + index) * 2 + 1] ?? 0,
      shard: 0,
      shardCount: 1,
      endTokens: BENCH_BLOCK_TOKENS,
      blockHash: keyAt(keys, index).subarray(0, HASH_BYTES),
      parentHash: PARENT,
    }));
    const { codec, fidelity } = this.#codec;
    const pairs = deferSlots(
      this.#arena.id,
      this.#geometry,
      codec,
      fidelity,
      this.namespace,
      items,
    );
    const ids = Uint32Array.from(items, (_, index) => pairs[index * 2] ?? 0);
    const make: MakeDeferred = () => {
      const lengths = outboxMake(ids);
      return Promise.resolve(new Map([...ids].map((id, index) => [id, lengths[index] ?? 0])));
    };
    return items.map((_, index) => ({
      key: keys.subarray(index * PACKED_KEY_BYTES, (index + 1) * PACKED_KEY_BYTES),
      record: new OutboxRecord(ids[index] ?? 0, pairs[index * 2 + 1] ?? 0, make),
    }));
  }

  /** Returns the plan that fetches blocks `from` to `to` back into their slots. */
  plan(from: number, to: number): FetchWindow {
    return {
      arena: this.#arena.id,
      fidelity: this.#codec.fidelity,
      keys: this.keys(from, to),
      geometries: new Uint32Array(to - from).fill(this.#geometry),
      leases: this.#leases.subarray(from * 2, to * 2),
    };
  }

  close(): void {
    this.#arena.close();
  }
}

function geometryOf(recordClass: RecordClass): Geometry {
  const shape = { group: 0, recordClass: classNumber(recordClass), layers: LAYERS };
  const page = { ...shape, tokens: BENCH_BLOCK_TOKENS, layerBytes: LAYER_BYTES };
  if (recordClass === "ssm") {
    const none = { heads: 0, dimK: 0, dimV: 0, keyOffset: 0, valueOffset: 0 };
    return { ...page, ...none, layout: 1, dtype: 0, headStride: 0, tokenStride: 0 };
  }
  return {
    ...page,
    layout: 0,
    dtype: 1,
    heads: HEADS,
    dimK: HEAD_BYTES / 2,
    dimV: HEAD_BYTES / 2,
    keyOffset: 0,
    valueOffset: LAYER_BYTES / 2,
    headStride: HEAD_BYTES,
    tokenStride: HEADS * HEAD_BYTES,
  };
}
