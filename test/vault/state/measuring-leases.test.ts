// Owns the proof that records of measuring commands expire, and only those.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { measuringNamespace, toNamespace } from "../../../src/base/block.ts";
import { Program } from "../../support/command-line.ts";
import type { TestClient } from "../../support/record-client.ts";
import { keysOf, makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/tools.ts", async (original) => ({
  ...(await original<object>()),
  MEASURE_LEASE_MS: 1_500,
  MEASURES_MAX: 4,
}));

async function storeFor(client: TestClient, namespace: Buffer): Promise<Buffer> {
  const items = makeRecords(4, { namespace });
  await client.put(namespace, items, SOON_MS);
  return Buffer.concat(items.map(({ key }) => key));
}

test("records of a lease that nobody ends go after it, those of engines stay", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  await client.put(NAMESPACE, makeRecords(3), SOON_MS);
  const measured = measuringNamespace();
  await client.measure(measured, SOON_MS);
  await storeFor(client, measured);
  expect(vault.stats().records).toBe(7);
  await until(() => vault.stats().records === 3, "the end of the lease");
  const held = await client.lookup(NAMESPACE, keysOf(makeRecords(3)), SOON_MS);
  expect(held[0]).toBe(0b111);
});

test("ending a lease drops its records; a renewed one lasts", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const measured = measuringNamespace();
  await client.measure(measured, SOON_MS);
  await storeFor(client, measured);
  expect(await client.measure(measured, SOON_MS, true)).toMatchObject({ records: 4 });
  expect(vault.stats().records).toBe(0);
});

test("a namespace that an engine could have is never dropped so, and leases are bounded", async () => {
  const client = openClient(await openVault());
  for (const isEnd of [false, true]) {
    const denied = client.measure(toNamespace(NAMESPACE), SOON_MS, isEnd);
    await expect(denied).rejects.toMatchObject({ code: "VAULT_REFUSED" });
  }
  for (let lease = 0; lease < 4; lease += 1) await client.measure(measuringNamespace(), SOON_MS);
  const more = client.measure(measuringNamespace(), SOON_MS);
  await expect(more).rejects.toMatchObject({ code: "VAULT_BUSY" });
});

test("records on disk whose vault was stopped before the lease ended go with the next vault", async () => {
  const dataDir = testDirectory();
  const disk = { dataDir, diskBytes: 64 * MIB, durability: "group", diskTtlS: null } as const;
  const measured = measuringNamespace();
  const first = await openVault({ disk });
  const client = openClient(first);
  await client.measure(measured, SOON_MS);
  const keys = await storeFor(client, measured);
  await until(() => first.stats().disk?.durableRecords === 4, "the disk");
  client.close();
  await first.close();
  const second = await openVault({ disk });
  const again = openClient(second);
  const held = async (): Promise<number> => (await again.lookup(measured, keys, SOON_MS))[0]!;
  await until(async () => (await held()) === 0b1111, "the records to be found again");
  await until(async () => (await held()) === 0, "the end of the lease");
  await until(() => second.stats().disk?.records === 0, "the disk to be empty");
});

test("F64 a bench that was killed leaves nothing behind", async () => {
  const vault = await openVault({ maxBytes: 192 * MIB });
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\nkv_cold = "${vault.address}"\n`);
  const bench = new Program(["bench", "--rounds", "100", "--config", config]);
  await until(() => vault.stats().records > 0, "the first records");
  bench.signal("SIGKILL");
  await bench.ended();
  await until(() => vault.stats().records === 0, "the end of the lease");
});

test.each([
  ["lanes", {}],
  ["gRPC", { lanes: 0 }],
])(
  "the hit rate is that of engines: measuring look-ups over %s do not count",
  async (_way, options) => {
    const vault = await openVault();
    const client = openClient(vault, "kv", options);
    await openClient(vault).put(NAMESPACE, makeRecords(3), SOON_MS);
    await client.lookup(NAMESPACE, keysOf(makeRecords(3)), SOON_MS);
    await client.lookup(measuringNamespace(), keysOf(makeRecords(8)), SOON_MS);
    const counts = vault.counts();
    expect([counts["lookup_keys"], counts["lookup_hits"]]).toEqual([3, 3]);
  },
);
