// Owns a store that others run (Valkey, S3) as a source and a destination: the native desk's requests, with the deadlines and states of a vault.
import { setMaxListeners } from "node:events";
import { UNTRUSTED } from "../../base/archive-remedies.ts";
import { classNumber, countBits, keyCount } from "../../base/block.ts";
import type { ItemStatus, RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { storeKind } from "../../base/hosts.ts";
import { COLD_FLUSH_ROUNDS_MAX, COLD_GRACE_MS, COLD_WATCH_MS } from "../../base/limits/cold.ts";
import { CLIENT_CALLS_MAX, HELLO_TIMEOUT_MS, KEYS_MAX } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { ColdId, ColdSettings } from "../../base/native.ts";
import {
  coldCancel,
  coldCheck,
  coldClose,
  coldFetch,
  coldFlush,
  coldLearnModel,
  coldLookup,
  coldName,
  coldNews,
  coldNodes,
  coldOpen,
  coldPing,
  coldProgress,
  coldRefusals,
  coldSpent,
  coldStore,
  coldTake,
  Goodput,
} from "../../base/native.ts";
import { jitterMs, nowMs, sleep } from "../../base/time.ts";
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
  StoreNode,
} from "../source.ts";
import { splitKeys } from "../split.ts";

export interface ColdStoreOptions {
  /** `valkey://host:port` or `s3://bucket/prefix`. */
  address: string;
  /** The class of records that is kept there. */
  name: RecordClass;
  settings: ColdSettings;
  logger: Logger;
}

export class ColdStore implements BlockStore {
  readonly tier = "vault";
  readonly name: RecordClass;
  readonly address: string;
  /** Flushes by any client of Valkey. A bucket is flushed by its own tools, and reports none. */
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

  /** Connects with the first call. Throws BAD_ARGUMENT or STORE_FAILED for an address or credentials that cannot be used. */
  constructor({ address, name, settings, logger }: ColdStoreOptions) {
    this.address = address;
    this.name = name;
    this.#id = coldOpen(address, settings, this.#requests.settle);
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
    { isCounted, tenant = 0 }: Purpose = OF_A_REQUEST,
  ): Promise<Buffer> {
    const parts = splitKeys(keys, KEYS_MAX).map((part) =>
      this.#call("Lookup", { deadlineMs }, (id, ms) => coldLookup(id, ms, tenant, namespace, part)),
    );
    // Each part but the last fills whole bytes.
    const held = Buffer.concat((await Promise.all(parts)).map(({ data }) => data));
    if (!isCounted) return held;
    this.#counts.lookup_keys += keyCount(keys);
    this.#counts.lookup_hits += countBits(held, keyCount(keys));
    return held;
  }

  async fetch(namespace: Buffer, window: FetchWindow, options: FetchOptions): Promise<Settled> {
    const { arena, fidelity, keys, geometries, leases, tenant = 0 } = window;
    const to = { arena, fidelity, tenant };
    const begin: Begin = (id, ms) => coldFetch(id, ms, to, namespace, keys, geometries, leases);
    return this.#fetched(await this.#call("Fetch", options, begin));
  }

  async collect(
    namespace: Buffer,
    keys: Buffer,
    records: readonly number[],
    deadlineMs: number,
    tenant = 0,
  ): Promise<Settled> {
    const begin: Begin = (id, ms) => coldTake(id, ms, tenant, namespace, keys, [...records]);
    return this.#fetched(await this.#call("Fetch", { deadlineMs }, begin));
  }

  #fetched({ data, numbers, reason }: Outcome): Settled {
    const [bytes = 0] = numbers;
    this.#counts.fetched_bytes += bytes;
    this.down.moved(bytes);
    return { statuses: new Uint8Array(data), bytes, reason };
  }

  /** Stores records put-if-absent; deferred records are encoded on their way. One made before a flush that takes it is INCOMPLETE. */
  async store(
    namespace: Buffer,
    items: readonly StoreItem[],
    deadlineMs: number,
    tenant = 0,
    flushed: number | null = null,
  ): Promise<ItemStatus[]> {
    const keys = Buffer.concat(items.map(({ key }) => key));
    const records = Uint32Array.from(items, ({ record }) => record.id);
    const begin: Begin = (id, ms) => coldStore(id, ms, tenant, flushed, namespace, keys, records);
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
    tenant = 0,
  ): Promise<ItemStatus[]> {
    const begin: Begin = (id, ms) => coldCheck(id, ms, tenant, namespace, keys);
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

  /**
   * Puts the records of a scope out of reach for all clients of a Valkey; they are evicted or expire there. Removes a bucket's objects,
   * of a namespace or all (`records` counts objects); of a model or tenant it cannot: VAULT_REFUSED.
   */
  async flush(
    namespace: Buffer | null,
    deadlineMs: number,
    recordClass: RecordClass | null = null,
    model: string | null = null,
    tenant = 0,
  ): Promise<FlushReply> {
    if (storeKind(this.address) === "s3" && (model !== null || tenant !== 0)) {
      const reason = "a bucket does not tell models and tenants apart";
      throw new TierkvError("VAULT_REFUSED", { ...this.#context("Flush"), reason });
    }
    const scope = {
      class: recordClass === null ? 0 : classNumber(recordClass),
      tenant,
      ...(namespace === null ? {} : { namespace }),
      ...(model === null ? {} : { model }),
    };
    const begin: Begin = (id, ms) => coldFlush(id, ms, scope);
    const none = { bytes: 0, diskBytes: 0, volatile: false, sidecars: [] };
    let records = 0;
    for (let round = 0; round < COLD_FLUSH_ROUNDS_MAX; round += 1) {
      const { data } = await this.#call("Flush", { deadlineMs }, begin);
      const { isUnknown, models, removed, isLeft } = JSON.parse(String(data)) as FlushedText;
      records += removed;
      const { number } = this.flushes;
      if (!isLeft) return { ...none, records, number, unknownModel: isUnknown, models };
    }
    const reason = `${records} objects were removed, and more are there: flush again`;
    throw new TierkvError("VAULT_REFUSED", { ...this.#context("Flush"), reason });
  }

  /** Notes a namespace's model, so that names of its records are right from the first one on. */
  learnModel(namespace: Buffer, model: string): void {
    if (!this.#closing.signal.aborted) coldLearnModel(this.#id, namespace, model);
  }

  /** Tells all clients a namespace's model. */
  async nameModel(namespace: Buffer, model: string, deadlineMs: number): Promise<void> {
    const begin: Begin = (id, ms) => coldName(id, ms, namespace, model);
    await this.#call("Name", { deadlineMs }, begin);
  }

  /** Asks every `COLD_WATCH_MS` whether another client has flushed, until one has or the time is over. */
  async watch(_request: unknown, deadlineMs: number, signal: AbortSignal): Promise<void> {
    const [untilMs, known] = [nowMs() + deadlineMs, this.flushes.number];
    while (nowMs() < untilMs && this.flushes.number === known) {
      await sleep(jitterMs(COLD_WATCH_MS / 2, COLD_WATCH_MS), signal);
      await this.#call("Ping", { deadlineMs: HELLO_TIMEOUT_MS, signal }, coldPing);
    }
  }

  /** Refusals of the store since this client began, by name, and the cost of requests to a bucket. */
  counts(): Readonly<Record<string, number>> {
    if (this.#closing.signal.aborted) return {};
    const refusals = coldRefusals(this.#id).map(({ name, count }) => [`refused_${name}`, count]);
    const spent = coldSpent(this.#id).map(({ name, count }) => [`requests_${name}`, count]);
    return Object.fromEntries([...refusals, ...spent]) as Record<string, number>;
  }

  /** Memory of each node of a Valkey, as it tells it; empty for a bucket. */
  async nodes(deadlineMs: number): Promise<readonly StoreNode[]> {
    const { data } = await this.#call("Nodes", { deadlineMs }, coldNodes);
    return JSON.parse(String(data)) as StoreNode[];
  }

  /** Returns this process's counts, the store's refusals, and the memory of its nodes as far as they tell. */
  async stats(deadlineMs: number): Promise<StatsReply> {
    const nodes = await this.nodes(deadlineMs);
    const sum = (of: (node: StoreNode) => number): number =>
      nodes.reduce((total, node) => total + of(node), 0);
    return {
      version: packageVersion(),
      recordClass: classNumber(this.name),
      epoch: this.epoch,
      uptimeMs: 0,
      maxBytes: sum(({ maxBytes }) => maxBytes),
      usedBytes: sum(({ usedBytes }) => usedBytes),
      reservedBytes: 0,
      records: sum(({ keys }) => keys),
      namespaces: 0,
      counters: { ...this.#counts, ...this.counts() },
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
      const reason = `it is not used until it answers again; last failure: ${this.#breaker.reason}`;
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
      const outcome = await this.#requests.run(
        // The core's own end comes later, so that a time-out is reported as one.
        () => begin(id, deadlineMs + COLD_GRACE_MS),
        (request) => coldCancel(id, request),
        (request) => coldProgress(id, request),
        { timeoutMs: deadlineMs, stallMs, signals, errorOf },
      );
      this.#hear();
      return outcome;
    } catch (thrown) {
      const known = toTierkvError(thrown);
      const reason = known.message;
      if (known.code === "NO_MEMORY") throw new TierkvError("VAULT_BUSY", { ...context, reason });
      if (known.code === "LANE_FAILED")
        throw new TierkvError("VAULT_BROKEN", {
          ...context,
          reason: withRemedy(reason, this.address),
        });
      throw known;
    }
  }

  /** Takes the flushes that came to light with an answer, before the answer is used. */
  #hear(): void {
    if (this.#closing.signal.aborted) return;
    const { number, scopes } = coldNews(this.#id, this.flushes.number);
    if (scopes.length === 0) return;
    const first = number - scopes.length + 1;
    const flushes = scopes.map(({ class: recordClass, namespace, model, tenant }, at) => ({
      number: first + at,
      everyNamespace: namespace === undefined && model === undefined,
      namespaces: namespace === undefined ? [] : [namespace],
      recordClass,
      model: model ?? "",
      tenant,
    }));
    this.flushes.receive({ number, everything: false, flushes });
  }

  #context(call: string): { name: string; address: string; call: string } {
    return { name: this.name, address: this.address, call };
  }

  #closedError(): TierkvError {
    return new TierkvError("CLOSED", { what: `the client of the store at ${this.address}` });
  }
}
/** Adds a remedy to a refusal by Valkey's access list, or of a certificate. */
function withRemedy(reason: string, address: string): string {
  const kind = storeKind(address) ?? "valkey";
  const said = reason.replace("lane refused: ", "");
  const found = Object.entries({ ...LOGIN_REMEDIES, ...CERTIFICATE_REMEDIES[kind] }).find(
    ([word]) => said.includes(word),
  );
  return found === undefined ? said : `${said.replace(/\.$/, "")}; ${found[1]}`;
}

const LOGIN =
  "correct [cluster] store_user and store_password, or VALKEY_USERNAME and VALKEY_PASSWORD";
/** Remedies by the first word of Valkey's answer. */
const LOGIN_REMEDIES: Readonly<Record<string, string>> = {
  WRONGPASS: LOGIN,
  NOAUTH: LOGIN,
  NOPERM: "give the user of [cluster] store_user that right there (ACL SETUSER)",
};
/** Remedies by a word of rustls and of TLS's alerts. */
const CERTIFICATE_REMEDIES: Readonly<Record<"valkey" | "s3", Readonly<Record<string, string>>>> = {
  valkey: {
    UnknownIssuer: "name the CA that signed the server's certificate with [cluster] store_tls_ca",
    CertificateRequired:
      "the server wants a certificate from its clients: [cluster] store_tls_cert and store_tls_key",
  },
  s3: { UnknownIssuer: UNTRUSTED },
};

/** Outcome of a flush, as the core writes it. */
interface FlushedText {
  isUnknown: boolean;
  models: string[];
  /** Objects of a bucket that were removed, and whether there was no time for more. */
  removed: number;
  isLeft: boolean;
}

/** Begins a request that ends within a time; returns its number. */
type Begin = (id: ColdId, deadlineMs: number) => number;

const COUNTS_AGAINST_STORE: ReadonlySet<string> = new Set(["VAULT_DEADLINE", "VAULT_BROKEN"]);
