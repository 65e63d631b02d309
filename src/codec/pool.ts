// Owns the encode threads: a bounded piscina pool that is given batches by descriptor (arena, slots, geometry).
import { availableParallelism } from "node:os";
import { Piscina } from "piscina";
import { HASH_BYTES } from "../block.ts";
import { TierkvError, toTierkvError } from "../errors.ts";
import { ENCODE_NICE, ENCODE_QUEUE_MAX, ENCODE_THREADS_MAX, ENCODE_TIMEOUT_MS } from "../limits.ts";
import { outboxDrop, outboxView } from "../native.ts";
import { withDeadline } from "../time.ts";

/** One batch of blocks of one group and rank. Flat arrays, so that handing it over copies only what it names. */
export interface EncodeTask {
  arena: number;
  geometry: number;
  codec: number;
  fidelity: number;
  namespace: Uint8Array;
  shard: number;
  shardCount: number;
  /** Pairs (slot, generation). */
  slots: Uint32Array;
  /** Per block: its hash, then its parent's. */
  hashes: Uint8Array;
  endTokens: Float64Array;
}

export interface EncodeBlock {
  slot: number;
  generation: number;
  hash: Uint8Array;
  parent: Uint8Array;
  endTokens: number;
}

/** The parts of a task that belong to its blocks. */
export function packBlocks(
  blocks: readonly EncodeBlock[],
): Pick<EncodeTask, "slots" | "hashes" | "endTokens"> {
  const slots = new Uint32Array(blocks.length * 2);
  const hashes = new Uint8Array(blocks.length * 2 * HASH_BYTES);
  const endTokens = new Float64Array(blocks.length);
  blocks.forEach((block, index) => {
    slots.set([block.slot, block.generation], index * 2);
    hashes.set(block.hash, index * 2 * HASH_BYTES);
    hashes.set(block.parent, (index * 2 + 1) * HASH_BYTES);
    endTokens[index] = block.endTokens;
  });
  return { slots, hashes, endTokens };
}

/** One encoded record in native memory. It must be dropped, whatever became of it. */
export class EncodedRecord {
  /** In the native outbox. */
  readonly id: number;
  readonly bytes: number;

  constructor(id: number, bytes: number) {
    this.id = id;
    this.bytes = bytes;
  }

  /** The record's bytes, not copied; valid also after drop() for as long as the view is held. */
  view(): Buffer {
    return outboxView(this.id);
  }

  drop(): void {
    outboxDrop(this.id);
  }
}

// The built file, also when the sources are run: a worker thread of Node 20 cannot read TypeScript.
const WORKER_FILE: string = new URL("../../dist/codec/worker.js", import.meta.url).href;

export class EncodePool {
  readonly #piscina: Piscina<EncodeTask, Float64Array>;

  constructor(threads: number = defaultThreads()) {
    this.#piscina = new Piscina<EncodeTask, Float64Array>({
      filename: WORKER_FILE,
      minThreads: threads,
      maxThreads: threads,
      maxQueue: ENCODE_QUEUE_MAX,
      niceIncrement: ENCODE_NICE,
      // Waiting on shared memory would keep a thread from its other messages; a task is milliseconds long.
      atomics: "disabled",
    });
  }

  /** One record per block, in order. Throws the native core's coded error, DEADLINE, or OVERLOAD when too much waits. */
  async encode(task: EncodeTask): Promise<EncodedRecord[]> {
    if (this.#piscina.queueSize >= ENCODE_QUEUE_MAX) {
      throw new TierkvError("OVERLOAD", {
        what: "encode tasks waiting",
        count: this.#piscina.queueSize,
        limit: ENCODE_QUEUE_MAX,
      });
    }
    const run = this.#piscina.run(task, { name: "encode" });
    try {
      return toRecords(await withDeadline(run, ENCODE_TIMEOUT_MS, "encoding a batch"));
    } catch (error) {
      // What comes after the deadline may have been read from slots that hold other blocks by then.
      run.then((pairs) => toRecords(pairs).forEach((record) => record.drop())).catch(() => {});
      throw toTierkvError(error);
    }
  }

  async close(): Promise<void> {
    await this.#piscina.destroy();
  }
}

function toRecords(pairs: Float64Array): EncodedRecord[] {
  return Array.from(
    { length: pairs.length / 2 },
    (_, index) => new EncodedRecord(pairs[index * 2] ?? 0, pairs[index * 2 + 1] ?? 0),
  );
}

/** Half of the processors: the other half belongs to the engine and to sending. */
function defaultThreads(): number {
  return Math.max(1, Math.min(ENCODE_THREADS_MAX, Math.floor(availableParallelism() / 2)));
}
