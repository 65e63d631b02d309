// Owns moving what a vault holds to the vaults that own it without that one: records as they are, a batch at a time.
import {
  HASH_BYTES,
  hasBit,
  isMeasuring,
  ItemStatus,
  PACKED_KEY_BYTES,
  statusName,
  toNamespace,
} from "../block.ts";
import type { VaultClient } from "../client/vault-client.ts";
import { toTierkvError } from "../errors.ts";
import {
  DRAIN_BATCH_BYTES,
  DRAIN_BATCH_RECORDS,
  DRAIN_BATCHES,
  DRAIN_POLL_MS,
  DRAIN_RECORDS_MAX,
  DRAIN_SETTLE_MS,
  RUN_BLOCKS,
} from "../limits-pool.ts";
import { CALL_TIMEOUT_MS, STORE_TIMEOUT_MS } from "../limits.ts";
import { outboxDrop, outboxPosition, outboxReserve } from "../native.ts";
import { NO_VAULT } from "../pool/placement.ts";
import type { Pool } from "../sidecar/vaults/pools.ts";
import { nowMs, sleep } from "../time.ts";

export interface DrainOptions {
  source: VaultClient;
  /** All vaults of the pool, the source being one of them; each has been greeted. */
  clients: readonly VaultClient[];
  pool: Pool;
  /** Bytes a second; null: half of what the ways carry. */
  rate: number | null;
  onProgress(done: number, all: number): void;
}

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

/** One record, as it is listed. */
interface Row {
  key: Buffer;
  parent: Buffer;
  /** Of the block in its prompt. */
  number: number;
  tenant: number;
  bytes: number;
}

const ROW_BYTES = PACKED_KEY_BYTES + HASH_BYTES + 16;
const UNKNOWN = 0xffff_ffff;

export class Drain {
  readonly drained: Drained = { moved: none(), present: none(), left: {} };
  readonly #options: DrainOptions;
  #done = 0;

  constructor(options: DrainOptions) {
    this.#options = options;
  }

  /** Rejects with what the source answered; what was moved by then stays. */
  async run(): Promise<void> {
    const { source } = this.#options;
    await this.#close();
    const { records, disk } = await source.stats(CALL_TIMEOUT_MS);
    const all = Math.max(records, disk?.records ?? 0);
    for await (const { namespace, model, rows } of pagesOf(source)) {
      // What a measuring command stored goes with it.
      if (isMeasuring(toNamespace(namespace))) continue;
      await this.#tellModel(namespace, model);
      await this.#learn(namespace, rows);
      // One list for all who work on it.
      const batches = batchesOf(rows).values();
      const work = async (): Promise<void> => {
        for (const batch of batches) {
          const startMs = nowMs();
          const bytes = await this.#move(namespace, batch, anchors);
          this.#done += batch.length;
          this.#options.onProgress(this.#done, all);
          await sleep(this.#pauseMs(bytes, nowMs() - startMs));
        }
      };
      const anchors = new Anchors(rows);
      await Promise.all(Array.from({ length: DRAIN_BATCHES }, work));
    }
  }

  /** Takes nothing new, and waits for what was let in before. */
  async #close(): Promise<void> {
    const endMs = nowMs() + DRAIN_SETTLE_MS;
    for (;;) {
      const { reservedBytes } = await this.#options.source.drain(CALL_TIMEOUT_MS);
      if (reservedBytes === 0 || nowMs() > endMs) return;
      await sleep(DRAIN_POLL_MS);
    }
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
  async #learn(namespace: Buffer, rows: readonly Row[]): Promise<void> {
    const { source } = this.#options;
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
  async #move(namespace: Buffer, batch: readonly Row[], anchors: Anchors): Promise<number> {
    const { source } = this.#options;
    const outcomes = new Outcomes();
    const wanted = this.#homesOf(batch, anchors, outcomes);
    // What a target flushes from here on is refused there.
    const known = new Map([...wanted.keys()].map((client) => [client, client.flushes.number]));
    for (const [client, rows] of wanted) {
      const absent = outcomes.orFail(rows, () => absentAt(client, namespace, rows), []);
      wanted.set(client, await absent);
    }
    const travelling = [...new Set([...wanted.values()].flat())];
    const statuses = await collected(source, namespace, travelling, async (records) => {
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
    for (const row of batch) {
      const reason = outcomes.failed.get(row);
      const into = outcomes.moved.has(row) ? moved : present;
      add(reason === undefined ? into : (left[reason] ??= none()), row);
    }
    return sumOf(travelling).bytes;
  }

  /** By the vault that is to have them. */
  #homesOf(batch: readonly Row[], anchors: Anchors, outcomes: Outcomes): Map<VaultClient, Row[]> {
    const { source, clients, pool } = this.#options;
    const wanted = new Map<VaultClient, Row[]>();
    for (const row of batch) {
      const anchor = source.name === "ssm" ? hashOf(row) : anchors.of(row);
      if (anchor === null) {
        outcomes.failed.set(row, row.number === UNKNOWN ? "sealed" : "unreachable");
        continue;
      }
      const { owner, second } = pool.homeOf(hashOf(row), anchor);
      for (const vault of [owner, second]) {
        const client = vault === NO_VAULT ? undefined : clients[vault];
        if (client !== undefined) wanted.set(client, [...(wanted.get(client) ?? []), row]);
      }
    }
    return wanted;
  }
}

/** What becomes of the records of a batch. */
class Outcomes {
  readonly moved = new Set<Row>();
  readonly failed = new Map<Row, string>();

  /** What a vault answers; where it does not, its rows fail. */
  async orFail<T>(rows: readonly Row[], ask: () => Promise<T>, otherwise: T): Promise<T> {
    try {
      return await ask();
    } catch (error) {
      for (const row of rows) this.failed.set(row, toTierkvError(error).code.toLowerCase());
      return otherwise;
    }
  }
}

async function store(
  client: VaultClient,
  namespace: Buffer,
  items: readonly { row: Row; id: number }[],
  known: number,
  outcomes: Outcomes,
): Promise<void> {
  const [first] = items;
  if (first === undefined) return;
  const make = async (): Promise<void> => {};
  const outgoing = items.map(({ row, id }) => ({
    key: row.key,
    record: { id, isDeferred: false, make },
  }));
  const rows = items.map(({ row }) => row);
  const { tenant } = first.row;
  const ask = (): Promise<ItemStatus[]> =>
    client.store(namespace, outgoing, STORE_TIMEOUT_MS, tenant, known);
  const stored = await outcomes.orFail(rows, ask, []);
  for (const [at, status] of stored.entries()) {
    const row = rows[at];
    if (row === undefined || status === ItemStatus.PRESENT) continue;
    if (status === ItemStatus.ACCEPTED || status === ItemStatus.DURABLE) outcomes.moved.add(row);
    else outcomes.failed.set(row, statusName(status));
  }
}

/** By which first block of a run its blocks are placed: found by going from block to block before it. */
class Anchors {
  readonly #parents = new Map<string, Buffer>();

  constructor(rows: readonly Row[]) {
    for (const row of rows) this.#parents.set(placeOf(row.number, hashOf(row)), row.parent);
  }

  /** null: a block between them is gone, so that no restore gets as far. */
  of(row: Row): Buffer | null {
    if (row.number === UNKNOWN) return null;
    let hash = hashOf(row);
    for (let { number } = row; number % RUN_BLOCKS > 0; number -= 1) {
      const parent = this.#parents.get(placeOf(number, hash));
      if (parent === undefined) return null;
      hash = parent;
    }
    return hash;
  }
}

/** Groups whose blocks are equally long share hashes. */
function placeOf(number: number, hash: Buffer): string {
  return `${number}:${hash.toString("latin1")}`;
}

function hashOf({ key }: Row): Buffer {
  return key.subarray(0, HASH_BYTES);
}

/** What it does not say stays unknown. */
function learnFrom(row: Row | undefined, record: number): void {
  const said = outboxPosition(record);
  if (row === undefined || said === null) return;
  row.parent = said.subarray(0, HASH_BYTES);
  row.number = said.readUInt32LE(HASH_BYTES);
}

/** Of one namespace. */
interface Held {
  namespace: Buffer;
  /** Empty: the vault does not know it. */
  model: string;
  rows: Row[];
}

/** What a vault holds, namespace by namespace. */
async function* pagesOf(source: VaultClient): AsyncGenerator<Held> {
  let after: Buffer = Buffer.alloc(0);
  let [namespace, model, rows]: [Buffer, string, Row[]] = [after, "", []];
  do {
    const page = await source.list(after, STORE_TIMEOUT_MS);
    const isOther = !page.namespace.equals(namespace) || rows.length >= DRAIN_RECORDS_MAX;
    if (isOther && rows.length > 0) {
      yield { namespace, model, rows };
      rows = [];
    }
    ({ namespace, model, last: after } = page);
    rows.push(...rowsOf(page.rows));
  } while (after.length > 0);
  if (rows.length > 0) yield { namespace, model, rows };
}

function rowsOf(packed: Buffer): Row[] {
  return Array.from({ length: packed.length / ROW_BYTES }, (_none, index) => {
    const row = packed.subarray(index * ROW_BYTES, (index + 1) * ROW_BYTES);
    const at = PACKED_KEY_BYTES + HASH_BYTES;
    return {
      key: row.subarray(0, PACKED_KEY_BYTES),
      parent: row.subarray(PACKED_KEY_BYTES, at),
      number: row.readUInt32LE(at),
      tenant: row.readUInt32LE(at + 4),
      bytes: Number(row.readBigUInt64LE(at + 8)),
    };
  });
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

async function absentAt(
  client: VaultClient,
  namespace: Buffer,
  rows: readonly Row[],
): Promise<Row[]> {
  const found = await client.lookup(namespace, keysOf(rows), STORE_TIMEOUT_MS);
  return rows.filter((_row, at) => !hasBit(found, at));
}

/** Brings records into native memory for as long as `use` takes; those that came, by their place. Returns a status for each. */
async function collected(
  source: VaultClient,
  namespace: Buffer,
  rows: readonly Row[],
  use: (records: ReadonlyMap<number, number>) => Promise<void> | void,
): Promise<Uint8Array> {
  if (rows.length === 0) return new Uint8Array(0);
  const ids = [...outboxReserve(rows.length)];
  try {
    const { statuses } = await source.collect(namespace, keysOf(rows), ids, STORE_TIMEOUT_MS);
    const isHere = (at: number): boolean => statuses[at] === ItemStatus.ACCEPTED;
    await use(new Map([...ids.entries()].filter(([at]) => isHere(at))));
    return statuses;
  } finally {
    for (const id of ids) outboxDrop(id);
  }
}

const keysOf = (rows: readonly Row[]): Buffer => Buffer.concat(rows.map(({ key }) => key));

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
