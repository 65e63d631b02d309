// Owns gRPC calls without our client's manners, to see what a vault does with a peer that has none.
import type { ClientDuplexStream, ClientReadableStream, ServiceError } from "@grpc/grpc-js";
import { VaultChannel } from "../../src/client/channel.ts";
import { MADE_NOW } from "../../src/limits.ts";
import type {
  FetchChunk,
  FetchPlan,
  Piece,
  StoreOffer,
  StoreReply,
  StoreRequest,
} from "../../src/wire/messages.ts";
import { vaultService } from "../../src/wire/service.ts";
import { keysOf, NAMESPACE } from "./records.ts";
import type { TestRecord } from "./records.ts";
import { closeAfterTest, SOON_MS, until } from "./vaults.ts";

const NEVER = new AbortController().signal;

export function openChannel(vault: { address: string }): VaultChannel {
  return closeAfterTest(new VaultChannel(vault.address));
}

/** One Store call: what came back, and how it ended. */
export class RawStore {
  readonly call: ClientDuplexStream<StoreRequest, StoreReply>;
  readonly replies: StoreReply[] = [];
  error: ServiceError | null = null;
  isOver = false;

  constructor(vault: { address: string }, timeoutMs: number = SOON_MS) {
    const options = { timeoutMs, signal: NEVER };
    this.call = openChannel(vault).duplex(vaultService.Store, options);
    closeAfterTest({ close: () => this.call.cancel() });
    this.call.on("data", (reply: StoreReply) => this.replies.push(reply));
    this.call.on("error", (error: ServiceError) => {
      this.error = error;
      this.isOver = true;
    });
    this.call.on("end", () => {
      this.isOver = true;
    });
  }

  offer(records: readonly TestRecord[], change: Partial<StoreOffer> = {}): void {
    const recordBytes = records.map(({ record }) => record.length);
    const offer = {
      namespace: NAMESPACE,
      keys: keysOf(records),
      recordBytes,
      recordClass: 1,
      tenant: 0,
      flushed: MADE_NOW,
    };
    this.call.write({ offer: { ...offer, ...change } });
  }

  pieces(...pieces: Piece[]): void {
    this.call.write({ chunk: { pieces } });
  }

  async wanted(): Promise<void> {
    await until(() => this.replies.length > 0 || this.isOver, "an answer to the offer");
    if (this.error !== null) throw this.error;
  }

  /** Half-closes and returns the status of each item that got a result. */
  async finish(): Promise<Map<number, number>> {
    this.call.end();
    await until(() => this.isOver, "the end of the Store call");
    if (this.error !== null) throw this.error;
    const results = this.replies.flatMap(({ result }) => (result === undefined ? [] : [result]));
    return new Map(results.map(({ item, status }) => [item, status]));
  }

  async failure(): Promise<ServiceError> {
    await until(() => this.isOver, "the end of the Store call");
    if (this.error === null) throw new Error("the call ended well");
    return this.error;
  }
}

/** A whole record, or `length` bytes of it from `offset` on, as one piece. */
export function pieceOf(item: number, record: Buffer, offset = 0, length = record.length): Piece {
  const data = record.subarray(offset, offset + length);
  return { item, offset, recordBytes: record.length, data, status: 0 };
}

export function rawFetch(
  vault: { address: string },
  plan: Partial<FetchPlan>,
): ClientReadableStream<FetchChunk> {
  const request = { namespace: NAMESPACE, segments: [], chunkBytes: 0, ...plan };
  const options = { timeoutMs: SOON_MS, signal: NEVER };
  const call = openChannel(vault).serverStream(vaultService.Fetch, request, options);
  closeAfterTest({ close: () => call.cancel() });
  return call;
}

/** Resolves when `call` has brought its first message, and stops it there: gRPC buffers without bound before a first read. */
export function firstMessage<Message>(call: ClientReadableStream<Message>): Promise<Message> {
  return new Promise((resolve, reject) => {
    call.once("error", reject);
    call.once("data", (message: Message) => {
      call.pause();
      call.off("error", reject);
      resolve(message);
    });
  });
}
