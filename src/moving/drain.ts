// Owns the drain of a vault: copies its records unchanged, in batches, to the vaults that own them without it.
import { isMeasuring, ItemStatus, statusName, toNamespace } from "../base/block.ts";
import { TierkvError } from "../base/errors.ts";
import { CALL_TIMEOUT_MS, STORE_TIMEOUT_MS } from "../base/limits/general.ts";
import {
  DRAIN_BATCH_BYTES,
  DRAIN_BATCH_RECORDS,
  DRAIN_BATCHES,
  DRAIN_POLL_MS,
  DRAIN_SETTLE_MS,
} from "../base/limits/pool.ts";
import { becomes, nowMs, sleep } from "../base/time.ts";
import type { SessionName, VaultClient } from "../client/vault/vault-client.ts";
import type { Pool } from "../sidecar/vaults/pools.ts";
import { absentAt, collected, Outcomes, store } from "./copies.ts";
import { Anchors, hashOf, learnFrom, pagesOf, UNKNOWN } from "./rows.ts";
import type { Held, Row } from "./rows.ts";

export interface DrainOptions {
  source: VaultClient;
  /** All vaults of the pool, including the source; each has answered a hello. */
  clients: readonly VaultClient[];
  pool: Pool;
  /** Bytes per second; null: half of the time is spent idle. */
  rate: number | null;
  onProgress?(done: number, all: number): void;
  /** Moves only the source's hot records; left out: all, also other vaults' records whose owner changes. */
  hot?: {
    /** Number of the last flush at each target that the source can have seen. */
    known: ReadonlyMap<VaultClient, number>;
    /** Ends the drain after the batches in progress. */
    signal: AbortSignal;
  };
}

const HOT: SessionName = { session: "", namespace: Buffer.alloc(0), tenant: 0, hot: true };

interface Sum {
  records: number;
  bytes: number;
}

/** Outcome of a vault's records, each counted once. */
export interface Drained {
  moved: Sum;
  /** Records that all their owners held already. */
  present: Sum;
  /** Records that stayed, by reason. */
  left: Record<string, Sum>;
}

export class Drain {
  readonly drained: Drained = { moved: none(), present: none(), left: {} };
  readonly #options: DrainOptions;
  #done = 0;

  constructor(options: DrainOptions) {
    this.#options = options;
  }

  /**
   * Rejects before anything changes where a right is missing. Rejects with the source's error; records copied by then stay
   * copied, and the source takes records again.
   */
  async run(): Promise<void> {
    const { source, hot } = this.#options;
    if (hot !== undefined) {
      await this.#run();
      return;
    }
    await this.#checkRights();
    const wasDraining = source.isDraining;
    try {
      await this.#close();
      await this.#run();
    } catch (error) {
      // The vault may be gone, and takes records again when it comes back.
      if (!wasDraining) await source.drain(CALL_TIMEOUT_MS, true).catch(() => {});
      throw error;
    }
  }

  /** Asks for what the drain will need: to list vaults, and to store at the others. */
  async #checkRights(): Promise<void> {
    const { source, clients, pool } = this.#options;
    const others = clients.filter((client) => client !== source);
    for (const { address, isReadOnly } of others) {
      if (!isReadOnly) continue;
      const reason = `${address} lets this machine only read: a drain stores there; give this machine the role write at least`;
      throw new TierkvError("USAGE", { reason });
    }
    const listed = [source, ...(pool.isCut ? others : [])];
    // Hot records are listed without a look at disk or archive.
    await Promise.all(listed.map((client) => client.list(Buffer.alloc(0), STORE_TIMEOUT_MS, HOT)));
  }

  async #run(): Promise<void> {
    const { source, hot, onProgress } = this.#options;
    const { records, disk } = await source.stats(CALL_TIMEOUT_MS);
    const all = Math.max(records, disk?.records ?? 0);
    for await (const { from, namespace, model, rows, anchors } of this.#held()) {
      await this.#tellModel(namespace, model);
      // All workers draw from one iterator.
      const batches = (hot === undefined ? batchesOf(rows) : batchesOf(rows).reverse()).values();
      const work = async (): Promise<void> => {
        for (const batch of batches) {
          if (hot?.signal.aborted === true) return;
          const startMs = nowMs();
          const bytes = await this.#move(from, namespace, batch, anchors);
          this.#done += from === source ? batch.length : 0;
          onProgress?.(this.#done, all);
          await sleep(this.#pauseMs(bytes, nowMs() - startMs), hot?.signal);
        }
      };
      await Promise.all(Array.from({ length: DRAIN_BATCHES }, work));
    }
  }

  /**
   * Lists the source's records, and in a cut pool all others', because a run's first block may be on another vault, and other
   * vaults' records may change their owner.
   */
  async *#held(): AsyncGenerator<Held & { from: VaultClient; anchors: Anchors }> {
    const { source, clients, pool, hot } = this.#options;
    const all: (Held & { from: VaultClient })[] = [];
    const others = clients.filter((client) => client !== source);
    for (const from of [source, ...(pool.isCut ? others : [])]) {
      for await (const held of pagesOf(from)) {
        // Records of a measuring command are not moved, because they are dropped when it ends.
        if (isMeasuring(toNamespace(held.namespace))) continue;
        // A hot drain opens no seals, because the machine's user needs its processors.
        if (hot === undefined) await this.#learn(from, held.namespace, held.rows);
        if (pool.isCut || hot !== undefined) all.push({ from, ...held });
        else yield { from, ...held, anchors: new Anchors(held.rows) };
      }
    }
    // Other vaults' rows serve only to find the first blocks of runs when the drain is hot.
    const moving = hot === undefined ? all : await collectedRows(source, HOT);
    for (const held of moving) {
      const same = all.filter(({ namespace }) => namespace.equals(held.namespace));
      yield { ...held, anchors: new Anchors(same.flatMap(({ rows }) => rows)) };
    }
  }

  /** Makes the source refuse new records, and waits until the admitted ones are stored. */
  async #close(): Promise<void> {
    const isSettled = async (): Promise<boolean> =>
      (await this.#options.source.drain(CALL_TIMEOUT_MS)).reservedBytes === 0;
    await becomes(isSettled, DRAIN_SETTLE_MS, DRAIN_POLL_MS);
  }

  /** Names the model at the other vaults, because a flush by model must find the copies. A silent vault gets no copies anyway. */
  async #tellModel(namespace: Buffer, model: string): Promise<void> {
    if (model === "") return;
    const { source, clients } = this.#options;
    const others = clients.filter((client) => client !== source);
    await Promise.allSettled(
      others.map((client) => client.nameModel(namespace, model, CALL_TIMEOUT_MS)),
    );
  }

  /** Pause after a batch; without a rate it lasts as long as the batch, because restores need the link. */
  #pauseMs(bytes: number, tookMs: number): number {
    const { rate } = this.#options;
    if (bytes === 0) return 0;
    return rate === null ? tookMs : Math.max(0, (bytes * DRAIN_BATCHES * 1000) / rate - tookMs);
  }

  /** Opens sealed attention records to learn their position. */
  async #learn(source: VaultClient, namespace: Buffer, rows: readonly Row[]): Promise<void> {
    if (source.name === "ssm") return;
    const sealed = rows.filter(({ number }) => number === UNKNOWN);
    for (const batch of batchesOf(sealed)) {
      const startMs = nowMs();
      await collected(source, namespace, batch, (records) => {
        for (const [at, id] of records) learnFrom(batch[at], id);
      });
      await sleep(this.#pauseMs(sumOf(batch).bytes, nowMs() - startMs));
    }
  }

  /** Copies a batch; returns the bytes that travelled. */
  async #move(
    from: VaultClient,
    namespace: Buffer,
    batch: readonly Row[],
    anchors: Anchors,
  ): Promise<number> {
    const outcomes = new Outcomes();
    const wanted = this.#homesOf(from, batch, anchors, outcomes);
    // A target refuses records that it flushes after this number.
    const { hot } = this.#options;
    const knownOf = (client: VaultClient): number =>
      hot === undefined ? client.flushes.number : (hot.known.get(client) ?? 0);
    const known = new Map([...wanted.keys()].map((client) => [client, knownOf(client)]));
    for (const [client, rows] of wanted) {
      const absent = outcomes.orFail(rows, () => absentAt(client, namespace, rows), []);
      wanted.set(client, await absent);
    }
    const travelling = [...new Set([...wanted.values()].flat())];
    const statuses = await collected(from, namespace, travelling, async (records) => {
      const stores = [...wanted].map(async ([client, rows]) => {
        const items = rows.flatMap((row) => {
          const id = records.get(travelling.indexOf(row));
          return id === undefined ? [] : [{ row, id }];
        });
        await store(client, namespace, items, known.get(client) ?? 0, outcomes);
      });
      await Promise.all(stores);
    });
    for (const [at, row] of travelling.entries()) {
      if (statuses[at] !== ItemStatus.ACCEPTED)
        outcomes.failed.set(row, statusName(statuses[at] ?? ItemStatus.INCOMPLETE));
    }
    const { moved, present, left } = this.drained;
    // Rows of another vault count only if copied.
    for (const row of from === this.#options.source ? batch : outcomes.moved) {
      const reason = outcomes.failed.get(row);
      const into = outcomes.moved.has(row) ? moved : present;
      add(reason === undefined ? into : (left[reason] ??= none()), row);
    }
    return sumOf(travelling).bytes;
  }

  /** Groups rows by the vaults that should hold them. */
  #homesOf(
    from: VaultClient,
    batch: readonly Row[],
    anchors: Anchors,
    outcomes: Outcomes,
  ): Map<VaultClient, Row[]> {
    const { source, clients, pool } = this.#options;
    const wanted = new Map<VaultClient, Row[]>();
    for (const row of batch) {
      const anchor = source.name === "ssm" ? hashOf(row) : anchors.of(row);
      if (anchor === null) {
        outcomes.failed.set(row, row.number === UNKNOWN ? "sealed" : "unreachable");
        continue;
      }
      const { owner, second } = pool.homeOf(hashOf(row), anchor, row.number);
      // Without a second vault its number is no index of `clients`.
      const homes = [owner, second].flatMap((at) => clients[at] ?? []);
      if (homes.includes(from)) continue;
      for (const client of homes) wanted.set(client, [...(wanted.get(client) ?? []), row]);
    }
    return wanted;
  }
}

async function collectedRows(
  from: VaultClient,
  of: SessionName,
): Promise<(Held & { from: VaultClient })[]> {
  const all: (Held & { from: VaultClient })[] = [];
  for await (const held of pagesOf(from, of)) {
    if (!isMeasuring(toNamespace(held.namespace))) all.push({ from, ...held });
  }
  return all;
}

/** Batches of one tenant each, deepest blocks first, because a full vault evicts the first arrivals. */
function batchesOf(rows: readonly Row[]): Row[][] {
  const batches: Row[][] = [];
  let bytes = 0;
  for (const row of rows.toSorted((a, b) => a.tenant - b.tenant || b.number - a.number)) {
    const last = batches.at(-1);
    bytes += row.bytes;
    const isFull = last?.length === DRAIN_BATCH_RECORDS || bytes > DRAIN_BATCH_BYTES;
    if (last !== undefined && !isFull && last[0]?.tenant === row.tenant) {
      last.push(row);
    } else {
      batches.push([row]);
      ({ bytes } = row);
    }
  }
  return batches;
}

const none = (): Sum => ({ records: 0, bytes: 0 });

function add(sum: Sum, { bytes }: Row): void {
  sum.records += 1;
  sum.bytes += bytes;
}

function sumOf(rows: readonly Row[]): Sum {
  const sum = none();
  for (const row of rows) add(sum, row);
  return sum;
}
