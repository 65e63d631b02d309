// Owns the proof that a flush takes its records from the send queue, and second copies go last and are dropped first.
import { expect, test } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import { TierkvError } from "../../../src/base/errors.ts";
import { STORES_IN_FLIGHT_MAX } from "../../../src/base/limits/general.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import type { SidecarCounters } from "../../../src/base/metrics.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import type { OutboxRecord } from "../../../src/codec/record.ts";
import type { OutgoingRecord } from "../../../src/sidecar/save/store-queue.ts";
import { StoreQueue } from "../../../src/sidecar/save/store-queue.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";
import { FetchPriority } from "../../../src/sidecar/vaults/fetch-priority.ts";
import { openLinks } from "../../../src/sidecar/vaults/vaults.ts";
import { NAMESPACE } from "../../support/records.ts";
import { logger, until } from "../../support/vaults.ts";

const [GONE, KEPT] = [5, 6];

interface Scene {
  queue: StoreQueue;
  counters: SidecarCounters;
  /** Tenants of sent records; here a tenant names a record. */
  sent: number[];
  dropped: number[];
  ended: number[];
  record(tenant: number): OutgoingRecord;
  /** Completes the open calls and all later ones. */
  answer(): void;
}

function open(more: Partial<VaultClient> = {}): Scene {
  const sent: number[] = [];
  let answer = (): void => {};
  const answered = new Promise<void>((resolve) => (answer = resolve));
  const store = async (...call: unknown[]): Promise<object> => {
    sent.push(call[3] as number);
    await answered;
    return [];
  };
  const client = { name: "kv", store, ...more } as unknown as VaultClient;
  const counters = newSidecarCounters();
  const link = openLinks({ kv: [client], ssm: [] }).kv[0]!;
  const common = { priority: new FetchPriority(), outcomes: new BlockOutcomes(), counters, logger };
  const queue = new StoreQueue({ client, link, ...common });
  const [dropped, ended]: [number[], number[]] = [[], []];
  const record = (tenant: number): OutgoingRecord => ({
    namespace: toNamespace(NAMESPACE),
    tenant,
    flushed: 0,
    key: Buffer.alloc(36, tenant),
    record: { bytes: 1, drop: () => dropped.push(tenant) } as unknown as OutboxRecord,
    sourceBytes: 1,
    endTokens: 16,
    onEnd: () => ended.push(tenant),
  });
  return { queue, counters, sent, dropped, ended, record, answer: () => answer() };
}

test("waiting records go with their tenant's flush, and another's are sent", async () => {
  const { queue, counters, sent, dropped, ended, record, answer } = open();
  // Fills all calls, plus two that wait.
  const first = Array.from({ length: STORES_IN_FLIGHT_MAX }, (_, at) => 10 + at);
  queue.add([...first, GONE, KEPT].map(record));
  await until(() => sent.length === STORES_IN_FLIGHT_MAX, "the first calls");
  expect(queue.flush((_namespace, tenant) => tenant === GONE)).toBe(1);
  expect([dropped, ended]).toEqual([[GONE], [GONE]]);
  expect(counters.get("dropped_flushed")).toBe(1);
  answer();
  await until(() => ended.length === STORES_IN_FLIGHT_MAX + 2, "the others");
  expect(sent).toEqual([...first, KEPT]);
});

test("second copies are sent once no save waits, one call at a time, and are given up first", async () => {
  const { queue, counters, sent, dropped, ended, record, answer } = open();
  const role = "replica";
  const copy = (tenant: number): OutgoingRecord => ({ ...record(tenant), role, isCopy: true });
  queue.add([copy(1)]);
  await until(() => sent.length === 1, "the first copy");
  queue.add([copy(2), copy(3), copy(4)]);
  expect(queue.hasRoom).toBe(true);
  queue.add([record(10), record(11)]);
  await until(() => sent.length === STORES_IN_FLIGHT_MAX, "a save beside it");
  expect(queue.shedCopy()).toBe(true);
  expect([dropped, ended]).toEqual([[4], [4]]);
  expect(counters.get("replicas_dropped")).toBe(1);
  answer();
  await until(() => ended.length === 6, "all others");
  expect(sent).toEqual([1, 10, 11, 2, 3]);
  expect(queue.shedCopy()).toBe(false);
});

test("records that shared memory already has go to their owner like saves, and are dropped before them", async () => {
  const { queue, counters, sent, dropped, ended, record, answer } = open();
  const role = "owner";
  queue.add([1, 2, 3, 4].map((tenant) => ({ ...record(tenant), role, isCopy: true })));
  await until(() => sent.length === STORES_IN_FLIGHT_MAX, "as many calls as there may be");
  expect(queue.shedCopy()).toBe(true);
  expect([dropped, counters.get("dropped_shed")]).toEqual([[4], 1]);
  answer();
  await until(() => ended.length === 4, "all others");
  expect(sent).toEqual([1, 2, 3]);
});

test("a model that a vault could not be told is told with the next records, and once only where it was told or refused", async () => {
  for (const [last, calls] of [
    [null, 3],
    ["VAULT_REFUSED", 3],
    ["VAULT_DEADLINE", 4],
  ] as const) {
    const fails = ["VAULT_DOWN", "VAULT_BUSY", last] as const;
    let told = 0;
    const nameModel = (): Promise<Record<string, never>> => {
      const code = fails[told] ?? null;
      told += 1;
      const details = { name: "kv", address: "v", call: "Name", timeoutMs: 1, reason: "x" };
      return code === null ? Promise.resolve({}) : Promise.reject(new TierkvError(code, details));
    };
    const { queue, ended, record, answer } = open({ epoch: 7, nameModel });
    queue.nameModel(toNamespace(NAMESPACE), "org/model");
    answer();
    for (let tenant = 1; tenant <= 6; tenant += 1) {
      queue.add([record(tenant)]);
      await until(() => ended.length === tenant, "the record");
    }
    expect(told).toBe(calls);
  }
});
