// Owns the storing of a block with the bytes it came with: its record, unchanged, from a vault that still has it.
import { ItemStatus } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { CALL_TIMEOUT_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { outboxDrop, outboxReserve } from "../../base/native.ts";
import type { BlockSource } from "../../client/source.ts";
import { OutboxRecord } from "../../codec/record.ts";

/** By position: a record, or null where none was found. */
export type Recalled = (OutboxRecord | null)[];

export interface RecallContext {
  counters: SidecarCounters;
  logger: Logger;
}

/** Fetches a vault's records unchanged; null for each that it does not give. Never rejects. */
export async function recall(
  client: BlockSource,
  namespace: Namespace,
  keys: readonly Buffer[],
  { counters, logger }: RecallContext,
  tenant: number,
): Promise<Recalled> {
  const none = keys.map(() => null);
  if (keys.length === 0 || client.isDown || client.collect === undefined) return none;
  const ids = [...outboxReserve(keys.length)];
  let records: Recalled = none;
  try {
    const all = Buffer.concat(keys);
    const found = await client.collect(namespace, all, ids, CALL_TIMEOUT_MS, tenant);
    const { statuses, bytes, reason: why } = found;
    const isHere = (at: number): boolean => statuses[at] === ItemStatus.ACCEPTED;
    const count = ids.filter((_, at) => isHere(at)).length;
    // Records of one call differ at most by the exact first token of a sequence.
    records = ids.map((id, at) => (isHere(at) ? new OutboxRecord(id, bytes / count, null) : null));
    counters.add("copies_recalled", count);
    const bad = keys.filter((_, at) => statuses[at] === ItemStatus.BAD_RECORD);
    counters.add("bad_records", bad.length);
    const reason = why ?? "the record is damaged";
    if (bad.length > 0)
      client
        .report(namespace, Buffer.concat(bad), reason, CALL_TIMEOUT_MS, tenant)
        .catch((error: unknown) => logger.debug({ err: error }, "the report did not arrive"));
  } catch (error) {
    logger.debug({ err: toTierkvError(error), vault: client.address }, "no record was recalled");
  } finally {
    for (const [at, id] of ids.entries()) if (records[at] === null) outboxDrop(id);
  }
  return records;
}

/** A record to recall, and the vaults to ask, in order; all records of a call are of one namespace and tenant. */
export interface Wanted {
  namespace: Namespace;
  tenant: number;
  /** Packed key. */
  key: Buffer;
  stores: readonly Recalls[];
}

interface Recalls {
  recall(namespace: Namespace, keys: readonly Buffer[], tenant: number): Promise<Recalled>;
}

/** Fetches each record from the first of its vaults that gives it. Never rejects. */
export async function recallAll(wanted: readonly Wanted[]): Promise<Recalled> {
  const records: Recalled = wanted.map(() => null);
  const rounds = Math.max(0, ...wanted.map(({ stores }) => stores.length));
  for (let round = 0; round < rounds; round += 1) {
    const left = [...wanted.entries()].filter(([at]) => records[at] === null);
    for (const store of new Set(left.map(([, { stores }]) => stores[round]))) {
      const of = left.filter(([, { stores }]) => stores[round] === store);
      const [[, first] = []] = of;
      if (store === undefined || first === undefined) continue;
      const keys = of.map(([, { key }]) => key);
      const found = await store.recall(first.namespace, keys, first.tenant);
      for (const [index, [at]] of of.entries()) records[at] = found[index] ?? null;
    }
  }
  return records;
}

/** Fills the gaps with what `make` makes of their items, in order. Drops all records when it rejects. */
export async function completed<T>(
  items: readonly T[],
  recalled: Recalled,
  make: (left: readonly T[]) => Promise<OutboxRecord[]>,
): Promise<OutboxRecord[]> {
  const left = items.filter((_, at) => recalled[at] === null);
  try {
    const made = left.length === 0 ? [] : await make(left);
    const rest = made.values();
    return recalled.flatMap((record) => record ?? rest.next().value ?? []);
  } catch (error) {
    for (const record of recalled) record?.drop();
    throw error;
  }
}
