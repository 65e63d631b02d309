// Owns the tests of a vault with a disk: records after a restart, durability, and statistics.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/base/block.ts";
import type { Durability } from "../../src/config/config.ts";
import type { Fetched } from "../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";

let dataDir = "";
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), "tierkv-disk-"));
});
afterEach(() => rmSync(dataDir, { recursive: true, force: true }));

const open = (durability: Durability): Promise<TestVault> =>
  openVault({ disk: { dataDir, diskBytes: 64 * MIB, durability, diskTtlS: null } });

const records = makeRecords(70, { payloadBytes: 200_000 });
const keys = keysOf(records);

function fetchAll(vault: TestVault): Promise<Fetched> {
  return openClient(vault).take(NAMESPACE, keys, SOON_MS);
}

test("a restarted vault serves the same bytes", async () => {
  const first = await open("group");
  const statuses = await openClient(first).put(NAMESPACE, records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
  await first.close();

  const again = await open("group");
  const client = openClient(again);
  await until(async () => (await client.stats(SOON_MS)).disk?.recovering === false, "recovery");
  const { disk, counters, ...now } = await client.stats(SOON_MS);
  expect(now.records).toBe(0);
  expect(disk).toMatchObject({ records: 70, durableRecords: 70, failing: false });
  expect(disk).toMatchObject({ maxBytes: 64 * MIB, durability: "group" });
  expect(counters["disk_alarms"]).toBe(0);

  const sink = await fetchAll(again);
  for (const [index, { record }] of records.entries()) {
    expect(sink.records.get(index)?.equals(record)).toBe(true);
  }
  expect((await client.stats(SOON_MS)).counters).toMatchObject({ disk_read: 70, fetched: 70 });
  expect((await fetchAll(again)).records.size).toBe(70);
  expect((await client.stats(SOON_MS)).counters["disk_read"]).toBe(70);
});

test("durability = sync answers durable, and durable it is", async () => {
  const vault = await open("sync");
  const client = openClient(vault);
  const statuses = await client.put(NAMESPACE, records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([ItemStatus.DURABLE]));
  expect(vault.counters.get("stored")).toBe(70);
  const durable = await client.durable(NAMESPACE, keys, SOON_MS);
  expect(records.every((_, index) => hasBit(durable, index))).toBe(true);
});

test("durability = group answers accepted, and is durable soon after", async () => {
  const client = openClient(await open("group"));
  await client.put(NAMESPACE, records.slice(0, 8), SOON_MS);
  const isDurable = async (): Promise<boolean> => {
    const durable = await client.durable(NAMESPACE, keys, SOON_MS);
    return records.slice(0, 8).every((_, index) => hasBit(durable, index));
  };
  await until(isDurable, "durable records");
  expect(hasBit(await client.durable(NAMESPACE, keys, SOON_MS), 8)).toBe(false);
});

test("a vault without a disk calls nothing durable", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  expect(await client.put(NAMESPACE, records.slice(0, 1), SOON_MS)).toEqual([ItemStatus.ACCEPTED]);
  expect(hasBit(await client.durable(NAMESPACE, keys, SOON_MS), 0)).toBe(false);
  expect((await client.stats(SOON_MS)).disk ?? null).toBe(null);
});

test("what was flushed does not come back with the next start", async () => {
  const first = await open("sync");
  const client = openClient(first);
  await client.put(NAMESPACE, records, SOON_MS);
  expect(await client.flush(null, SOON_MS, "ssm")).toMatchObject({ records: 0 });
  const flushed = await client.flush(NAMESPACE, SOON_MS, "kv");
  expect(flushed).toMatchObject({ records: 70, volatile: false });
  expect(flushed.diskBytes).toBe(records.reduce((sum, { record }) => sum + record.length, 0));
  await first.close();
  const sink = await fetchAll(await open("sync"));
  expect([sink.records.size, sink.missed.size]).toEqual([0, 70]);
});
