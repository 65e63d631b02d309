// Owns the sending of encoded records to one vault: batches, a few calls in flight, every record counted and dropped exactly once.
import { ItemStatus, statusName } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { failpoint } from "../../base/failpoint.ts";
import {
  CALL_TIMEOUT_MS,
  NAMESPACES_NAMED_MAX,
  SAVE_HOLD_MS_MAX,
  SAVE_BATCH_BYTES,
  SAVE_BATCH_ITEMS,
  STORE_TIMEOUT_MS,
  STORES_IN_FLIGHT_MAX,
} from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { BusyTime } from "../../base/time.ts";
import type { Takes } from "../../client/flush-feed.ts";
import type { BlockStore, Refusal } from "../../client/source.ts";
import type { OutboxRecord } from "../../codec/record.ts";
import type { Link } from "../../cost/link.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import { StoreTrace } from "../trace/request-trace.ts";
import type { Stored } from "../trace/request-trace.ts";
import type { FetchPriority } from "../vaults/fetch-priority.ts";
import { recall } from "./recall.ts";
import type { Recalled } from "./recall.ts";
import { VaultView } from "./vault-view.ts";

/** One place that a record is sent to. */
export interface Destination {
  store: StoreQueue;
  /** Number of the vault's last flush when the engine handed the block over. */
  flushed: number;
  /** near: memory of this machine, first · owner: its vault · replica: another vault, last. */
  role: "near" | "owner" | "replica";
}

export interface OutgoingRecord {
  namespace: Namespace;
  tenant: number;
  /** Number of the vault's last flush when the engine handed the block over. */
  flushed: number;
  /** Packed key. */
  key: Buffer;
  record: OutboxRecord;
  sourceBytes: number;
  /** Prompt tokens up to the block's end. */
  endTokens: number;
  /** True for a record that the vault lost and an arena still held. */
  isAgain?: boolean;
  /** Role of the destination; left out: owner. */
  role?: Destination["role"];
  /** True for a record stored elsewhere already: sent when nothing else waits, and dropped first. */
  isCopy?: boolean;
  /** Called when the record is stored or dropped; `isHeld`: the vault holds it. */
  onEnd(isHeld: boolean): void;
}

export interface StoreQueueOptions {
  client: BlockStore;
  link: Link;
  priority: FetchPriority;
  outcomes: BlockOutcomes;
  counters: SidecarCounters;
  logger: Logger;
  /** Called for each batch when it has ended; null or left out: no traces are kept. */
  onStored?: OnStored | null;
}

export type OnStored = (stored: Stored) => void;

/** A vault's records to send, bounded by the saver: SAVE_QUEUE_BYTES_MAX at most, or as much as slots hold. */
export class StoreQueue {
  /** The vault as the choice of a codec sees it. */
  readonly view: VaultView;
  readonly #client: BlockStore;
  readonly #link: Link;
  readonly #priority: FetchPriority;
  readonly #outcomes: BlockOutcomes;
  readonly #counters: SidecarCounters;
  readonly #logger: Logger;
  readonly #onStored: OnStored | null;
  readonly #waiting: OutgoingRecord[] = [];
  readonly #copies: OutgoingRecord[] = [];
  /** By namespace: its model, and the epoch of the vault that knows it. */
  readonly #models = new Map<string, { model: string; epoch: number | null }>();
  readonly #busy: BusyTime;
  #inFlight = 0;
  #onRoom: () => void = () => {};

  constructor(options: StoreQueueOptions) {
    const { client, link, priority, outcomes, counters, logger } = options;
    this.#onStored = options.onStored ?? null;
    this.view = new VaultView(client, link);
    this.#client = client;
    this.#link = link;
    this.#priority = priority;
    this.#outcomes = outcomes;
    this.#counters = counters;
    this.#logger = logger;
    this.#busy = new BusyTime((us) => counters.add("store_busy_us", us));
  }

  /** Why the vault takes no record now; null: it does. */
  get refusal(): Refusal | null {
    return this.#client.refusal;
  }

  /** Number of the vault's last flush that is known here. */
  get flushed(): number {
    return this.#client.flushes.number;
  }

  /** Returns the model of a namespace; null: not known. */
  modelOf(namespace: Buffer): string | null {
    return this.#models.get(namespace.toString("latin1"))?.model ?? null;
  }

  /** Fetches the vault's records unchanged; null for each that it does not give. Never rejects. */
  recall(namespace: Namespace, keys: readonly Buffer[], tenant: number): Promise<Recalled> {
    const context = { counters: this.#counters, logger: this.#logger };
    return recall(this.#client, namespace, keys, context, tenant);
  }

  /** Drops the waiting records that `takes` names, and returns how many. */
  flush(takes: Takes): number {
    let count = 0;
    for (const list of [this.#waiting, this.#copies]) {
      const gone = list.filter(({ namespace, tenant }) => takes(namespace, tenant));
      const left = list.filter(({ namespace, tenant }) => !takes(namespace, tenant));
      list.splice(0, list.length, ...left);
      for (const outgoing of gone) this.#giveUp(outgoing, "flushed");
      count += gone.length;
    }
    return count;
  }

  /** True when a record added now is sent at once. */
  get hasRoom(): boolean {
    return this.#inFlight < STORES_IN_FLIGHT_MAX && this.#waiting.length === 0;
  }

  /** Most bytes of one call. */
  get batchBytes(): number {
    return this.#link.batchBytes("up", SAVE_BATCH_BYTES);
  }

  /** Sets the callback for when there may be room again. */
  whenRoom(onRoom: () => void): void {
    this.#onRoom = onRoom;
  }

  /** Notes a namespace's model; the vault learns it with the first records. */
  nameModel(namespace: Namespace, model: string): void {
    const key = namespace.toString("latin1");
    this.#client.learnModel?.(namespace, model);
    const known = this.#models.get(key);
    if (known?.model === model) return;
    if (known !== undefined || this.#models.size < NAMESPACES_NAMED_MAX) {
      this.#models.set(key, { model, epoch: null });
    }
  }

  /** Takes over the models that another queue knows. */
  learnFrom(other: StoreQueue): void {
    for (const [key, { model }] of other.#models) {
      this.#client.learnModel?.(Buffer.from(key, "latin1"), model);
      this.#models.set(key, { model, epoch: null });
    }
  }

  /** Names the model without waiting. A vault of an older release refuses, and then cannot flush by model. */
  #sendModel(namespace: Namespace): void {
    const named = this.#models.get(namespace.toString("latin1"));
    const { epoch } = this.#client;
    if (named === undefined || named.epoch === epoch) return;
    named.epoch = epoch;
    this.#client.nameModel?.(namespace, named.model, CALL_TIMEOUT_MS).catch((error: unknown) => {
      // Else a flush by model would leave the records. A refusal is final.
      if (toTierkvError(error).code !== "VAULT_REFUSED") named.epoch = null;
      this.#logger.debug({ err: error }, "a namespace was not named");
    });
  }

  add(records: readonly OutgoingRecord[]): void {
    for (const record of records) {
      if (record.isCopy === true) this.#copies.push(record);
      else this.#waiting.push(record);
    }
    this.#pump();
  }

  /** Drops the last waiting copy; false when none waits. */
  shedCopy(): boolean {
    const last = this.#copies.pop();
    if (last !== undefined) this.#giveUp(last, "shed");
    return last !== undefined;
  }

  #giveUp(outgoing: OutgoingRecord, reason: string): void {
    this.#countDropped(outgoing, reason);
    this.#end(outgoing, false);
  }

  #end(outgoing: OutgoingRecord, isHeld: boolean): void {
    outgoing.record.drop();
    outgoing.onEnd(isHeld);
  }

  /** Drops the deepest waiting record, if it is deeper than `endTokens` and has `bytes` decoded bytes; otherwise returns false. */
  shedDeeperThan(endTokens: number, bytes: number): boolean {
    const deepest = this.#waiting.reduce<OutgoingRecord | null>((found, record) => {
      const isDeeper = record.endTokens > (found?.endTokens ?? endTokens);
      return isDeeper && record.isAgain !== true ? record : found;
    }, null);
    if (deepest === null || deepest.sourceBytes < bytes) return false;
    this.#waiting.splice(this.#waiting.indexOf(deepest), 1);
    this.#giveUp(deepest, "shed");
    return true;
  }

  /** True when a record may be sent. A replica goes alone, so that it holds up no save. */
  get #mayTake(): boolean {
    const [copy] = this.#copies;
    if (this.#waiting.length > 0 || copy === undefined) return this.#waiting.length > 0;
    return this.#inFlight === 0 || copy.role !== "replica";
  }

  #pump(): void {
    while (this.#inFlight < STORES_IN_FLIGHT_MAX && this.#mayTake) {
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

  /** Sends one batch once no restore fetches, or after SAVE_HOLD_MS_MAX. A batch takes about LINK_BATCH_MS, so restores wait briefly. */
  async #sendNext(): Promise<void> {
    if (!this.#priority.isFree) {
      this.#counters.add("saves_held_back");
      await this.#priority.whenFree(SAVE_HOLD_MS_MAX);
    }
    const batch = this.#takeBatch();
    if (batch.length === 0) return;
    this.#link.up.begin(this.#link.roundTripMs(0) ?? 0, false);
    try {
      await this.#send(batch);
    } finally {
      this.#link.up.end(false, false);
    }
  }

  #takeBatch(): OutgoingRecord[] {
    const list = this.#waiting.length > 0 ? this.#waiting : this.#copies;
    const [first] = list;
    const most = this.batchBytes;
    let bytes = 0;
    let count = 0;
    for (const { namespace, tenant, flushed, record } of list) {
      bytes += record.bytes;
      const isFull = bytes > most || count === SAVE_BATCH_ITEMS;
      const isOther =
        namespace !== first?.namespace || tenant !== first.tenant || flushed !== first.flushed;
      if (count > 0 && (isFull || isOther)) break;
      count += 1;
    }
    return list.splice(0, count);
  }

  /** Never rejects; the records are dropped in any case. */
  async #send(batch: readonly OutgoingRecord[]): Promise<void> {
    const held = new Set<OutgoingRecord>();
    const taken = new Set<OutgoingRecord>();
    const trace = this.#onStored === null ? null : new StoreTrace();
    try {
      const [first] = batch;
      if (first === undefined) return;
      const { namespace, tenant, flushed } = first;
      await failpoint("sidecar.save.encoded");
      const statuses = await this.#client.store(
        namespace,
        batch,
        STORE_TIMEOUT_MS,
        tenant,
        flushed,
        trace?.context,
      );
      await failpoint("sidecar.save.stored");
      this.#counters.add("stores");
      for (const [index, record] of batch.entries()) {
        if (this.#count(record, statuses[index])) held.add(record);
        if (isTaken(statuses[index])) taken.add(record);
      }
      this.#sendModel(namespace);
    } catch (error) {
      const { code } = toTierkvError(error);
      this.#counters.add("vault_errors");
      for (const record of batch) this.#countDropped(record, code.toLowerCase());
      this.#logger.debug({ err: error, vault: this.#client.name }, "a batch of saves was dropped");
    } finally {
      for (const outgoing of batch) {
        this.#end(outgoing, held.has(outgoing));
      }
      if (trace !== null) this.#tell(trace, batch.length, taken);
    }
  }

  #tell(trace: StoreTrace, records: number, taken: ReadonlySet<OutgoingRecord>): void {
    const bytes = [...taken].reduce((sum, { record }) => sum + record.bytes, 0);
    const vault = this.#client.address;
    this.#onStored?.(trace.ended({ vault, records, taken: taken.size, bytes }));
  }

  /** Counts a record's status; true when the vault holds the record. */
  #count(outgoing: OutgoingRecord, status: ItemStatus | undefined): boolean {
    const { record, sourceBytes, namespace, isAgain, role = "owner" } = outgoing;
    const what = statusName(status ?? ItemStatus.UNSPECIFIED);
    if (isTaken(status)) {
      if (isAgain === true) {
        this.#counters.add("copies_sent_bytes", record.bytes);
      } else if (role === "near") {
        this.#counters.add("shared_saved");
      } else if (role === "replica") {
        this.#counters.add("replicas_saved");
        this.#counters.add("replicas_sent_bytes", record.bytes);
      } else {
        this.#counters.add("blocks_saved");
        this.#counters.add("bytes_saved", sourceBytes);
        this.#counters.add("bytes_sent", record.bytes);
      }
      this.#outcomes.stored(namespace, outgoing.key);
      return true;
    }
    if (status === ItemStatus.PRESENT) {
      this.#counters.add(PRESENT[role]);
      this.#outcomes.stored(namespace, outgoing.key);
      return true;
    }
    this.#countDropped(outgoing, what);
    return false;
  }

  /** Counts a dropped record. A block's outcome is its outcome at the owner. */
  #countDropped(outgoing: OutgoingRecord, why: string): void {
    const { role = "owner" } = outgoing;
    if (role !== "owner") {
      this.#counters.add(DROPPED[role]);
      return;
    }
    this.#counters.add(`dropped_${why}`);
    this.#outcomes.dropped(outgoing.namespace, outgoing.key, why);
  }
}

function isTaken(status: ItemStatus | undefined): boolean {
  return status === ItemStatus.ACCEPTED || status === ItemStatus.DURABLE;
}

const DROPPED = {
  near: "shared_dropped",
  replica: "replicas_dropped",
} as const;

const PRESENT = {
  near: "shared_present",
  owner: "saves_present",
  replica: "replicas_present",
} as const;

/** A record before it has a destination. */
type Named = Omit<OutgoingRecord, "flushed" | "role" | "isCopy" | "onEnd">;

/** Makes a record that goes to one destination after the other; `onEnd` is called once, after the last. */
export function along(
  named: Named,
  [destination, next, ...further]: readonly Destination[],
  onEnd: () => void,
  isCopy = false,
): OutgoingRecord {
  const { flushed = 0, role = "owner" } = destination ?? {};
  if (next === undefined) return { ...named, flushed, role, isCopy, onEnd };
  named.record.keep();
  const rest = along(named, [next, ...further], onEnd, true);
  return { ...named, flushed, role, isCopy, onEnd: () => next.store.add([rest]) };
}
