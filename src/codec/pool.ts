// Owns the encode threads, a bounded piscina pool that takes batches by descriptor, and the making of deferred records.
import { availableParallelism } from "node:os";
import { Piscina } from "piscina";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import {
  ENCODE_NICE,
  ENCODE_QUEUE_MAX,
  ENCODE_THREADS_MAX,
  ENCODE_TIMEOUT_MS,
} from "../base/limits/general.ts";
import { deferSlots } from "../base/native.ts";
import type { CodecWeight } from "../base/native.ts";
import { withDeadline } from "../base/time.ts";
import { OutboxRecord } from "./record.ts";
import type { MakeDeferred } from "./record.ts";
import { nativeItems, packed } from "./task.ts";
import type { EncodeTask, PackedTask, WeighTask } from "./task.ts";

// The built file, also when the sources run, because a worker thread of Node 20 cannot read TypeScript.
const WORKER_FILE: string = new URL("../../dist/codec/worker.js", import.meta.url).href;

// Piscina requires a file before it imports it, and Node crashes when a thread ends while requiring an ES module (IsGraphAsync).
const NO_REQUIRE = "--no-experimental-require-module";
const WORKER_ARGV: string[] = process.allowedNodeEnvironmentFlags.has(NO_REQUIRE)
  ? [NO_REQUIRE]
  : [];

type Task = PackedTask | WeighTask | Uint32Array;

export class EncodePool {
  readonly #piscina: Piscina<Task, Float64Array | CodecWeight[]>;

  constructor(threads: number = defaultThreads()) {
    this.#piscina = new Piscina<Task, Float64Array | CodecWeight[]>({
      filename: WORKER_FILE,
      minThreads: threads,
      maxThreads: threads,
      maxQueue: ENCODE_QUEUE_MAX,
      niceIncrement: ENCODE_NICE,
      execArgv: WORKER_ARGV,
      // Waiting on shared memory would block a thread's other messages; a task takes milliseconds.
      atomics: "disabled",
    });
  }

  /** Returns one record per block, in order. Throws the native core's coded error, DEADLINE, or OVERLOAD when too many wait. */
  async encode(task: EncodeTask): Promise<OutboxRecord[]> {
    const run = this.#begin(packed(task), "encode");
    try {
      return toRecords(await withDeadline(run, ENCODE_TIMEOUT_MS, "encoding a batch"), null);
    } catch (error) {
      // Records finished after the deadline are dropped, because their slots may hold other blocks by then.
      run
        .then((pairs) => toRecords(pairs, null).forEach((record) => record.drop()))
        .catch(() => {});
      throw toTierkvError(error);
    }
  }

  /** Returns deferred records at once: a lane encodes each as it sends it; `make` lets a thread encode all that are left. */
  defer(task: EncodeTask): OutboxRecord[] {
    const { arena, geometry, codec, fidelity, namespace } = task;
    let made: ReturnType<MakeDeferred> | null = null;
    const make: MakeDeferred = () => (made ??= this.#make(records.map(({ id }) => id)));
    const items = nativeItems(task);
    const pairs = deferSlots(arena, geometry, codec, fidelity, Buffer.from(namespace), items);
    const records = toRecords(pairs, make);
    return records;
  }

  async #make(ids: readonly number[]): Promise<ReadonlyMap<number, number>> {
    const run = this.#begin(Uint32Array.from(ids), "make");
    const lengths = await withDeadline(run, ENCODE_TIMEOUT_MS, "making records");
    return new Map(ids.map((id, index) => [id, lengths[index] ?? 0]));
  }

  /** Tries codecs on a leased slot; unsuitable ones are left out. Throws as `encode` does. */
  async weigh(task: WeighTask): Promise<CodecWeight[]> {
    const run = this.#begin<CodecWeight[]>(task, "weigh");
    return await withDeadline(run, ENCODE_TIMEOUT_MS, "weighing codecs");
  }

  #begin<T extends Float64Array | CodecWeight[] = Float64Array>(
    task: Task,
    name: string,
  ): Promise<T> {
    if (this.#piscina.queueSize >= ENCODE_QUEUE_MAX) {
      throw new TierkvError("OVERLOAD", {
        what: "encode tasks waiting",
        count: this.#piscina.queueSize,
        limit: ENCODE_QUEUE_MAX,
      });
    }
    return this.#piscina.run(task, { name }) as Promise<T>;
  }

  async close(): Promise<void> {
    await this.#piscina.destroy();
  }
}

function toRecords(pairs: Float64Array, make: MakeDeferred | null): OutboxRecord[] {
  return Array.from(
    { length: pairs.length / 2 },
    (_, index) => new OutboxRecord(pairs[index * 2] ?? 0, pairs[index * 2 + 1] ?? 0, make),
  );
}

/** Half of the processors, because the other half belongs to the engine and to sending. */
function defaultThreads(): number {
  return Math.max(1, Math.min(ENCODE_THREADS_MAX, Math.floor(availableParallelism() / 2)));
}
