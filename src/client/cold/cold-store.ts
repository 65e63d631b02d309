// Owns a store that others run (Valkey, S3) as a source and a destination: the native desk's requests, with the deadlines and states of a vault.
import { setMaxListeners } from "node:events";
import { classNumber, countBits, keyCount } from "../../base/block.ts";
import type { ItemStatus, RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { COLD_GRACE_MS } from "../../base/limits/cold.ts";
import { CLIENT_CALLS_MAX, HELLO_TIMEOUT_MS, KEYS_MAX } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { ColdId } from "../../base/native.ts";
import {
  coldCancel,
  coldCheck,
  coldClose,
  coldFetch,
  coldLookup,
  coldOpen,
  coldPing,
  coldProgress,
  coldRefusals,
  coldStore,
  coldTake,
  Goodput,
} from "../../base/native.ts";
import { packageVersion } from "../../base/version.ts";
import type { FlushReply, StatsReply } from "../../wire/messages.ts";
import { Breaker } from "../breaker.ts";
import { FlushFeed } from "../flush-feed.ts";
import { Requests } from "../requests.ts";
import type { Outcome } from "../requests.ts";
import { NO_COST, OF_A_REQUEST } from "../source.ts";
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

export interface ColdStoreOptions {
  /** `valkey://host:port` or `s3://bucket/prefix`. */
  address: string;
  /** The class of records that is kept there. */
  name: RecordClass;
  /** Time to live of a record in seconds; null: the store's own rules. */
  ttlS: number | null;
  logger: Logger;
}

export class ColdStore implements BlockStore {
  readonly tier = "vault";
  readonly name: RecordClass;
  readonly address: string;
  /** Its own tools flush it, so that no flush is ever reported. */
  readonly flushes: FlushFeed = new FlushFeed();
  readonly down: Goodput = new Goodput();
  readonly up: Goodput = new Goodput();
  readonly isDraining = false;
  /** null: it is no member of a pool, and its size is its operator's. */
  readonly capacityBytes = null;
  readonly epoch = 0;
  readonly #id: ColdId;
  readonly #requests = new Requests();
  readonly #breaker: Breaker;
  readonly #closing = new AbortController();
  #calls = 0;
  /** This process's keys asked and found, bytes fetched and stored. */
  readonly #counts = { lookup_keys: 0, lookup_hits: 0, fetched_bytes: 0, stored_bytes: 0 };

  /** Connects with the first call. Throws BAD_ARGUMENT or DISK_FAILED for an address or credentials that cannot be used. */
  constructor({ address, name, ttlS, logger }: ColdStoreOptions) {
    this.address = address;
    this.name = name;
    this.#id = coldOpen(address, ttlS, this.#requests.settle);
    // Each open call listens.
    setMaxListeners(0, this.#closing.signal);
    this.#breaker = new Breaker({
      probe: () => this.#run("Ping", { deadlineMs: HELLO_TIMEOUT_MS }, coldPing).then(() => {}),
      onChange: (state, reason) => {
        const store = { store: address };
        if (this.#breaker.isOpen) logger.warn({ ...store, reason }, `store is ${state}`);
        else logger.info(store, `store is ${state}`);
      },
    });
  }

  get state(): PeerState {
    return this.#breaker.state;
  }

  get trouble(): string {
    return this.#breaker.reason;
  }

  get isDown(): boolean {
    return this.#breaker.isOpen;
  }

  get refusal(): Refusal | null {
    return this.isDown ? "vault_down" : null;
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

  /** Returns a bitmap of the packed `keys` that are there. */
  async lookup(
    namespace: Buffer,
    keys: Buffer,
    deadlineMs: number,
    { isCounted }: Purpose = OF_A_REQUEST,
  ): Promise<Buffer> {
    const parts = splitKeys(keys, KEYS_MAX).map((part) =>
      this.#call("Lookup", { deadlineMs }, (id, ms) => coldLookup(id, ms, namespace, part)),
    );
    // Each part but the last fills whole bytes.
    const held = Buffer.concat((await Promise.all(parts)).map(({ data }) => data));
    if (!isCounted) return held;
    this.#counts.lookup_keys += keyCount(keys);
    this.#counts.lookup_hits += countBits(held, keyCount(keys));
    return held;
  }

  async fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    const { arena, fidelity, keys, geometries, leases } = window;
    const begin: Begin = (id, ms) =>
      coldFetch(id, arena, ms, fidelity, namespace, keys, geometries, leases);
    return this.#fetched(await this.#call("Fetch", options, begin));
  }

  async collect(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    deadlineMs: number,
  ): Promise<Settled> {
    const begin: Begin = (id, ms) => coldTake(id, ms, namespace, keys, [...records]);
    return this.#fetched(await this.#call("Fetch", { deadlineMs }, begin));
  }

  #fetched({ data, numbers, reason }: Outcome): Settled {
    const [bytes = 0] = numbers;
    this.#counts.fetched_bytes += bytes;
    this.down.moved(bytes);
    return { statuses: new Uint8Array(data), bytes, reason };
  }

  /** Stores records put-if-absent; deferred records are encoded on their way. Tenants and flushes are not told apart there. */
  async store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
  ): Promise<ItemStatus[]> {
    const keys = Buffer.concat(items.map(({ key }) => key));
    const records = Uint32Array.from(items, ({ record }) => record.id);
    const begin: Begin = (id, ms) => coldStore(id, ms, namespace, keys, records);
    const { data, numbers } = await this.#call("Store", { deadlineMs }, begin);
    const [bytes = 0] = numbers;
    this.#counts.stored_bytes += bytes;
    this.up.moved(bytes);
    return [...data] as ItemStatus[];
  }

  /** Has reported records read and verified again; damaged ones are removed (QUARANTINED). */
  async report(
    namespace: Buffer,
    keys: Buffer,
    _reason: string,
    deadlineMs: number,
  ): Promise<ItemStatus[]> {
    const begin: Begin = (id, ms) => coldCheck(id, ms, namespace, keys);
    const { data } = await this.#call("Report", { deadlineMs }, begin);
    return [...data] as ItemStatus[];
  }

  /** Rejects where the store does not answer, or refuses this machine. */
  async hello(deadlineMs: number): Promise<void> {
    await this.#call("Ping", { deadlineMs }, coldPing);
  }

  async health(deadlineMs: number): Promise<boolean> {
    await this.hello(deadlineMs);
    return true;
  }

  /** Returns null: its link is not probed with plain bytes. */
  probe(): Promise<null> {
    return Promise.resolve(null);
  }

  /** Does nothing: measured records expire, or are evicted. */
  measure(): Promise<void> {
    return Promise.resolve();
  }

  /** Rejects with VAULT_REFUSED: the store's own tools flush it. */
  flush(): Promise<FlushReply> {
    const reason =
      "tierKV does not flush Valkey or S3 yet; delete the keys or objects with the store's own tools";
    return Promise.reject(new TierkvError("VAULT_REFUSED", { ...this.#context("Flush"), reason }));
  }

  /** Returns this process's counts and the store's refusals; its size is its operator's to watch. */
  async stats(deadlineMs: number): Promise<StatsReply> {
    await this.hello(deadlineMs);
    const refusals = coldRefusals(this.#id).map(({ name, count }): [string, number] => [
      `refused_${name}`,
      count,
    ]);
    return {
      version: packageVersion(),
      recordClass: classNumber(this.name),
      epoch: this.epoch,
      uptimeMs: 0,
      maxBytes: 0,
      usedBytes: 0,
      reservedBytes: 0,
      records: 0,
      namespaces: 0,
      counters: { ...this.#counts, ...Object.fromEntries<number>(refusals) },
      disk: null,
      lanes: 0,
      outBytesPerS: 0,
      inBytesPerS: 0,
      spareBytes: 0,
      draining: false,
      weight: 1,
      keptBytes: 0,
      sessions: 0,
    };
  }

  /** Closes the connections. Idempotent. */
  close(): void {
    if (this.#closing.signal.aborted) return;
    this.#closing.abort(this.#closedError());
    this.#breaker.close();
    coldClose(this.#id);
  }

  async #call(call: string, options: FetchOptions, begin: Begin): Promise<Outcome> {
    const context = this.#context(call);
    if (this.#closing.signal.aborted) throw this.#closedError();
    if (this.isDown) {
      const reason = `calls fail at once until a probe succeeds; last failure: ${this.#breaker.reason}`;
      throw new TierkvError("VAULT_DOWN", { ...context, reason });
    }
    if (this.#calls >= CLIENT_CALLS_MAX) {
      const reason = `${this.#calls} calls are under way, the limit is ${CLIENT_CALLS_MAX}`;
      throw new TierkvError("VAULT_BUSY", { ...context, reason });
    }
    this.#calls += 1;
    try {
      const outcome = await this.#run(call, options, begin);
      this.#breaker.succeeded();
      return outcome;
    } catch (error) {
      const known = toTierkvError(error);
      if (COUNTS_AGAINST_STORE.has(known.code) && options.signal?.aborted !== true) {
        this.#breaker.failed(known);
      }
      throw known;
    } finally {
      this.#calls -= 1;
    }
  }

  async #run(call: string, options: FetchOptions, begin: Begin): Promise<Outcome> {
    const { deadlineMs, stallMs, signal } = options;
    const context = this.#context(call);
    const errorOf = (code: "VAULT_DEADLINE" | "FETCH_STALLED"): TierkvError =>
      new TierkvError(code, {
        ...context,
        timeoutMs: deadlineMs,
        reason: `${this.address} sent no byte for ${stallMs ?? 0} ms`,
      });
    const signals = [this.#closing.signal, ...(signal === undefined ? [] : [signal])];
    const id = this.#id;
    try {
      return await this.#requests.run(
        // The core's own end comes later, so that a time-out is reported as one.
        () => begin(id, deadlineMs + COLD_GRACE_MS),
        (request) => coldCancel(id, request),
        (request) => coldProgress(id, request),
        { timeoutMs: deadlineMs, stallMs, signals, errorOf },
      );
    } catch (thrown) {
      const known = toTierkvError(thrown);
      const reason = known.message;
      if (known.code === "NO_MEMORY") throw new TierkvError("VAULT_BUSY", { ...context, reason });
      if (known.code === "LANE_FAILED")
        throw new TierkvError("VAULT_BROKEN", { ...context, reason });
      throw known;
    }
  }

  #context(call: string): { name: string; address: string; call: string } {
    return { name: this.name, address: this.address, call };
  }

  #closedError(): TierkvError {
    return new TierkvError("CLOSED", { what: `the client of the store at ${this.address}` });
  }
}

/** Begins a request that ends within a time; returns its number. */
type Begin = (id: ColdId, deadlineMs: number) => number;

const COUNTS_AGAINST_STORE: ReadonlySet<string> = new Set(["VAULT_DEADLINE", "VAULT_BROKEN"]);
