// Owns the calls a program makes to one vault: each bounded, split to the vault's limits, and checked on arrival.
import { classNumber, ItemStatus, keyAt, keyCount } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { MADE_NOW, REPORT_KEYS_MAX } from "../../base/limits/general.ts";
import type { Goodput } from "../../base/native.ts";
import type * as m from "../../wire/messages.ts";
import { ServingStatus } from "../../wire/messages.ts";
import { healthService, VAULT_SERVICE_NAME, vaultService } from "../../wire/service.ts";
import { Archive } from "../archive/archive.ts";
import type { FlushFeed } from "../flush-feed.ts";
import { OF_A_REQUEST } from "../source.ts";
import type {
  BlockStore,
  FetchOptions,
  FetchWindow,
  Offer,
  PeerState,
  Purpose,
  Refusal,
  Settled,
  StoreItem,
} from "../source.ts";
import { splitKeys } from "../split.ts";
import type { Attempt } from "./attempt.ts";
import { VaultConnection } from "./connection.ts";
import type { VaultClientOptions } from "./connection.ts";
import { joinOffers, offered, offersOf } from "./found.ts";
import type { LanesState } from "./lane-phase.ts";
import type { LanesSettled, Probed } from "./lane-requests.ts";
import type { TriedRail } from "./rails.ts";

/**
 * One client per vault address; it connects with the first call and says hello after every connect. Every call ends within its
 * `deadlineMs` (a duration). Calls reject only with its `refusal` or coded errors: VAULT_DOWN, VAULT_DEADLINE, VAULT_REFUSED,
 * VAULT_BUSY, VAULT_BROKEN, VAULT_CLASS, VERSION_MISMATCH, ROLE_MISSING, LANES_UNREACHABLE, CANCELLED, CLOSED.
 */
export class VaultClient implements BlockStore {
  readonly tier = "vault";
  /** The class of records this vault must hold. */
  readonly name: RecordClass;
  readonly address: string;
  /** The source of records that only its archive has. */
  readonly archive: Archive = new Archive(this);
  readonly #connection: VaultConnection;

  constructor(options: VaultClientOptions) {
    this.name = options.name;
    this.address = options.address;
    this.#connection = new VaultConnection(options);
  }

  /** Meters of bytes: `down` for fetches, `up` for stored records that the vault took. */
  get down(): Goodput {
    return this.#connection.down;
  }

  get up(): Goodput {
    return this.#connection.up;
  }

  get state(): PeerState {
    return this.#connection.state;
  }

  /** Why the vault is not up; empty while it is. */
  get trouble(): string {
    return this.#connection.trouble;
  }

  /** True while the vault must not be asked: its breaker is open, so calls fail at once, or no lane opens. */
  get isDown(): boolean {
    return this.#connection.isDown;
  }

  /** State of the lanes; without them no record travels. */
  get lanes(): LanesState {
    return this.#connection.lanes.state;
  }

  /** True where the vault lets this client only read. */
  get isReadOnly(): boolean {
    return this.#connection.isReadOnly;
  }

  get refusal(): Refusal | null {
    if (this.isDown) return "vault_down";
    return this.isReadOnly ? "read_only" : null;
  }

  /** Requests tried a second time, and ones that failed without a retry. */
  get retries(): { taken: number; refused: number } {
    return this.#connection.retries;
  }

  /** Epoch in the last hello; null before the first. A new epoch means that the vault has lost its memory. */
  get epoch(): number | null {
    return this.#connection.epoch;
  }

  /** Capacity in bytes as last reported; null before the first hello. */
  get capacityBytes(): number | null {
    return this.#connection.capacityBytes;
  }

  /** True while the vault, as last reported, is being drained and takes no new records. */
  get isDraining(): boolean {
    return this.#connection.isDraining;
  }

  /** Paths to the vault that are out of use while another is used. */
  get cut(): string[] {
    return this.#connection.cut;
  }

  /** Number of rails its lanes use; 0: the lanes are not up. */
  get lanesOver(): number {
    return this.#connection.lanes.over;
  }

  get isRefusing(): boolean {
    return this.#connection.isRefusing;
  }

  get isLent(): boolean {
    return this.#connection.lanes.isLent;
  }

  /** Longest packet of the first rail; null: the system does not say. */
  get mtu(): number | null {
    return this.#connection.lanes.mtu;
  }

  /** Returns all rails to the vault, once each was tried; several where it announced further addresses. */
  rails(): Promise<TriedRail[]> {
    return this.#connection.rails();
  }

  get flushes(): FlushFeed {
    return this.#connection.flushes;
  }

  /** Asks the vault, even while it counts as down. */
  hello(deadlineMs: number): Promise<m.HelloReply> {
    return this.#connection.hello(deadlineMs);
  }

  /** Returns a bitmap of the packed `keys` that the vault holds. */
  async lookup(...asked: Parameters<VaultClient["find"]>): Promise<Buffer> {
    return offered(await this.find(...asked), keyCount(asked[1]));
  }

  /** Offers what the vault has, and what only its archive has; over gRPC the two are not told apart. */
  find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose: Purpose = OF_A_REQUEST,
  ): Promise<readonly Offer[]> {
    return this.#connection.call("Lookup", deadlineMs, async (attempt, vault) => {
      const ask = async (part: Buffer): Promise<readonly Offer[]> => {
        const found = await this.#connection.lanes.lookup(namespace, part, attempt, purpose);
        if (found !== null) return offersOf(found, keyCount(part), this, this.archive);
        const { trace, isCounted } = purpose;
        const traced = trace === null ? {} : { trace };
        const request = { namespace, keys: part, uncounted: !isCounted, ...traced };
        const options = attempt.options();
        const { present } = await attempt.channel.unary(vaultService.Lookup, request, options);
        const expected = Math.ceil(keyCount(part) / 8);
        if (present.length === expected)
          return offersOf(present, keyCount(part), this, this.archive);
        throw attempt.broken(`bitmap of ${present.length} bytes for ${keyCount(part)} keys`);
      };
      if (keyCount(keys) <= vault.maxKeys) return await ask(keys);
      return joinOffers(await Promise.all(splitKeys(keys, vault.maxKeys).map(ask)));
    });
  }

  /** Returns a bitmap of the packed `keys`, at most KEYS_MAX, that would survive a power failure of the vault now. */
  durable(namespace: Buffer, keys: Buffer, deadlineMs: number): Promise<Buffer> {
    return this.#connection.call("Lookup", deadlineMs, async ({ channel, options }) => {
      const request = { namespace, keys, askDurable: true };
      const { durable } = await channel.unary(vaultService.Lookup, request, options());
      return durable;
    });
  }

  /**
   * Stores records for `tenant`, put-if-absent, made with knowledge of flushes up to `flushed`. Returns one status per item,
   * INCOMPLETE where a record can no longer be made. Records accepted before a failure stay in the vault.
   */
  store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant = 0,
    flushed: number = MADE_NOW,
    trace: Buffer | null = null,
  ): Promise<ItemStatus[]> {
    return this.#connection.call("Store", deadlineMs, async (attempt, vault) => {
      // No lane carries records that would be refused.
      if (vault.readOnly)
        throw new TierkvError("ROLE_MISSING", { role: "read", call: "Store", needed: "write" });
      const on = [tenant, flushed, trace] as const;
      const statuses = items.map((): ItemStatus => ItemStatus.INCOMPLETE);
      let left = [...items.keys()];
      while (left.length > 0) {
        const batch = left.flatMap((index) => items[index] ?? []);
        const keys = Buffer.concat(batch.map(({ key }) => key));
        const ids = Uint32Array.from(batch, ({ record }) => record.id);
        const settled = await this.#connection.lanes.store(namespace, keys, ids, attempt, ...on);
        for (const [at, index] of left.entries()) {
          statuses[index] = settled.statuses[at] as ItemStatus;
        }
        left = left.filter((index) => statuses[index] === ItemStatus.INCOMPLETE);
        // Working lanes could not encode it at its announced length, so it is encoded first.
        if (!settled.isBroken) left = await made(items, left);
      }
      return statuses;
    });
  }

  fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    const { deadlineMs, stallMs, signal } = options;
    const work = (attempt: Attempt): Promise<Settled> => {
      const fetch = (part: FetchWindow): Promise<LanesSettled> =>
        this.#connection.lanes.fetch(namespace, part, attempt, stallMs);
      const again = (left: readonly number[]): Promise<LanesSettled> => {
        if (stallMs !== undefined) attempt.mustBegin(stallMs);
        return fetch(partOf(window, left));
      };
      return fetch(window).then((all) => (all.isBroken ? completed(all, again) : all));
    };
    return this.#connection.call("Fetch", deadlineMs, work, signal, stallMs);
  }

  /** Fetches records undecoded, verified but not opened, into reserved ids of the native outbox. */
  collect(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    deadlineMs: number,
  ): Promise<Settled> {
    return this.#connection.call("Fetch", deadlineMs, (attempt) =>
      this.#connection.lanes.take(namespace, keys, records, attempt),
    );
  }

  /** Lists records of the vault, or of a session, after the last one of an earlier page (empty: from the first). */
  list(after: Buffer, deadlineMs: number, of: SessionName = ANYBODY): Promise<m.ListReply> {
    const request = { ...of, recordClass: classNumber(this.name), after };
    return this.#connection.call("List", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.List, request, options()),
    );
  }

  /** Drains the vault, which then takes no new records; with `isEnd` it does again. */
  drain(deadlineMs: number, isEnd = false): Promise<m.DrainReply> {
    return this.#connection.call("Drain", deadlineMs, async ({ channel, options }) => {
      const reply = await channel.unary(vaultService.Drain, { end: isEnd }, options());
      this.#connection.isDraining = !isEnd;
      return reply;
    });
  }

  /** Reports records that did not verify here; the vault checks its copies: QUARANTINED, PRESENT (sound there) or MISSING. */
  report(
    namespace: Buffer,
    keys: Buffer,
    reason: string,
    deadlineMs: number,
  ): Promise<ItemStatus[]> {
    return this.#connection.call("Report", deadlineMs, async (attempt) => {
      const statuses: ItemStatus[] = [];
      for (const part of splitKeys(keys, REPORT_KEYS_MAX)) {
        const request = { namespace, keys: part, reason };
        const reply = await attempt.channel.unary(vaultService.Report, request, attempt.options());
        statuses.push(...(reply.statuses as ItemStatus[]));
      }
      return statuses;
    });
  }

  /** Assigns records to a session, or keeps or ends it. At most one call's keys. */
  keep(request: m.KeepRequest, deadlineMs: number): Promise<m.KeepReply> {
    return this.#connection.call("Keep", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Keep, request, options()),
    );
  }

  async sessions(deadlineMs: number): Promise<m.Session[]> {
    return this.#connection.call("Sessions", deadlineMs, async ({ channel, options }) => {
      const { sessions } = await channel.unary(vaultService.Sessions, {}, options());
      return sessions;
    });
  }

  /** Moves `chunks` MiB (at most 256) that are no record over the lanes, to the vault or from it, to measure the link alone. */
  probe(chunks: number, isToVault: boolean, deadlineMs: number): Promise<Probed> {
    return this.#connection.call("Probe", deadlineMs, (attempt) =>
      this.#connection.lanes.probe(chunks, isToVault, attempt),
    );
  }

  async stats(deadlineMs: number): Promise<m.StatsReply> {
    const stats = await this.#connection.call("Stats", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Stats, {}, options()),
    );
    this.#connection.isDraining = stats.draining;
    return stats;
  }

  /** Drops the records of one namespace or model (null: of all), one class (null: of both) and one tenant (0: of all). */
  flush(
    namespace: Buffer | null,
    deadlineMs: number,
    recordClass: RecordClass | null = null,
    model: string | null = null,
    tenant = 0,
    id = "",
  ): Promise<m.FlushReply> {
    const request = {
      namespace: namespace ?? Buffer.alloc(0),
      recordClass: recordClass === null ? 0 : classNumber(recordClass),
      model: model ?? "",
      tenant,
      id,
    };
    return this.#connection.call("Flush", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Flush, request, options()),
    );
  }

  /** Leases a namespace of `measuringNamespace` for minutes; with `isEnd` drops what is stored under it. */
  measure(namespace: Buffer, deadlineMs: number, isEnd = false): Promise<m.MeasureReply> {
    return this.#connection.call("Measure", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Measure, { namespace, end: isEnd }, options()),
    );
  }

  /** Reports drops here, and waits until the vault flushes, drains or changes weight, or for a while; the client knows the news by then. */
  async watch(
    request: Omit<m.WatchRequest, "flushed" | "draining" | "capacityBytes">,
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const work = async ({ channel, options }: Attempt): Promise<void> => {
      const believed = { draining: this.isDraining, capacityBytes: this.capacityBytes ?? 0 };
      const asked = { ...request, ...believed, flushed: this.flushes.number };
      const reply = await channel.unary(vaultService.Watch, asked, options());
      const { flushes, draining, capacityBytes } = reply;
      this.#connection.isDraining = draining;
      if (capacityBytes > 0) this.#connection.capacityBytes = capacityBytes;
      if (flushes !== null) this.flushes.receive(flushes);
    };
    await this.#connection.listen("Watch", deadlineMs, work, signal);
  }

  /** Names a namespace's model, for flushes by model. */
  nameModel(namespace: Buffer, model: string, deadlineMs: number): Promise<m.NameReply> {
    return this.#connection.call("Name", deadlineMs, ({ channel, options }) =>
      channel.unary(vaultService.Name, { namespace, model }, options()),
    );
  }

  /** True while the vault serves; false once it drains. Asks even while it counts as down. */
  async health(deadlineMs: number): Promise<boolean> {
    const { status } = await this.#connection.direct("Health", deadlineMs, ({ channel, options }) =>
      channel.unary(healthService.Check, { service: VAULT_SERVICE_NAME }, options()),
    );
    return status === ServingStatus.SERVING;
  }

  /** Cancels all calls under way and closes the connection. Idempotent. */
  close(): void {
    this.#connection.close();
  }
}

/** Owner of the listed records. */
export type SessionName = Pick<m.ListRequest, "session" | "namespace" | "tenant" | "hot">;

const ANYBODY: SessionName = { session: "", namespace: Buffer.alloc(0), tenant: 0 };

/** Encodes the deferred records among `left`, and returns the ones that are encoded now; the others never will be. */
async function made(items: readonly StoreItem[], left: readonly number[]): Promise<number[]> {
  const deferred = left.flatMap((index) => {
    const record = items[index]?.record;
    return record?.isDeferred === true ? [{ index, record }] : [];
  });
  await Promise.allSettled(deferred.map(({ record }) => record.make()));
  return deferred.flatMap(({ index, record }) => (record.isDeferred ? [] : [index]));
}

/** Fetches what broken lanes did not bring, until lanes hold or nothing is left. */
async function completed(
  all: LanesSettled,
  fetch: (left: readonly number[]) => Promise<LanesSettled>,
): Promise<Settled> {
  for (let isBroken = all.isBroken; isBroken;) {
    const left = [...all.statuses.keys()].filter(
      (index) => all.statuses[index] === ItemStatus.INCOMPLETE,
    );
    if (left.length === 0) break;
    const more = await fetch(left);
    for (const [at, index] of left.entries()) all.statuses[index] = more.statuses[at] ?? 0;
    all.bytes += more.bytes;
    all.reason ??= more.reason;
    isBroken = more.isBroken;
  }
  return all;
}

/** Returns the part of a plan with these items. */
function partOf(window: FetchWindow, items: readonly number[]): FetchWindow {
  const { keys, geometries, leases } = window;
  return {
    ...window,
    keys: Buffer.concat(items.map((item) => keyAt(keys, item))),
    geometries: Uint32Array.from(items, (item) => geometries[item] ?? 0),
    leases: Uint32Array.from(items.flatMap((item) => [...leases.subarray(item * 2, item * 2 + 2)])),
  };
}
