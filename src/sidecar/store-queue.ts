// Owns the sending of encoded records to one vault: batches, a few calls in flight, every record counted and dropped exactly once.
import { HASH_BYTES, ItemStatus, statusName } from "../block.ts";
import type { Namespace } from "../block.ts";
import type { VaultClient } from "../client/vault-client.ts";
import type { OutboxRecord } from "../codec/record.ts";
import { toTierkvError } from "../errors.ts";
import { failpoint } from "../failpoint.ts";
import {
  CALL_TIMEOUT_MS,
  NAMESPACES_NAMED_MAX,
  SAVE_HOLD_MS_MAX,
  SAVE_BATCH_BYTES,
  SAVE_BATCH_ITEMS,
  STORE_TIMEOUT_MS,
  STORES_IN_FLIGHT_MAX,
} from "../limits.ts";
import type { Logger } from "../log.ts";
import type { SidecarCounters } from "../metrics.ts";
import { recordKeysTenant } from "../native.ts";
import type { Link } from "../pace/link.ts";
import { BusyTime } from "../time.ts";
import type { Fates } from "./fates.ts";
import type { RightOfWay } from "./right-of-way.ts";

export interface OutgoingRecord {
  namespace: Namespace;
  tenant: number;
  /** Packed. */
  key: Buffer;
  record: OutboxRecord;
  sourceBytes: number;
  /** Prompt tokens up to its end. */
  endTokens: number;
  /** Stored or dropped. */
  onEnd(): void;
}

export interface StoreQueueOptions {
  client: VaultClient;
  link: Link;
  way: RightOfWay;
  fates: Fates;
  counters: SidecarCounters;
  logger: Logger;
}

/** Bounded by what feeds it: the saver takes no more than SAVE_QUEUE_BYTES_MAX at a time. */
export class StoreQueue {
  readonly #client: VaultClient;
  readonly #link: Link;
  readonly #way: RightOfWay;
  readonly #fates: Fates;
  readonly #counters: SidecarCounters;
  readonly #logger: Logger;
  readonly #waiting: OutgoingRecord[] = [];
  /** By namespace: its model, and the epoch of the vault that was told. */
  readonly #models = new Map<string, { model: string; epoch: number | null }>();
  readonly #busy: BusyTime;
  #inFlight = 0;
  #onRoom: () => void = () => {};

  constructor({ client, link, way, fates, counters, logger }: StoreQueueOptions) {
    this.#client = client;
    this.#link = link;
    this.#way = way;
    this.#fates = fates;
    this.#counters = counters;
    this.#logger = logger;
    this.#busy = new BusyTime((us) => counters.add("store_busy_us", us));
  }

  get isDown(): boolean {
    return this.#client.isOpen;
  }

  /** Our role there is to read: whatever is sent comes back refused. */
  get isReadOnly(): boolean {
    return this.#client.isReadOnly;
  }

  /** Lanes make drafts as they send them. */
  get makesDrafts(): boolean {
    return this.#client.lanes === "up";
  }

  /** What is added now is sent now. */
  get hasRoom(): boolean {
    return this.#inFlight < STORES_IN_FLIGHT_MAX && this.#waiting.length === 0;
  }

  /** Bytes of one call. */
  get turnBytes(): number {
    return this.#link.turnBytes("up", SAVE_BATCH_BYTES);
  }

  /** `onRoom` is called whenever there may be room again. */
  whenRoom(onRoom: () => void): void {
    this.#onRoom = onRoom;
  }

  /** Which model a namespace belongs to: the vault is told once it has records of it. */
  nameModel(namespace: Namespace, model: string): void {
    const key = namespace.toString("latin1");
    const known = this.#models.get(key);
    if (known?.model === model) return;
    if (known !== undefined || this.#models.size < NAMESPACES_NAMED_MAX) {
      this.#models.set(key, { model, epoch: null });
    }
  }

  /** Nobody waits for it, and a vault of an older release refuses: then only flushing by model misses. */
  #tellModel(namespace: Namespace): void {
    const named = this.#models.get(namespace.toString("latin1"));
    const { epoch } = this.#client;
    if (named === undefined || named.epoch === epoch) return;
    named.epoch = epoch;
    this.#client
      .nameModel(namespace, named.model, CALL_TIMEOUT_MS)
      .catch((error: unknown) => this.#logger.debug({ err: error }, "a namespace was not named"));
  }

  add(records: readonly OutgoingRecord[]): void {
    this.#waiting.push(...records);
    this.#pump();
  }

  /** Drops waiting records of `bytes` decoded bytes that are deeper in their prompts; false, and none, without enough. */
  shedDeeperThan(endTokens: number, bytes: number): boolean {
    const deepest = this.#waiting.reduce<OutgoingRecord | null>(
      (found, record) => (record.endTokens > (found?.endTokens ?? endTokens) ? record : found),
      null,
    );
    if (deepest === null || deepest.sourceBytes < bytes) return false;
    this.#waiting.splice(this.#waiting.indexOf(deepest), 1);
    this.#counters.add("dropped_shed");
    this.#fates.dropped(deepest.namespace, ...nameOf(deepest), "shed");
    deepest.record.drop();
    deepest.onEnd();
    return true;
  }

  #pump(): void {
    while (this.#inFlight < STORES_IN_FLIGHT_MAX && this.#waiting.length > 0) {
      this.#inFlight += 1;
      this.#busy.begin();
      void this.#sendNext().finally(() => {
        this.#inFlight -= 1;
        this.#busy.end();
        this.#pump();
        if (this.hasRoom) this.#onRoom();
      });
    }
  }

  /** Restores go first. What is sent at once keeps a link busy for about one turn, so that they need not wait long. */
  async #sendNext(): Promise<void> {
    if (!this.#way.isFree) {
      this.#counters.add("saves_held_back");
      await this.#way.whenFree(SAVE_HOLD_MS_MAX);
    }
    const batch = this.#takeBatch();
    if (batch.length === 0) return;
    this.#link.up.begin(this.#link.questionMs(0) ?? 0);
    try {
      await this.#send(batch);
    } finally {
      this.#link.up.end();
    }
  }

  #takeBatch(): OutgoingRecord[] {
    const [first] = this.#waiting;
    const most = this.turnBytes;
    let bytes = 0;
    let count = 0;
    for (const { namespace, tenant, record } of this.#waiting) {
      bytes += record.bytes;
      const isFull = bytes > most || count === SAVE_BATCH_ITEMS;
      const isOther = namespace !== first?.namespace || tenant !== first.tenant;
      if (count > 0 && (isFull || isOther)) break;
      count += 1;
    }
    return this.#waiting.splice(0, count);
  }

  /** Never rejects; the records are dropped whatever happens. */
  async #send(batch: readonly OutgoingRecord[]): Promise<void> {
    try {
      const [first] = batch;
      if (first === undefined) return;
      const { namespace, tenant } = first;
      await failpoint("sidecar.save.encoded");
      const { statuses, isOverLanes } = await this.#client.storeEncoded(
        namespace,
        this.#client.name,
        batch,
        STORE_TIMEOUT_MS,
        recordKeysTenant(tenant),
      );
      await failpoint("sidecar.save.stored");
      this.#counters.add(isOverLanes ? "stores_lanes" : "stores_grpc");
      for (const [index, record] of batch.entries()) this.#count(record, statuses[index]);
      this.#tellModel(namespace);
    } catch (error) {
      const { code } = toTierkvError(error);
      for (const record of batch) {
        this.#fates.dropped(record.namespace, ...nameOf(record), code.toLowerCase());
      }
      this.#counters.add("vault_errors");
      this.#counters.add(`dropped_${code.toLowerCase()}`, batch.length);
      this.#logger.debug({ err: error, vault: this.#client.name }, "a batch of saves was dropped");
    } finally {
      for (const { record, onEnd } of batch) {
        record.drop();
        onEnd();
      }
    }
  }

  #count(outgoing: OutgoingRecord, status: ItemStatus | undefined): void {
    const { record, sourceBytes, namespace } = outgoing;
    const what = statusName(status ?? ItemStatus.UNSPECIFIED);
    if (status === ItemStatus.ACCEPTED || status === ItemStatus.DURABLE) {
      this.#counters.add("blocks_saved");
      this.#counters.add("bytes_saved", sourceBytes);
      this.#counters.add("bytes_sent", record.bytes);
      this.#link.up.moved(record.bytes);
      this.#fates.stored(namespace, ...nameOf(outgoing));
    } else if (status === ItemStatus.PRESENT) {
      this.#counters.add("saves_present");
      this.#fates.stored(namespace, ...nameOf(outgoing));
    } else {
      this.#counters.add(`dropped_${what}`);
      this.#fates.dropped(namespace, ...nameOf(outgoing), what);
    }
  }
}

/** Group and hash of a packed key. */
function nameOf({ key }: OutgoingRecord): [number, Buffer] {
  return [key.readUInt16LE(HASH_BYTES), key.subarray(0, HASH_BYTES)];
}
