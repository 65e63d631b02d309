// Owns the proof that made-up tenant names of one credential take nothing kept for another credential (fault F41).
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { hasBit } from "../../src/base/block.ts";
import { askOnce } from "../../src/client/vault/ask.ts";
import type { VaultDisk } from "../../src/vault/server.ts";
import { vaultService } from "../../src/wire/service.ts";
import { openClosedVault, shown, TOKENS } from "../support/closed-vaults.ts";
import type { ClosedVault } from "../support/closed-vaults.ts";
import type { TestClient } from "../support/record-client.ts";
import { makeRecord, NAMESPACE } from "../support/records.ts";
import type { TestRecord } from "../support/records.ts";
import { testDirectory } from "../support/sidecars.ts";
import { MIB, openClient, SOON_MS, until } from "../support/vaults.ts";

const SALTS = 1000;
const RECORD_BYTES = 64 * 1024;
const records = (from: number, count: number): TestRecord[] =>
  Array.from({ length: count }, (_, at) => makeRecord(from + at, { payloadBytes: RECORD_BYTES }));
const KEPT = records(0, 120);
const TENANT_BYTES = 12 * MIB;

const asked = (vault: ClosedVault, token: string): Parameters<typeof askOnce>[0] => ({
  name: "test",
  address: vault.address,
  security: shown(vault, token),
  timeoutMs: SOON_MS,
});

async function machine(vault: ClosedVault): Promise<string> {
  const invited = { role: "write", forS: 60, uses: 1 };
  const { secret } = await askOnce(asked(vault, TOKENS.admin), vaultService.Invite, invited);
  const joined = { machine: "box", formers: [] };
  return (await askOnce(asked(vault, secret), vaultService.Redeem, joined)).token;
}

const clientOf = (vault: ClosedVault, token: string): TestClient =>
  openClient(vault, "kv", { security: shown(vault, token) });

async function hits(client: TestClient): Promise<number> {
  const keys = Buffer.concat(KEPT.map(({ key }) => key));
  const present = await client.lookup(NAMESPACE, keys, SOON_MS);
  return KEPT.filter((_, at) => hasBit(present, at)).length;
}

/** Stores twice the vault's capacity, each record under another name; calls `after` every few records. */
async function flood(client: TestClient, after: () => Promise<void>): Promise<void> {
  for (let salt = 1; salt <= SALTS; salt += 1) {
    await client.put(NAMESPACE, records(1000 + salt, 1), SOON_MS, salt * 2 ** 20);
    if (salt % 32 === 0) await after();
  }
}

describe(`${SALTS} made-up names of one credential`, () => {
  test("take nothing in memory from another, or from those that are nobody's; within one they count", async () => {
    const vault = await openClosedVault({}, { maxBytes: 32 * MIB, tenantBytes: TENANT_BYTES });
    const [flooder, victim] = [await machine(vault), await machine(vault)];
    const victims = clientOf(vault, victim);
    await victims.put(NAMESPACE, KEPT, SOON_MS, 77);
    expect(await hits(victims)).toBe(KEPT.length);
    await flood(clientOf(vault, flooder), () => Promise.resolve());
    expect(vault.stats().counters["evicted"]).toBeGreaterThan(SALTS / 2);
    expect(await hits(victims)).toBe(KEPT.length);
    // The same flood by the victim itself, whose names are tenants as before and within their quota.
    for (let salt = 1; salt <= SALTS; salt += 1)
      await victims.put(NAMESPACE, records(5000 + salt, 1), SOON_MS, salt * 2 ** 20);
    expect(await hits(victims)).toBeLessThan(KEPT.length);
  });

  test("take nothing on disk, also after a restart", async () => {
    const disk: VaultDisk = {
      dataDir: join(testDirectory(), "data"),
      diskBytes: 32 * MIB,
      durability: "group",
      diskTtlS: null,
    };
    const limits = { maxBytes: 32 * MIB, tenantBytes: TENANT_BYTES, disk };
    const vault = await openClosedVault({}, limits);
    const [flooder, victim] = [await machine(vault), await machine(vault)];
    const victims = clientOf(vault, victim);
    const isWritten = (): Promise<void> =>
      until(async () => (await victims.stats(SOON_MS)).disk!.queuedRecords === 0, "the disk");
    for (let from = 0; from < KEPT.length; from += 24) {
      await victims.put(NAMESPACE, KEPT.slice(from, from + 24), SOON_MS, 77);
      await isWritten();
    }
    await flood(clientOf(vault, flooder), isWritten);
    await isWritten();
    expect(vault.stats().counters["disk_evicted"]).toBeGreaterThan(SALTS / 4);
    await vault.close();
    // Restarted, so that found records lie on disk.
    const again = await openClosedVault({}, limits);
    const reader = clientOf(again, TOKENS.read);
    await until(async () => !(await reader.stats(SOON_MS)).disk!.recovering, "the disk to be read");
    expect(await hits(reader)).toBe(KEPT.length);
  });
});
