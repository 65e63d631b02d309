// Owns the Fetch call: pins what the plan asks for, streams it in need order, and lets go of every pin whatever happens.
import type { handleServerStreamingCall } from "@grpc/grpc-js";
import { ItemStatus, keyAt } from "../block.ts";
import { failpoint } from "../failpoint.ts";
import {
  CHUNK_BYTES,
  CHUNK_BYTES_MAX,
  CHUNK_BYTES_MIN,
  LOAD_TASK_KEYS,
  LOAD_WINDOW_KEYS,
  STREAM_STALL_MS,
} from "../limits.ts";
import { pinSlice, storeLoad, storePin, unpin } from "../native.ts";
import { packChunks } from "../wire/chunks.ts";
import type { ItemNote, RecordSource } from "../wire/chunks.ts";
import type { FetchChunk, FetchPlan } from "../wire/messages.ts";
import { PacedWriter } from "../wire/paced-writer.ts";
import { toGrpcStatus } from "../wire/status.ts";
import { checkPlan } from "./checks.ts";
import type { VaultContext } from "./context.ts";
import { Loads } from "./loads.ts";

const loads = new Loads();

export function fetchHandler(
  vault: VaultContext,
): handleServerStreamingCall<FetchPlan, FetchChunk> {
  return (call) => {
    const serve = async (): Promise<void> => {
      const stream = vault.streams.open(call, "Fetch");
      try {
        const { signal } = stream;
        const options = { signal, stallMs: STREAM_STALL_MS, what: "a fetch's reader" };
        await sendPlan(vault, call.request, new PacedWriter<FetchChunk>(call, options));
        call.end();
      } finally {
        stream.end();
      }
    };
    serve().catch((error: unknown) => {
      vault.counters.add("fetches_ended_early");
      vault.logger.debug({ err: error }, "a fetch ended early");
      call.emit("error", toGrpcStatus(error));
    });
  };
}

async function sendPlan(
  vault: VaultContext,
  plan: FetchPlan,
  writer: PacedWriter<FetchChunk>,
): Promise<void> {
  const { namespace, keys, count } = checkPlan(plan, vault.recordClass);
  vault.counters.add("fetches");
  const pins = new PinnedRecords(storePin(vault.store, namespace, keys));
  const load = (part: Buffer): Promise<Float64Array> =>
    loads.run(() => storeLoad(vault.store, namespace, part));
  // Without a disk, what is not in memory is nowhere.
  const windowKeys = vault.durability === null ? count : LOAD_WINDOW_KEYS;
  const isLoading = vault.durability !== null;
  let next = isLoading ? pins.load(keys, 0, windowKeys, load) : Promise.resolve();
  try {
    await failpoint("vault.fetch.pinned");
    for (let first = 0; first < count; first += windowKeys) {
      await next;
      const end = Math.min(count, first + windowKeys);
      // Read while the window before it is being sent.
      if (isLoading) next = pins.load(keys, end, end + windowKeys, load);
      const records = pins.inOrder(first, end);
      for (const chunk of packChunks(records, chunkBytes(plan.chunkBytes))) {
        await writer.write({ chunk });
        await failpoint("vault.fetch.sending");
      }
    }
  } finally {
    await next;
    pins.release();
    vault.counters.add("fetched", pins.sentRecords);
    vault.counters.add("fetched_bytes", pins.sentBytes);
    vault.counters.add("fetch_missing", count - pins.heldRecords);
  }
}

function chunkBytes(asked: number): number {
  return asked === 0 ? CHUNK_BYTES : Math.min(Math.max(asked, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX);
}

/** The pins of one plan, each held until its last byte was handed on. */
class PinnedRecords {
  /** Per key: pin (0 = missing or let go), record length. */
  readonly #pairs: Float64Array;
  heldRecords: number;
  sentRecords = 0;
  sentBytes = 0;

  constructor(pairs: Float64Array) {
    this.#pairs = pairs;
    this.heldRecords = pairs.filter((value, at) => at % 2 === 0 && value !== 0).length;
  }

  /** Pins what is missing of the items `first` to `end` and can be read from disk; what cannot stays missing. */
  async load(
    keys: Buffer,
    first: number,
    end: number,
    load: (keys: Buffer) => Promise<Float64Array>,
  ): Promise<void> {
    const missing: number[] = [];
    for (let item = first; item < Math.min(end, this.#pairs.length / 2); item += 1) {
      if (this.#pairs[item * 2] === 0) missing.push(item);
    }
    const tasks: Promise<void>[] = [];
    for (let at = 0; at < missing.length; at += LOAD_TASK_KEYS) {
      const items = missing.slice(at, at + LOAD_TASK_KEYS);
      const part = Buffer.concat(items.map((item) => keyAt(keys, item)));
      tasks.push(load(part).then((pairs) => this.#take(items, pairs)));
    }
    await Promise.allSettled(tasks);
  }

  #take(items: readonly number[], pairs: Float64Array): void {
    for (const [index, item] of items.entries()) {
      const pin = pairs[index * 2] ?? 0;
      if (pin === 0) continue;
      this.#pairs[item * 2] = pin;
      this.#pairs[item * 2 + 1] = pairs[index * 2 + 1] ?? 0;
      this.heldRecords += 1;
    }
  }

  *inOrder(first: number, end: number): Generator<RecordSource | ItemNote> {
    for (let item = first; item < end; item += 1) {
      const pin = this.#pairs[item * 2] ?? 0;
      if (pin === 0) {
        yield { item, status: ItemStatus.MISSING };
        continue;
      }
      const recordBytes = this.#pairs[item * 2 + 1] ?? 0;
      yield { item, recordBytes, slice: (offset, length) => pinSlice(pin, offset, length) };
      this.sentRecords += 1;
      this.sentBytes += recordBytes;
      this.#letGo(item);
    }
  }

  release(): void {
    for (let item = 0; item < this.#pairs.length / 2; item += 1) this.#letGo(item);
  }

  #letGo(item: number): void {
    const pin = this.#pairs[item * 2] ?? 0;
    if (pin === 0) return;
    this.#pairs[item * 2] = 0;
    unpin(pin);
  }
}
