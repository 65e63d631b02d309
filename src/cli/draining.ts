// Owns moving what a vault holds to the vaults that own it without that one: records as they are, a batch at a time.
import { isMeasuring, ItemStatus, statusName, toNamespace } from "../block.ts";
import type { SessionName, VaultClient } from "../client/vault-client.ts";
import { CALL_TIMEOUT_MS } from "../limits/general.ts";
import {
  DRAIN_BATCH_BYTES,
  DRAIN_BATCH_RECORDS,
  DRAIN_BATCHES,
  DRAIN_POLL_MS,
  DRAIN_SETTLE_MS,
} from "../limits/pool.ts";
import { NO_VAULT } from "../pool/placement.ts";
import type { Pool } from "../sidecar/vaults/pools.ts";
import { becomes, nowMs, sleep } from "../time.ts";
import { Anchors, hashOf, isParity, learnFrom, pagesOf, UNKNOWN } from "./drain-rows.ts";
import type { Held, Row } from "./drain-rows.ts";
import { absentAt, collected, Outcomes, store } from "./moving.ts";

export interface DrainOptions {
  source: VaultClient;
  /** All vaults of the pool, the source being one of them; each has answered a hello. */
  clients: readonly VaultClient[];
  pool: Pool;
  /** Bytes a second; null: half of what the ways carry. */
  rate: number | null;
  onProgress?(done: number, all: number): void;
  /** Left out: all that is held is moved, and what others hold to owners it has by then. Else what is hot at the source alone. */
  hot?: {
    /** By target, the last flush that the source can have known of. */
    known: ReadonlyMap<VaultClient, number>;
    /** Nothing more is moved. */
    signal: AbortSignal;
  };
}

const HOT: SessionName = { session: "", namespace: Buffer.alloc(0), tenant: 0, hot: true };

interface Sum {
  records: number;
  bytes: number;
}

/** What became of the records of a vault, each counted once. */
export interface Drained {
  moved: Sum;
  /** All their owners had them. */
  present: Sum;
  /** By reason. */
  left: Record<string, Sum>;
}

export class Drain {
  readonly drained: Drained = { moved: none(), present: none(), left: {} };
  readonly #options: DrainOptions;
  #done = 0;

  constructor(options: DrainOptions) {
    this.#options = options;
  }

  /** Rejects with what the source answered; what was moved by then stays. */
  async run(): Promise<void> {
    const { source, hot, onProgress } = this.#options;
    if (hot === undefined) await this.#close();
    const { records, disk } = await source.stats(CALL_TIMEOUT_MS);
    const all = Math.max(records, disk?.records ?? 0);
    for await (const { from, namespace, model, rows, anchors } of this.#held()) {
      await this.#tellModel(namespace, model);
      // One list for all who work on it.
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
   * What the source holds. Where a run lies on several vaults its first block may be another's, and what others hold may get another
   * owner, too: all of it is listed.
   */
  async *#held(): AsyncGenerator<Held & { from: VaultClient; anchors: Anchors }> {
    const { source, clients, pool, hot } = this.#options;
    const all: (Held & { from: VaultClient })[] = [];
    const others = clients.filter((client) => client !== source);
    for (const from of [source, ...(pool.isCut ? others : [])]) {
      for await (const held of pagesOf(from)) {
        // What a measuring command stored goes with it.
        if (isMeasuring(toNamespace(held.namespace))) continue;
        // Whoever has the machine now gets no work of opening seals.
        if (hot === undefined) await this.#learn(from, held.namespace, held.rows);
        if (pool.isCut || hot !== undefined) all.push({ from, ...held });
        else yield { from, ...held, anchors: new Anchors(held.rows) };
      }
    }
    // Others stay where they are; they say where in their prompts the blocks stand.
    const moving = hot === undefined ? all : await collectedRows(source, HOT);
    for (const held of moving) {
      const same = all.filter(({ namespace }) => namespace.equals(held.namespace));
      yield { ...held, anchors: new Anchors(same.flatMap(({ rows }) => rows)) };
    }
  }

  /** Takes nothing new, and waits for what was let in before. */
  async #close(): Promise<void> {
    const isSettled = async (): Promise<boolean> =>
      (await this.#options.source.drain(CALL_TIMEOUT_MS)).reservedBytes === 0;
    await becomes(isSettled, DRAIN_SETTLE_MS, DRAIN_POLL_MS);
  }

  /** So that a flush by model finds what they are given. One that does not answer takes nothing either. */
  async #tellModel(namespace: Buffer, model: string): Promise<void> {
    if (model === "") return;
    const { source, clients } = this.#options;
    const others = clients.filter((client) => client !== source);
    await Promise.allSettled(
      others.map((client) => client.nameModel(namespace, model, CALL_TIMEOUT_MS)),
    );
  }

  /** Others' restores go first: without a rate half of the time is theirs. */
  #pauseMs(bytes: number, tookMs: number): number {
    const { rate } = this.#options;
    if (bytes === 0) return 0;
    return rate === null ? tookMs : Math.max(0, (bytes * DRAIN_BATCHES * 1000) / rate - tookMs);
  }

  /** Sealed blocks of attention say only when they are opened where they stand. */
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

  /** Returns bytes that travelled. */
  async #move(
    from: VaultClient,
    namespace: Buffer,
    batch: readonly Row[],
    anchors: Anchors,
  ): Promise<number> {
    const outcomes = new Outcomes();
    const wanted = this.#homesOf(from, batch, anchors, outcomes);
    // What a target flushes from here on is refused there.
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
    // Of another vault only what moved counts.
    for (const row of from === this.#options.source ? batch : outcomes.moved) {
      const reason = outcomes.failed.get(row);
      const into = outcomes.moved.has(row) ? moved : present;
      add(reason === undefined ? into : (left[reason] ??= none()), row);
    }
    return sumOf(travelling).bytes;
  }

  /** By the vault that is to have them. */
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
      const parity = pool.membershipOf(anchor, row.number)?.vault ?? NO_VAULT;
      // NO_VAULT is the place of none.
      const homes = (isParity(row) ? [parity] : [owner, second]).flatMap((at) => clients[at] ?? []);
      if (homes.length === 0) outcomes.failed.set(row, "no_parity");
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

/** Of one tenant each, the deepest blocks first: what a full vault evicts again are those. */
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
