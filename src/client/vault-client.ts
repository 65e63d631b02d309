// Owns the calls a program makes to one vault: each bounded, split to the vault's limits, and checked on arrival.
import { classNumber, ItemStatus, keyCount } from "../block.ts";
import type { RecordClass } from "../block.ts";
import { TierkvError } from "../errors.ts";
import {
  CHUNK_BYTES,
  DEMOTE_KEYS_MAX,
  MADE_NOW,
  REPORT_KEYS_MAX,
  STORE_BATCH_BYTES,
} from "../limits.ts";
import { nowMs } from "../time.ts";
import type * as m from "../wire/messages.ts";
import { ServingStatus } from "../wire/messages.ts";
import { healthService, VAULT_SERVICE_NAME, vaultService } from "../wire/service.ts";
import type { VaultState } from "./breaker.ts";
import { runFetch } from "./fetch-call.ts";
import { FetchLedger } from "./fetch-ledger.ts";
import type { FetchSink } from "./fetch-ledger.ts";
import type { FlushFeed } from "./flush-feed.ts";
import type { LandingPlan, LanesState, Probed, Settled } from "./lanes.ts";
import { VaultSession } from "./session.ts";
import type { Attempt, VaultClientOptions } from "./session.ts";
import { splitBatch, splitKeys, splitPlan } from "./split.ts";
import { runStore } from "./store-call.ts";

/** One record to store: its packed key (36 bytes) and its bytes, which are only read. */
export interface StoreItem {
  key: Buffer;
  record: Buffer;
}

/** One record in the native outbox; its bytes are looked at only where there are no lanes, or a lane could not make it. */
export interface EncodedItem {
  key: Buffer;
  record: { readonly id: number; readonly bytes: number; view(): Promise<Buffer> };
}

/** null: it cannot be made any more. */
function viewed(items: readonly EncodedItem[]): Promise<(StoreItem | null)[]> {
  const view = ({ key, record }: EncodedItem): Promise<StoreItem | null> =>
    record.view().then(
      (bytes) => ({ key, record: bytes }),
      () => null,
    );
  return Promise.all(items.map(view));
}

/** Keys of one class and group, in need order. */
export interface FetchRun {
  recordClass: RecordClass;
  group: number;
  /** Packed, 36 bytes each. */
  keys: Buffer;
}

export interface FetchOptions {
  deadlineMs: number;
  /** Ends the fetch; the sink hears nothing more after it fired. */
  signal?: AbortSignal;
}

/**
 * One per vault address; connects with the first call, greets after every connect. Every call ends within its `deadlineMs`
 * (a duration) and rejects only with coded errors: VAULT_DOWN, VAULT_DEADLINE, VAULT_REFUSED, VAULT_BUSY, VAULT_BROKEN,
 * VAULT_CLASS, VERSION_MISMATCH, ROLE_MISSING, CANCELLED, CLOSED; with its `refusal` where it has one.
 */
export class VaultClient {
  /** The class of records this vault must hold. */
  readonly name: RecordClass;
  readonly address: string;
  readonly #session: VaultSession;

  constructor(options: VaultClientOptions) {
    this.name = options.name;
    this.address = options.address;
    this.#session = new VaultSession(options);
  }

  get state(): VaultState | "refused" {
    return this.#session.state;
  }

  /** Its breaker is open: calls fail at once. */
  get isOpen(): boolean {
    return this.#session.isOpen;
  }

  /** Whether records travel on lanes; else they travel over gRPC. */
  get lanes(): LanesState {
    return this.#session.lanesState;
  }

  /** The vault lets this client read, and takes nothing from it. */
  get isReadOnly(): boolean {
    return this.#session.isReadOnly;
  }

  /** Requests that were tried a second time, and those that failed without. */
  get retries(): { taken: number; refused: number } {
    return this.#session.retries;
  }

  /** Of the last hello; null before the first. Another number means that the vault has lost what it held. */
  get epoch(): number | null {
    return this.#session.epoch;
  }

  /** What the vault flushed. */
  get flushes(): FlushFeed {
    return this.#session.flushes;
  }

  /** Asks the vault itself, also while it counts as down. */
  hello(deadlineMs: number): Promise<m.HelloReply> {
    return this.#session.hello(deadlineMs);
  }

  /** Bitmap over `keys` (packed): what the vault holds. */
  lookup(namespace: Buffer, keys: Buffer, deadlineMs: number): Promise<Buffer> {
    return this.#session.call("Lookup", deadlineMs, async (attempt, vault) => {
      const parts = splitKeys(keys, vault.maxKeys).map(async (part) => {
        const found = await attempt.lanes.lookup(namespace, part, attempt.laneOptions());
        if (found !== null) return found;
        const { present } = await attempt.channel.unary(
          vaultService.Lookup,
          { namespace, keys: part },
          attempt.options(),
        );
        const expected = Math.ceil(keyCount(part) / 8);
        if (present.length === expected) return present;
        throw attempt.broken(`bitmap of ${present.length} bytes for ${keyCount(part)} keys`);
      });
      return Buffer.concat(await Promise.all(parts));
    });
  }

  /** Bitmap over `keys` (packed, at most KEYS_MAX): what would survive a power failure of the vault now. */
  durable(namespace: Buffer, keys: Buffer, deadlineMs: number): Promise<Buffer> {
    return this.#session.call("Lookup", deadlineMs, async ({ channel, options }) => {
      const request = { namespace, keys, askDurable: true };
      const { durable } = await channel.unary(vaultService.Lookup, request, options());
      return durable;
    });
  }

  /** Put-if-absent, on the account of `tenant`, of what was made knowing of flushes up to `flushed`; one status per item. What was accepted before a failure stays in the vault, so trying again is safe. */
  store(
    namespace: Buffer,
    recordClass: RecordClass,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant = 0,
    flushed: number = MADE_NOW,
  ): Promise<ItemStatus[]> {
    return this.#session.call("Store", deadlineMs, async (attempt, vault) => {
      checkMayStore(vault);
      const isSmall = (item: StoreItem): boolean => item.record.length <= vault.maxRecordBytes;
      const batches = splitBatch(
        items.filter(isSmall),
        (item) => item.record.length,
        vault.maxKeys,
        STORE_BATCH_BYTES,
      );
      const stored: ItemStatus[] = [];
      for (const batch of batches) {
        stored.push(
          ...(await storeBatch(attempt, { namespace, recordClass, tenant, flushed }, batch)),
        );
      }
      return items.map((item) =>
        isSmall(item) ? (stored.shift() ?? ItemStatus.INCOMPLETE) : ItemStatus.TOO_LARGE,
      );
    });
  }

  /**
   * Brings records straight into leased slots: ACCEPTED is verified and decoded. INCOMPLETE stays what the lanes could
   * not bring: `fetch` can. After a rejection no slot is written that is leased again.
   */
  land(
    namespace: Buffer,
    plan: LandingPlan,
    { deadlineMs, signal, onProgress }: FetchOptions & { onProgress(bytes: number): void },
  ): Promise<Settled> {
    const work = (attempt: Attempt): Promise<Settled> =>
      attempt.lanes.fetch(namespace, plan, attempt.laneOptions(onProgress));
    return this.#session.call("Fetch", deadlineMs, work, signal);
  }

  /** As `store`, for records of the native outbox. Over the lanes where they are up: `isOverLanes` says so. */
  async storeEncoded(
    namespace: Buffer,
    recordClass: RecordClass,
    items: readonly EncodedItem[],
    deadlineMs: number,
    tenant = 0,
    flushed: number = MADE_NOW,
  ): Promise<{ statuses: ItemStatus[]; isOverLanes: boolean }> {
    const endMs = nowMs() + deadlineMs;
    const { statuses } = await this.#session.call("Store", deadlineMs, (attempt, vault) => {
      checkMayStore(vault);
      return attempt.lanes.store(
        namespace,
        Buffer.concat(items.map(({ key }) => key)),
        Uint32Array.from(items, ({ record }) => record.id),
        attempt.laneOptions(),
        tenant,
        flushed,
      );
    });
    const settled = [...statuses] as ItemStatus[];
    const rest = [...settled.keys()].filter((index) => settled[index] === ItemStatus.INCOMPLETE);
    if (rest.length === 0) return { statuses: settled, isOverLanes: true };
    const left = await viewed(rest.flatMap((index) => items[index] ?? []));
    const there = rest.filter((_index, at) => left[at] !== null);
    const records = left.filter((item) => item !== null);
    const leftMs = Math.max(0, endMs - nowMs());
    const stored = await this.store(namespace, recordClass, records, leftMs, tenant, flushed);
    for (const [at, index] of there.entries()) {
      settled[index] = stored[at] ?? ItemStatus.INCOMPLETE;
    }
    return { statuses: settled, isOverLanes: false };
  }

  /**
   * Brings a whole prefix, in need order. Each item ends exactly once at the sink: with its last piece, or with `missing`;
   * also when the fetch fails (INCOMPLETE), but not after the sink threw or the signal fired. Bytes are not yet verified.
   */
  async fetch(
    namespace: Buffer,
    runs: readonly FetchRun[],
    sink: FetchSink,
    { deadlineMs, signal }: FetchOptions,
  ): Promise<void> {
    const segments = runs.map((run) => ({ ...run, recordClass: classNumber(run.recordClass) }));
    const items = segments.reduce((sum, segment) => sum + keyCount(segment.keys), 0);
    const ledger = new FetchLedger(items, sink);
    const work = async (attempt: Attempt, vault: m.HelloReply): Promise<void> => {
      ledger.begin(vault.maxRecordBytes, attempt.broken);
      for (const part of splitPlan(segments, vault.maxKeys)) {
        const plan = { namespace, segments: part.segments, chunkBytes: CHUNK_BYTES };
        const { firstItem } = part;
        const options = { ...attempt.options(), firstItem, onProgress: attempt.onProgress };
        await runFetch(attempt.channel, plan, ledger, options);
      }
      if (!ledger.isComplete) throw attempt.broken("the vault left items of the plan unanswered");
    };
    try {
      await this.#session.call("Fetch", deadlineMs, work, signal);
    } catch (error) {
      if (signal?.aborted !== true) ledger.closeOpen(ItemStatus.INCOMPLETE);
      throw error;
    }
  }

  /** Says that records did not verify here; the vault checks its own copies: QUARANTINED, PRESENT (good there) or MISSING. */
  report(
    namespace: Buffer,
    keys: Buffer,
    reason: string,
    deadlineMs: number,
  ): Promise<ItemStatus[]> {
    return this.#session.call("Report", deadlineMs, async (attempt) => {
      const statuses: ItemStatus[] = [];
      for (const part of splitKeys(keys, REPORT_KEYS_MAX)) {
        const request = { namespace, keys: part, reason };
        const reply = await attempt.channel.unary(vaultService.Report, request, attempt.options());
        statuses.push(...(reply.statuses as ItemStatus[]));
      }
      return statuses;
    });
  }

  /**
   * Says that these records are of no use as things are, so that they go first; how many the vault moved. Removes nothing.
   * `unusedOnly`: those fetched since they were stored are left alone.
   */
  demote(namespace: Buffer, keys: Buffer, deadlineMs: number, unusedOnly = false): Promise<number> {
    return this.#session.call("Demote", deadlineMs, async ({ channel, options }) => {
      let total = 0;
      for (const part of splitKeys(keys, DEMOTE_KEYS_MAX)) {
        const request = { namespace, keys: part, unusedOnly };
        const { demoted } = await channel.unary(vaultService.Demote, request, options());
        total += demoted;
      }
      return total;
    });
  }

  /**
   * Moves `chunks` MiB (at most 256) that are no record over the lanes, from the vault or to it, and keeps none of them: what
   * the way there alone carries. null: there are no lanes.
   */
  probe(chunks: number, isToVault: boolean, deadlineMs: number): Promise<Probed | null> {
    return this.#session.call("Probe", deadlineMs, (attempt) =>
      attempt.lanes.probe(chunks, isToVault, { ...attempt.laneOptions(), spent: null }),
    );
  }

  stats(deadlineMs: number): Promise<m.StatsReply> {
    return this.#session.call("Stats", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Stats, {}, options()),
    );
  }

  /** Drops the records of one namespace or model (null: of all), one class (null: of both) and one tenant (0: of all). */
  flush(
    namespace: Buffer | null,
    deadlineMs: number,
    recordClass: RecordClass | null = null,
    model: string | null = null,
    tenant = 0,
  ): Promise<m.FlushReply> {
    const request = {
      namespace: namespace ?? Buffer.alloc(0),
      recordClass: recordClass === null ? 0 : classNumber(recordClass),
      model: model ?? "",
      tenant,
    };
    return this.#session.call("Flush", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Flush, request, options()),
    );
  }

  /** Leases a namespace of `measuringNamespace` for minutes; with `isEnd` drops what is stored under it. */
  measure(namespace: Buffer, deadlineMs: number, isEnd = false): Promise<m.MeasureReply> {
    return this.#session.call("Measure", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Measure, { namespace, end: isEnd }, options()),
    );
  }

  /** Waits until the vault flushes something, or for a while; by then `flushes` has heard of it. Says what was dropped here. */
  async watch(
    request: Omit<m.WatchRequest, "flushed">,
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const work = async ({ channel, options }: Attempt): Promise<void> => {
      const asked = { ...request, flushed: this.flushes.number };
      const { flushes } = await channel.unary(vaultService.Watch, asked, options());
      if (flushes !== null) this.flushes.hear(flushes);
    };
    await this.#session.listen("Watch", deadlineMs, work, signal);
  }

  /** Says which model a namespace belongs to, for people who flush by model. */
  nameModel(namespace: Buffer, model: string, deadlineMs: number): Promise<m.NameReply> {
    return this.#session.call("Name", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Name, { namespace, model }, options()),
    );
  }

  /** True while the vault serves; false once it drains. Asks also while it counts as down. */
  async health(deadlineMs: number): Promise<boolean> {
    const { status } = await this.#session.direct("Health", deadlineMs, ({ channel, options }) =>
      channel.unary(healthService.Check, { service: VAULT_SERVICE_NAME }, options()),
    );
    return status === ServingStatus.SERVING;
  }

  /** Every call fails from now on, those under way included, until `endQuarantine`. */
  quarantine(reason: string): void {
    this.#session.quarantine(reason);
  }

  endQuarantine(): void {
    this.#session.endQuarantine();
  }

  /** Cancels what is under way and lets the connection go. Idempotent. */
  close(): void {
    this.#session.close();
  }
}

/** Lanes are not for records that would come back refused. */
function checkMayStore({ readOnly }: m.HelloReply): void {
  if (readOnly)
    throw new TierkvError("ROLE_MISSING", { role: "read", call: "Store", needed: "write" });
}

function storeBatch(
  attempt: Attempt,
  whose: { namespace: Buffer; recordClass: RecordClass; tenant: number; flushed: number },
  batch: readonly StoreItem[],
): Promise<ItemStatus[]> {
  const { onProgress, broken } = attempt;
  const { namespace, recordClass, tenant, flushed } = whose;
  const offer = {
    namespace,
    tenant,
    flushed,
    keys: Buffer.concat(batch.map((item) => item.key)),
    recordBytes: batch.map((item) => item.record.length),
    recordClass: classNumber(recordClass),
  };
  const records = batch.map((item) => item.record);
  return runStore(attempt.channel, offer, records, { ...attempt.options(), onProgress, broken });
}
