// Owns the Store call: offer, reservations, bytes into the store, one verified result per item; nothing outlives the call.
import type { handleBidiStreamingCall } from "@grpc/grpc-js";
import { hasBit, ItemStatus, keyAt, newBitmap, setBit, statusName } from "../block.ts";
import { isTierkvError, TierkvError } from "../errors.ts";
import { failpoint, failpointNow } from "../failpoint.ts";
import { STORE_IDLE_MS } from "../limits.ts";
import {
  storeAbort,
  storeAwaitDurable,
  storeCommit,
  storeLookup,
  storeReserve,
  storeStats,
  storeWrite,
} from "../native.ts";
import type { StoreReservations } from "../native.ts";
import { watchdog } from "../time.ts";
import type { Piece, StoreReply, StoreRequest } from "../wire/messages.ts";
import { toGrpcStatus } from "../wire/status.ts";
import { checkCrowd, checkOffer } from "./checks.ts";
import type { CheckedOffer } from "./checks.ts";
import type { VaultContext } from "./context.ts";
import { callerOf } from "./gate.ts";
import type { OpenStream } from "./streams.ts";

export function storeHandler(
  vault: VaultContext,
): handleBidiStreamingCall<StoreRequest, StoreReply> {
  return (call) => {
    let isOver = false;
    let stream: OpenStream | null = null;
    const reply = (answer: StoreReply): void => {
      if (!isOver) call.write(answer);
    };
    const { account } = callerOf(call);
    const batch = new StoreBatch({ vault, account }, reply, (error) => finish(error));
    const finish = (error: unknown): void => {
      if (isOver) return;
      isOver = true;
      idle.clear();
      stream?.end();
      batch.abort();
      if (error === null) {
        call.end();
        return;
      }
      vault.counters.add("stores_ended_early");
      vault.logger.debug({ err: error }, "a store ended early");
      call.emit("error", toGrpcStatus(error));
    };
    const idle = watchdog(STORE_IDLE_MS, () =>
      finish(
        new TierkvError("DEADLINE", { what: "a store's next byte", timeoutMs: STORE_IDLE_MS }),
      ),
    );
    attempt(() => {
      stream = vault.streams.open(call, "Store");
      const { signal } = stream;
      signal.addEventListener("abort", () => finish(signal.reason), { once: true });
    }, finish);
    // After an error the client's rest still arrives; it is read and dropped, so that the connection stays usable.
    call.on("data", (request: StoreRequest) => {
      if (!isOver && attempt(() => batch.receive(request), finish) === true) idle.touch();
    });
    call.on("end", () => {
      if (isOver) return;
      attempt(() => batch.finish(), finish);
      batch.answered().then(() => finish(null), finish);
    });
  };
}

function attempt<T>(work: () => T, onError: (error: unknown) => void): T | undefined {
  try {
    return work();
  } catch (error) {
    onError(error);
    return undefined;
  }
}

/** One batch from offer to last result. */
class StoreBatch {
  readonly #vault: VaultContext;
  /** On which it stores. */
  readonly #account: number;
  readonly #reply: (reply: StoreReply) => void;
  /** Ends the call with what kept an item from its answer. */
  readonly #fail: (error: unknown) => void;
  #offer: CheckedOffer | null = null;
  #wanted: Buffer = newBitmap(0);
  /** Open reservation per item; 0 = none (any more). */
  #reservations: Uint32Array = new Uint32Array(0);

  /** Items that are accepted and answered once they are durable, or will not be for now. */
  #accepted: number[] = [];
  #syncing: Promise<void> | null = null;

  constructor(
    { vault, account }: { vault: VaultContext; account: number },
    reply: (reply: StoreReply) => void,
    fail: (error: unknown) => void,
  ) {
    this.#vault = vault;
    this.#account = account;
    this.#reply = reply;
    this.#fail = fail;
  }

  /** Resolves once every item has its answer, or the call has ended without. */
  async answered(): Promise<void> {
    while (this.#syncing !== null) await this.#syncing;
  }

  /** True when it brought something: only progress keeps a stream alive. */
  receive(request: StoreRequest): boolean {
    checkCrowd(request);
    if (request.offer !== undefined) {
      if (this.#offer !== null) throw protocolError("a second offer in one Store call");
      this.#open(checkOffer(request.offer, this.#vault));
      return true;
    }
    let bytes = 0;
    for (const piece of request.chunk?.pieces ?? []) {
      this.#take(piece);
      bytes += piece.data.length;
    }
    return bytes > 0;
  }

  #open(offer: CheckedOffer): void {
    this.#offer = offer;
    const { reservations, statuses } = reserveWithinShare(this.#vault, this.#account, offer);
    this.#reservations = reservations;
    this.#wanted = newBitmap(offer.count);
    for (const [item, reservation] of reservations.entries()) {
      if (reservation === 0) this.#count(statuses[item] ?? ItemStatus.UNSPECIFIED);
      else setBit(this.#wanted, item);
    }
    failpointNow("vault.store.reserved");
    this.#vault.counters.add("stores");
    this.#vault.counters.add("offered", offer.count);
    this.#reply({ wanted: { wanted: this.#wanted, statuses: [...statuses] } });
  }

  #take(piece: Piece): void {
    const { item } = piece;
    const reservation = this.#reservations[item];
    if (this.#offer === null) throw protocolError("a chunk before the offer");
    if (reservation === undefined || !hasBit(this.#wanted, item)) {
      throw protocolError(`a piece of item ${item}, which is not wanted`);
    }
    // The client may have sent the rest of an item that already failed.
    if (reservation === 0) return;
    if (piece.status !== ItemStatus.UNSPECIFIED) {
      this.#drop(item, reservation, ItemStatus.INCOMPLETE);
    } else if (piece.recordBytes !== this.#offer.recordBytes[item]) {
      this.#drop(item, reservation, ItemStatus.BAD_RECORD);
    } else if (piece.data.length > 0) {
      this.#write(item, reservation, piece);
    }
  }

  #write(item: number, reservation: number, piece: Piece): void {
    try {
      if (!storeWrite(reservation, piece.offset, piece.data)) return;
    } catch (error) {
      if (!isTierkvError(error) || error.code !== "BAD_RECORD") throw error;
      this.#drop(item, reservation, ItemStatus.BAD_RECORD);
      return;
    }
    this.#reservations[item] = 0;
    const status = storeCommit(reservation);
    failpointNow("vault.store.accepted");
    if (status !== ItemStatus.ACCEPTED || this.#vault.durability !== "sync") {
      this.#settle(item, status);
      return;
    }
    this.#accepted.push(item);
    // Nobody may be waiting for it yet, and what nobody hears of ends the whole vault.
    this.#syncing ??= this.#sync()
      .catch(this.#fail)
      .finally(() => {
        this.#syncing = null;
      });
  }

  /** One wait for all that were accepted meanwhile: the disk syncs them together. */
  async #sync(): Promise<void> {
    while (this.#offer !== null && this.#accepted.length > 0) {
      const items = this.#accepted;
      this.#accepted = [];
      const { namespace, keys } = this.#offer;
      const part = Buffer.concat(items.map((item) => keyAt(keys, item)));
      await failpoint("vault.store.syncing");
      // A vault that is being closed cannot say any more.
      const nothing = (): Uint8Array => newBitmap(0);
      const durable = await storeAwaitDurable(this.#vault.store, namespace, part).catch(nothing);
      for (const [index, item] of items.entries()) {
        this.#settle(item, hasBit(durable, index) ? ItemStatus.DURABLE : ItemStatus.ACCEPTED);
      }
    }
  }

  #drop(item: number, reservation: number, status: ItemStatus): void {
    this.#reservations[item] = 0;
    storeAbort(reservation);
    this.#settle(item, status);
  }

  #settle(item: number, status: number): void {
    this.#count(status, this.#offer?.recordBytes[item]);
    if (status === ItemStatus.BAD_RECORD || status === ItemStatus.WRONG_KEY)
      this.#warn(item, status);
    this.#reply({ result: { item, status } });
  }

  #count(status: number, recordBytes = 0): void {
    const { counters } = this.#vault;
    if (status === ItemStatus.ACCEPTED || status === ItemStatus.DURABLE) {
      counters.add("stored");
      counters.add("stored_bytes", recordBytes);
    } else if (status === ItemStatus.PRESENT) {
      counters.add("present");
    } else {
      counters.add(`refused_${statusName(status)}`);
    }
  }

  #warn(item: number, status: number): void {
    if (this.#offer === null) return;
    const key = keyAt(this.#offer.keys, item).toString("hex");
    this.#vault.logger.warn({ key, status: statusName(status) }, "a record was refused");
  }

  /** The client has sent all it will: what is not complete never will be. */
  finish(): void {
    for (const [item, reservation] of this.#reservations.entries()) {
      if (reservation !== 0) this.#drop(item, reservation, ItemStatus.INCOMPLETE);
    }
  }

  /** Frees what is still reserved, without answering. */
  abort(): void {
    for (const [item, reservation] of this.#reservations.entries()) {
      if (reservation === 0) continue;
      this.#reservations[item] = 0;
      storeAbort(reservation);
    }
  }
}

/** Reserves in order while the vault's share for records under way lasts; the rest is OVER_BUDGET and evicts nothing. */
function reserveWithinShare(
  vault: VaultContext,
  account: number,
  offer: CheckedOffer,
): StoreReservations {
  let room = vault.maxReservedBytes - storeStats(vault.store).reservedBytes;
  const present = storeLookup(vault.store, offer.namespace, offer.keys);
  const asked: number[] = [];
  for (let item = 0; item < offer.count; item += 1) {
    const recordBytes = offer.recordBytes[item] ?? 0;
    if (!hasBit(present, item)) room -= recordBytes;
    if (hasBit(present, item) || room >= 0) asked.push(item);
    else room += recordBytes;
  }
  const statuses = new Uint8Array(offer.count).fill(ItemStatus.OVER_BUDGET);
  const reservations = new Uint32Array(offer.count);
  const reserved = storeReserve(
    vault.store,
    offer.namespace,
    Buffer.concat(asked.map((item) => keyAt(offer.keys, item))),
    Float64Array.from(asked, (item) => offer.recordBytes[item] ?? 0),
    account,
    offer.tenant,
    offer.flushed,
  );
  for (const [index, item] of asked.entries()) {
    reservations[item] = reserved.reservations[index] ?? 0;
    statuses[item] = reserved.statuses[index] ?? ItemStatus.OVER_BUDGET;
  }
  return { reservations, statuses };
}

function protocolError(reason: string): TierkvError {
  return new TierkvError("BAD_ARGUMENT", { reason });
}
