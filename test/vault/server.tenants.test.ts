// Owns the proof that tenants of a vault keep their share: no flood takes it, no guess finds it.
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { hasBit, ItemStatus } from "../../src/base/block.ts";
import { KEYS_MAX } from "../../src/base/limits/general.ts";
import type { VaultDisk } from "../../src/vault/server.ts";
import { makeRecord, NAMESPACE, OTHER_NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import { testDirectory } from "../support/sidecars.ts";
import { MIB, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const RECORD_BYTES = 64 * 1024;
const VICTIM = 281_474_976_710_655;
const FLOODERS = [1, 2, 3, 4];
const PROBES = 1_000_000;

const records = (from: number, count: number): TestRecord[] =>
  Array.from({ length: count }, (_, at) => makeRecord(from + at, { payloadBytes: RECORD_BYTES }));

async function hits(client: ReturnType<typeof openClient>, kept: TestRecord[]): Promise<number> {
  const keys = Buffer.concat(kept.map(({ key }) => key));
  const present = await client.lookup(NAMESPACE, keys, SOON_MS);
  return kept.filter((_, at) => hasBit(present, at)).length;
}

describe("quotas", () => {
  test.each([
    ["with quotas a flood by four tenants leaves a fifth what is in its own", 6 * MIB, 0.9, 1],
    ["without, it leaves nothing", null, 0, 0.1],
  ])("%s", async (_what, tenantBytes, least, most) => {
    const vault = await openVault({ maxBytes: 32 * MIB, tenantBytes });
    const client = openClient(vault);
    // Below its quota, index and headers included.
    const kept = records(0, 80);
    const stored = await client.put(NAMESPACE, kept, SOON_MS, VICTIM);
    expect(new Set(stored)).toEqual(new Set([ItemStatus.ACCEPTED]));
    // Stores four times the vault's capacity, alternating.
    let accepted = 0;
    for (let round = 0; round < 16; round += 1) {
      const floods = FLOODERS.map((tenant) => {
        const flood = records(1000 + (round * FLOODERS.length + tenant) * 32, 32);
        return client.put(NAMESPACE, flood, SOON_MS, tenant);
      });
      const statuses = (await Promise.all(floods)).flat();
      accepted += statuses.filter((status) => status === ItemStatus.ACCEPTED).length;
    }
    expect(accepted, "the flood was let in").toBeGreaterThan(1024);
    expect(vault.stats().counters["evicted"]).toBeGreaterThan(500);
    const rate = (await hits(client, kept)) / kept.length;
    expect(rate).toBeGreaterThanOrEqual(least);
    expect(rate).toBeLessThanOrEqual(most);
  });
});

test("what a tenant keeps of a disk outlives floods, and a restart between them", async () => {
  const disk: VaultDisk = {
    dataDir: join(testDirectory(), "data"),
    diskBytes: 32 * MIB,
    durability: "group",
    diskTtlS: null,
  };
  const limits = { maxBytes: 16 * MIB, tenantBytes: 3 * MIB, disk };
  // Stored in bounded parts, because more would not reach the disk.
  const isWritten = (client: ReturnType<typeof openClient>): Promise<void> =>
    until(async () => (await client.stats(SOON_MS)).disk!.queuedRecords === 0, "all to be written");
  const flood = async (client: ReturnType<typeof openClient>, from: number): Promise<void> => {
    for (let round = 0; round < 32; round += 1) {
      const some = records(from + round * 32, 32);
      await client.put(NAMESPACE, some, SOON_MS, FLOODERS[round % FLOODERS.length]);
      await isWritten(client);
    }
  };
  // Within its share of both tiers.
  const kept = records(0, 40);
  for (const from of [10_000, 20_000]) {
    const vault = await openVault(limits);
    const client = openClient(vault);
    await until(async () => !(await client.stats(SOON_MS)).disk!.recovering, "the disk to be read");
    if (from === 10_000) {
      await client.put(NAMESPACE, kept, SOON_MS, VICTIM);
      await isWritten(client);
    }
    expect(await hits(client, kept)).toBe(kept.length);
    await flood(client, from);
    // Records in a segment with kept ones may stay with it.
    const old = Buffer.concat(records(from + 128, 32).map(({ key }) => key));
    const present = await client.lookup(NAMESPACE, old, SOON_MS);
    expect(
      present.some((byte) => byte !== 0),
      "the flood's first gave way",
    ).toBe(false);
    expect(await hits(client, kept)).toBe(kept.length);
    await vault.close();
  }
});

test(`${PROBES} guesses of another tenant's keys find nothing`, async () => {
  const vault = await openVault({ maxBytes: 16 * MIB });
  const client = openClient(vault);
  const held = Array.from({ length: 500 }, (_, index) => makeRecord(index));
  await client.put(NAMESPACE, held, SOON_MS, VICTIM);
  expect(await hits(client, held)).toBe(held.length);
  // Makes distinct near misses: one bit of a hash, of the group or of the shard, later two.
  const guess = (probe: number): Buffer => {
    const key = Buffer.from(held[probe % held.length]?.key ?? "");
    const [turn, bits] = [Math.floor(probe / held.length), key.length * 8];
    for (const bit of new Set([turn % bits, (turn + Math.floor(turn / bits)) % bits])) {
      key[bit >> 3] = (key[bit >> 3] ?? 0) ^ (1 << (bit & 7));
    }
    return key;
  };
  let found = 0;
  for (let probe = 0; probe < PROBES; probe += KEYS_MAX) {
    const count = Math.min(KEYS_MAX, PROBES - probe);
    const keys = Buffer.concat(Array.from({ length: count }, (_, at) => guess(probe + at)));
    const present = await client.lookup(NAMESPACE, keys, SOON_MS);
    for (let at = 0; at < count; at += 1) found += hasBit(present, at) ? 1 : 0;
  }
  expect(found).toBe(0);
  // The right hashes under another name.
  const keys = Buffer.concat(held.map(({ key }) => key));
  const present = await client.lookup(OTHER_NAMESPACE, keys, SOON_MS);
  expect(present.every((byte) => byte === 0)).toBe(true);
  expect(vault.counters.get("lookup_keys")).toBeGreaterThanOrEqual(PROBES);
  expect(vault.counters.get("lookup_hits")).toBe(held.length);
});
