// Owns the copying of unchanged records from one vault to others, a batch at a time.
import { hasBit, ItemStatus, statusName } from "../base/block.ts";
import { toTierkvError } from "../base/errors.ts";
import { STORE_TIMEOUT_MS } from "../base/limits/general.ts";
import { outboxDrop, outboxReserve } from "../base/native.ts";
import { UNCOUNTED } from "../client/source.ts";
import type { VaultClient } from "../client/vault/vault-client.ts";
import type { Row } from "./rows.ts";

/** Outcomes of a batch's records. */
export class Outcomes {
  readonly moved: Set<Row> = new Set();
  readonly failed: Map<Row, string> = new Map();

  /** Returns the vault's answer; on an error all `rows` fail, and `otherwise` is returned. */
  async orFail<T>(rows: readonly Row[], ask: () => Promise<T>, otherwise: T): Promise<T> {
    try {
      return await ask();
    } catch (error) {
      for (const row of rows) this.failed.set(row, toTierkvError(error).code.toLowerCase());
      return otherwise;
    }
  }
}

export async function store(
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

export async function absentAt(
  client: VaultClient,
  namespace: Buffer,
  rows: readonly Row[],
): Promise<Row[]> {
  const found = await client.lookup(namespace, keysOf(rows), STORE_TIMEOUT_MS, UNCOUNTED);
  return rows.filter((_row, at) => !hasBit(found, at));
}

/** Fetches records into native memory while `use` runs, which gets their ids by position. Returns a status for each row. */
export async function collected(
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

export const keysOf = (rows: readonly Row[]): Buffer => Buffer.concat(rows.map(({ key }) => key));
