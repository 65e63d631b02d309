// Owns the tests of a yielding vault: its clients, its records, and a failed return.
import { expect, test } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { splitAddress } from "../../src/base/hosts.ts";
import { YieldingVault } from "../../src/vault/yielding.ts";
import type { YieldingOptions } from "../../src/vault/yielding.ts";
import { keysOf, makeRecords, NAMESPACE } from "../support/records.ts";
import { testDirectory } from "../support/sidecars.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  reaches,
  SOON_MS,
  until,
} from "../support/vaults.ts";
import type { TestVault } from "../support/vaults.ts";

const records = makeRecords(20, { payloadBytes: 100_000 });
const keys = keysOf(records);
const NEVER_MS = 1e9;

/** A user whose activity the test sets. */
class TestUser {
  readonly name = "test";
  isThere = false;
  isClosed = false;
  readonly idleMs = (): number => (this.isThere ? 0 : Infinity);
  readonly close = (): void => void (this.isClosed = true);
}

function give(
  vault: TestVault,
  options: Partial<YieldingOptions> & Pick<YieldingOptions, "user">,
): YieldingVault {
  const open = (): Promise<TestVault> => Promise.reject(new Error("is not to be opened"));
  const all = { vault, open, awayMs: 1000, graceMs: NEVER_MS, logger, ...options };
  return closeAfterTest(new YieldingVault(all));
}

test("F89 while somebody is there nobody reaches the vault, and afterwards it holds what it held", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const statuses = await client.put(NAMESPACE, records, SOON_MS);
  expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
  const storedBytes = records.reduce((sum, { record }) => sum + record.length, 0);
  const user = new TestUser();
  const giving = give(vault, { user });

  user.isThere = true;
  await until(async () => !(await reaches(vault.address)), "the vault to be silent");
  expect(giving.state).toBe("paused");
  await expect(client.take(NAMESPACE, keys, SOON_MS)).rejects.toThrow();
  expect(giving.stats().records).toBe(20);
  expect(giving.trouble()).toContain("yield_to_user");

  user.isThere = false;
  await until(() => reaches(vault.address), "the vault to serve");
  await until(() => giving.state === "serving", "it to say so");
  expect(giving.trouble()).toBeNull();
  const { counters, inBytesPerS } = await openClient(vault).stats(SOON_MS);
  expect(counters).toMatchObject({ stored: 20, stored_bytes: storedBytes });
  expect(inBytesPerS).toBeLessThan(1e12);
  const fetched = await openClient(vault).take(NAMESPACE, keys, SOON_MS);
  expect(fetched.records.size).toBe(20);
  expect(fetched.records.get(7)?.equals(records[7]!.record)).toBe(true);
  await giving.close();
  expect(user.isClosed).toBe(true);
  expect(await reaches(vault.address)).toBe(false);
});

test("F89 a user who stays gets the memory; records on disk are served again, at the same address, also after a failed start", async () => {
  const disk = {
    dataDir: testDirectory(),
    diskBytes: 64 * MIB,
    durability: "group",
    diskTtlS: null,
  } as const;
  const first = await openVault({ disk });
  await openClient(first).put(NAMESPACE, records, SOON_MS);
  await until(() => first.stats().disk?.records === 20, "the disk to have all");
  const user = new TestUser();
  let failures = 1;
  const giving = give(first, {
    user,
    graceMs: 0,
    retryMs: 1,
    open(): Promise<TestVault> {
      failures -= 1;
      if (failures >= 0) return Promise.reject(new Error("the port is taken"));
      return openVault({ disk, port: splitAddress(first.address).port });
    },
  });

  user.isThere = true;
  await until(() => giving.state === "released", "the memory to be given back");
  expect(giving.stats().disk?.records).toBe(20);
  expect(await reaches(first.address)).toBe(false);

  user.isThere = false;
  await until(() => giving.state === "serving", "the vault to serve");
  expect(failures).toBe(-1);
  const client = openClient(giving);
  await until(async () => (await client.stats(SOON_MS)).disk?.recovering === false, "recovery");
  expect((await client.take(NAMESPACE, keys, SOON_MS)).records.size).toBe(20);
});

test("closed while it is silent, or with its memory given back, it ends", async () => {
  for (const graceMs of [0, NEVER_MS]) {
    const user = new TestUser();
    const vault = await openVault();
    const giving = give(vault, { user, graceMs });
    user.isThere = true;
    await until(() => giving.state === (graceMs === 0 ? "released" : "paused"), "it to give way");
    await giving.close();
    expect(await reaches(vault.address)).toBe(false);
  }
});
