// Owns one Store call of a client: offer, wait for what is wanted, send it at the vault's pace, gather the results.
import { hasBit, ItemStatus } from "../block.ts";
import { CHUNK_BYTES, STREAM_STALL_MS } from "../limits.ts";
import { packChunks } from "../wire/chunks.ts";
import type { RecordSource } from "../wire/chunks.ts";
import type { StoreOffer, StoreReply, StoreRequest, StoreWanted } from "../wire/messages.ts";
import { PacedWriter } from "../wire/paced-writer.ts";
import { vaultService } from "../wire/service.ts";
import type { CallOptions, VaultChannel } from "./channel.ts";

export interface StoreCallOptions extends CallOptions {
  onProgress(): void;
  /** Makes the error for a vault that breaks the protocol. */
  broken(reason: string): Error;
}

/** One status per record, in order. Rejects with a raw gRPC error; what was accepted before stays accepted. */
export async function runStore(
  channel: VaultChannel,
  offer: StoreOffer,
  records: readonly Buffer[],
  options: StoreCallOptions,
): Promise<ItemStatus[]> {
  const call = channel.duplex(vaultService.Store, options);
  const over = new AbortController();
  const answers = new Answers(records.length, options.onProgress);
  const ended = new Promise<void>((resolve, reject) => {
    call.on("data", (reply: StoreReply) => answers.take(reply));
    call.on("error", (error) => {
      const reason = options.signal.aborted ? (options.signal.reason as Error) : error;
      over.abort(reason);
      reject(reason);
    });
    call.on("end", () => {
      over.abort(options.broken("it ended before all was sent"));
      resolve();
    });
  });
  // A failure also reaches whoever waits for `over`; this promise may have nobody waiting at that moment.
  ended.catch(() => {});
  const writer = new PacedWriter<StoreRequest>(call, {
    signal: over.signal,
    stallMs: STREAM_STALL_MS,
    what: "a vault taking records",
  });
  try {
    await writer.write({ offer });
    const { wanted } = await Promise.race([answers.wanted, rejectOn(over.signal)]);
    const chunks = packChunks(wantedRecords(records, wanted), CHUNK_BYTES);
    for (const chunk of chunks) await writer.write({ chunk });
    call.end();
    await ended;
  } catch (error) {
    call.cancel();
    throw error;
  }
  return answers.statuses;
}

function rejectOn(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const onAbort = (): void => reject(signal.reason as Error);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}

function* wantedRecords(records: readonly Buffer[], wanted: Buffer): Generator<RecordSource> {
  for (const [item, record] of records.entries()) {
    if (!hasBit(wanted, item)) continue;
    yield {
      item,
      recordBytes: record.length,
      slice: (offset, length) => record.subarray(offset, offset + length),
    };
  }
}

/** What the vault has said so far. */
class Answers {
  /** Wanted items that never get a result stay INCOMPLETE. */
  readonly statuses: ItemStatus[];
  readonly wanted: Promise<StoreWanted>;
  readonly #onProgress: () => void;
  #resolveWanted: (wanted: StoreWanted) => void = () => {};

  constructor(items: number, onProgress: () => void) {
    this.statuses = Array.from({ length: items }, () => ItemStatus.INCOMPLETE);
    this.#onProgress = onProgress;
    this.wanted = new Promise((resolve) => {
      this.#resolveWanted = resolve;
    });
  }

  take(reply: StoreReply): void {
    this.#onProgress();
    const { wanted, result } = reply;
    if (wanted !== undefined) {
      for (const item of this.statuses.keys()) {
        if (!hasBit(wanted.wanted, item)) this.#settle(item, wanted.statuses[item]);
      }
      this.#resolveWanted(wanted);
    }
    if (result !== undefined) this.#settle(result.item, result.status);
  }

  #settle(item: number, status: number | undefined): void {
    if (item < this.statuses.length && status !== undefined && status !== 0) {
      this.statuses[item] = status as ItemStatus;
    }
  }
}
