// Owns a vault in shared memory of this machine, with the calls of a remote one and no socket.
import { createHash } from "node:crypto";
import { setMaxListeners } from "node:events";
import { stat } from "node:fs/promises";
import { classNumber, countBits, keyCount } from "../../base/block.ts";
import type { ItemStatus, RecordClass } from "../../base/block.ts";
import type { CancelSignal } from "../../base/cancellation.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { sharedPath } from "../../base/hosts.ts";
import {
  CALL_TIMEOUT_MS,
  CLIENT_CALLS_MAX,
  HELLO_TIMEOUT_MS,
  MADE_NOW,
} from "../../base/limits/general.ts";
import { SHARED_NEWS_MS } from "../../base/limits/shared.ts";
import type { Logger } from "../../base/log.ts";
import type { RegionId } from "../../base/native.ts";
import {
  Goodput,
  shmCheck,
  shmFetch,
  shmFill,
  shmFlush,
  shmLookup,
  shmName,
  shmNews,
  shmStore,
  shmTake,
} from "../../base/native.ts";
import { nowMs, sleep } from "../../base/time.ts";
import { packageVersion } from "../../base/version.ts";
import type { FlushReply, StatsReply } from "../../wire/messages.ts";
import { Breaker } from "../breaker.ts";
import type { VaultState } from "../breaker.ts";
import { FlushFeed } from "../flush-feed.ts";
import type { Outcome } from "../requests.ts";
import { NO_COST, OF_A_REQUEST } from "../source.ts";
import type {
  BlockStore,
  FetchOptions,
  FetchWindow,
  Offer,
  Purpose,
  Refusal,
  Settled,
  StoreItem,
} from "../source.ts";
import { lookUpNow, newsOf, Region } from "./region.ts";
import type { RegionOptions, RegionRunOptions } from "./region.ts";

export interface SharedVaultOptions extends RegionOptions {
  logger: Logger;
}

export class SharedVault implements BlockStore {
  readonly tier = "shared";
  readonly name: RecordClass;
  readonly address: string;
  readonly flushes: FlushFeed = new FlushFeed();
  readonly down: Goodput = new Goodput();
  readonly up: Goodput = new Goodput();
  readonly isDraining = false;
  readonly #path: string;
  readonly #region: Region;
  readonly #breaker: Breaker;
  readonly #closing = new AbortController();
  readonly #logger: Logger;
  #calls = 0;
  /** True once its file was removed or replaced, because flushes of the new file do not reach this mapping. */
  #isLost = false;
  /** This process's keys asked and found, bytes fetched and stored. */
  readonly #counts = { lookup_keys: 0, lookup_hits: 0, fetched_bytes: 0, stored_bytes: 0 };
  #seen = { atMs: nowMs(), out: 0, in: 0 };

  /** Opens the region, or makes it if missing. Rejects with SHARED_REGION for an unfit one. */
  static async open(options: SharedVaultOptions): Promise<SharedVault> {
    const path = sharedPath(options.address) ?? "";
    return new SharedVault(options, path, await Region.open(path, options));
  }

  private constructor(options: SharedVaultOptions, path: string, region: Region) {
    const { address, name, logger } = options;
    this.address = address;
    this.name = name;
    this.#logger = logger;
    this.#path = path;
    this.#region = region;
    const { coherence, flush } = region;
    logger.info({ vault: address, coherence }, "shared memory is mapped");
    // Each open call listens.
    setMaxListeners(0, this.#closing.signal);
    // No copies of its records exist here yet, so earlier flushes do not matter.
    this.flushes.receive({ number: flush, everything: true, flushes: [] });
    this.#breaker = new Breaker({
      probe: () => this.#probe(),
      onChange: (state, reason) => {
        const vault = `${name} vault at ${address}`;
        if (this.#breaker.isOpen) logger.warn({ vault, reason }, `shared memory is ${state}`);
        else logger.info({ vault }, `shared memory is ${state}`);
      },
    });
    this.#breaker.succeeded();
  }

  get state(): VaultState {
    return this.#isLost ? "down" : this.#breaker.state;
  }

  get trouble(): string {
    return this.#isLost ? LOST : this.#breaker.reason;
  }

  get isDown(): boolean {
    return this.#isLost || this.#breaker.isOpen;
  }

  get refusal(): Refusal | null {
    return this.isDown ? "vault_down" : null;
  }

  get epoch(): number {
    return this.#region.epoch;
  }

  /** null: shared memory is no member of a pool, where capacity decides ownership. */
  get capacityBytes(): number | null {
    return null;
  }

  async find(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    purpose: Purpose = OF_A_REQUEST,
  ): Promise<readonly Offer[]> {
    const held = await this.lookup(namespace, keys, deadlineMs, purpose);
    return [{ source: this, keys: held, cost: NO_COST }];
  }

  /** Returns a bitmap of the packed `keys` that are readable now. */
  async lookup(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    { isCounted }: Purpose = OF_A_REQUEST,
  ): Promise<Buffer> {
    const begin = (id: RegionId): number => shmLookup(id, namespace, keys);
    const now = (id: RegionId): Outcome | null => lookUpNow(id, namespace, keys);
    const { data } = await this.#call("Lookup", { deadlineMs, now }, begin);
    if (!isCounted) return data;
    this.#counts.lookup_keys += keyCount(keys);
    this.#counts.lookup_hits += countBits(data, keyCount(keys));
    return data;
  }

  async fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    const { arena, fidelity, keys, geometries, leases } = window;
    const begin = (id: RegionId): number =>
      shmFetch(id, arena, fidelity, namespace, keys, geometries, leases);
    return this.#fetched(await this.#call("Fetch", options, begin));
  }

  async collect(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    deadlineMs: number,
  ): Promise<Settled> {
    const begin = (id: RegionId): number => shmTake(id, namespace, keys, [...records]);
    return this.#fetched(await this.#call("Fetch", { deadlineMs }, begin));
  }

  #fetched({ data, numbers, reason }: Outcome): Settled {
    const bytes = numbers[1] ?? 0;
    this.#counts.fetched_bytes += bytes;
    this.down.moved(bytes);
    return { statuses: new Uint8Array(data), bytes, reason };
  }

  /** Stores records for `tenant`, put-if-absent; deferred records are encoded by its threads. */
  async store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant = 0,
    flushed: number = MADE_NOW,
    _trace: Buffer | null = null,
  ): Promise<ItemStatus[]> {
    const keys = Buffer.concat(items.map(({ key }) => key));
    const records = Uint32Array.from(items, ({ record }) => record.id);
    const begin = (id: RegionId): number =>
      shmStore(id, classNumber(this.name), namespace, keys, records, tenant, flushed);
    const { data, numbers } = await this.#call("Store", { deadlineMs }, begin);
    const bytes = numbers[1] ?? 0;
    this.#counts.stored_bytes += bytes;
    this.up.moved(bytes);
    return [...data] as ItemStatus[];
  }

  /** Reports records that did not verify here; damaged ones are dropped (QUARANTINED). */
  async report(
    namespace: Buffer,
    keys: Buffer,
    _reason: string,
    deadlineMs: number,
  ): Promise<ItemStatus[]> {
    const begin = (id: RegionId): number => shmCheck(id, namespace, keys);
    const { data } = await this.#call("Report", { deadlineMs }, begin);
    return [...data] as ItemStatus[];
  }

  /** Names a namespace's model, for flushes by model. */
  async nameModel(
    namespace: Buffer,
    model: string,
    deadlineMs: number,
  ): Promise<Record<string, never>> {
    const begin = (id: RegionId): number => shmName(id, namespace, digestOf(model));
    await this.#call("Name", { deadlineMs }, begin);
    return {};
  }

  /** Rejects when the region is not in order. */
  async hello(deadlineMs: number): Promise<void> {
    await this.#call("Hello", { deadlineMs }, shmFill);
  }

  async health(deadlineMs: number): Promise<boolean> {
    await this.hello(deadlineMs);
    return true;
  }

  /** Returns null: no link carries plain bytes here. */
  probe(): Promise<null> {
    return Promise.resolve(null);
  }

  /** Drops the measured records at the end. */
  async measure(namespace: Buffer, deadlineMs: number, isEnd = false): Promise<void> {
    if (isEnd) await this.flush(namespace, deadlineMs);
  }

  /** Returns statistics; look-ups and bytes are this process's only. */
  async stats(deadlineMs: number): Promise<StatsReply> {
    const { numbers } = await this.#call("Stats", { deadlineMs }, shmFill);
    const [, records = 0, usedBytes = 0, maxBytes = 0, evicted = 0, members = 0] = numbers;
    const { fetched_bytes: out, stored_bytes: into } = this.#counts;
    const before = this.#seen;
    this.#seen = { atMs: nowMs(), out, in: into };
    const perS = (bytes: number): number =>
      Math.round((bytes / Math.max(1, this.#seen.atMs - before.atMs)) * 1000);
    return {
      version: packageVersion(),
      recordClass: classNumber(this.name),
      epoch: this.epoch,
      uptimeMs: 0,
      maxBytes,
      usedBytes,
      reservedBytes: 0,
      records,
      namespaces: 0,
      counters: { ...this.#counts, evicted, members },
      disk: null,
      lanes: 0,
      outBytesPerS: perS(out - before.out),
      inBytesPerS: perS(into - before.in),
      spareBytes: 0,
      draining: false,
      weight: 1,
      keptBytes: 0,
      sessions: 0,
    };
  }

  /** Drops the records of one namespace (null: of all), one class (null: of both), one model and one tenant (0: of all). */
  async flush(
    namespace: Buffer | null,
    deadlineMs: number,
    recordClass: RecordClass | null = null,
    model: string | null = null,
    tenant = 0,
  ): Promise<FlushReply> {
    const wanted = recordClass === null ? 0 : classNumber(recordClass);
    const named = model === null ? null : digestOf(model);
    const begin = (id: RegionId): number => shmFlush(id, namespace, wanted, tenant, named);
    const { numbers } = await this.#call("Flush", { deadlineMs }, begin);
    const [number = 0, records = 0, bytes = 0] = numbers;
    const nowhere = {
      diskBytes: 0,
      volatile: false,
      sidecars: [],
      unknownModel: false,
      models: [],
    };
    return { records, bytes, number, ...nowhere };
  }

  /** Waits for a flush or the deadline; `flushes` has reported it by then. */
  async watch(
    { leaving }: { leaving: boolean },
    deadlineMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const { number } = this.flushes;
    const endMs = nowMs() + deadlineMs;
    while (!leaving && !this.#isLost && nowMs() < endMs && this.flushes.number === number) {
      await sleep(SHARED_NEWS_MS, signal);
      await this.#receiveNews(signal);
      await this.#lookForFile();
    }
    // A lost region has no more news.
    if (this.#isLost && !leaving) await sleep(Math.max(0, endMs - nowMs()), signal);
  }

  /** Leaves the region. Idempotent. */
  close(): void {
    if (this.#closing.signal.aborted) return;
    this.#closing.abort(this.#closedError());
    this.#breaker.close();
    this.#region.close();
  }

  async #call(
    call: string,
    { deadlineMs, stallMs, signal, now }: FetchOptions & Pick<RegionRunOptions, "now">,
    begin: (id: RegionId) => number,
  ): Promise<Outcome> {
    const context = this.#context(call, deadlineMs);
    if (this.#closing.signal.aborted) throw this.#closedError();
    if (this.#isLost) throw new TierkvError("VAULT_DOWN", { ...context, reason: LOST });
    if (this.isDown) {
      const reason = `it is not used until it answers again; last failure: ${this.#breaker.reason}`;
      throw new TierkvError("VAULT_DOWN", { ...context, reason });
    }
    if (this.#calls >= CLIENT_CALLS_MAX) {
      const reason = `${this.#calls} calls are under way, the limit is ${CLIENT_CALLS_MAX}`;
      throw new TierkvError("VAULT_BUSY", { ...context, reason });
    }
    this.#calls += 1;
    try {
      const timeoutMs = deadlineMs;
      const outcome = await this.#run(context, begin, { timeoutMs, stallMs, signal, now });
      this.#breaker.succeeded();
      // The feed reports a flush before answers that came after it.
      if (call !== "Flush" && outcome.numbers[0] !== this.flushes.number) {
        await this.#receiveNews(signal);
      }
      return outcome;
    } catch (error) {
      const known = toTierkvError(error);
      if (COUNTS_AGAINST_REGION.has(known.code) && signal?.aborted !== true) {
        this.#breaker.failed(known);
      }
      throw known;
    } finally {
      this.#calls -= 1;
    }
  }

  async #run(
    context: Context,
    begin: (id: RegionId) => number,
    {
      signal,
      ...how
    }: Omit<RegionRunOptions, "signals" | "errorOf"> & Pick<FetchOptions, "signal">,
  ): Promise<Outcome> {
    const signals = [this.#closing.signal, ...(signal === undefined ? [] : [signal])];
    const errorOf = (code: "VAULT_DEADLINE" | "FETCH_STALLED"): TierkvError =>
      new TierkvError(code, { ...context, reason: `no byte came for ${how.stallMs ?? 0} ms` });
    try {
      return await this.#region.run(begin, { ...how, signals, errorOf });
    } catch (error) {
      const known = toTierkvError(error);
      const reason = known.message;
      if (known.code === "NO_MEMORY") throw new TierkvError("VAULT_BUSY", { ...context, reason });
      if (known.code === "ARENA_FAILED")
        throw new TierkvError("VAULT_BROKEN", { ...context, reason });
      throw known;
    }
  }

  async #receiveNews(signal?: CancelSignal): Promise<void> {
    const context = this.#context("Watch", CALL_TIMEOUT_MS);
    const begin = (id: RegionId): number => shmNews(id, this.flushes.number);
    const timeoutMs = CALL_TIMEOUT_MS;
    this.flushes.receive(newsOf(await this.#run(context, begin, { timeoutMs, signal })));
  }

  async #probe(): Promise<void> {
    const timeoutMs = HELLO_TIMEOUT_MS;
    await this.#run(this.#context("Stats", timeoutMs), shmFill, { timeoutMs });
  }

  /** Checks the region's file. A replaced one is left, because flushes of the new file would be missed here. */
  async #lookForFile(): Promise<void> {
    const { ino } = await stat(this.#path).catch(() => ({ ino: null }));
    if (this.#isLost || ino === this.epoch) return;
    this.#isLost = true;
    this.#logger.warn({ vault: this.address }, LOST);
    // An unused number, so that copies of its records are dropped as well.
    this.flushes.receive({ number: this.flushes.number + 1, everything: true, flushes: [] });
  }

  #context(call: string, timeoutMs: number): Context {
    return { name: this.name, address: this.address, call, timeoutMs };
  }

  #closedError(): TierkvError {
    return new TierkvError("CLOSED", { what: `the client of the ${this.name} vault` });
  }
}

const LOST = "the region's file was removed or replaced: restart this sidecar";

function digestOf(model: string): Buffer {
  return createHash("sha256").update(model).digest();
}

const COUNTS_AGAINST_REGION: ReadonlySet<string> = new Set(["VAULT_DEADLINE", "VAULT_BROKEN"]);

interface Context {
  [name: string]: string | number;
  name: string;
  address: string;
  call: string;
  timeoutMs: number;
}
