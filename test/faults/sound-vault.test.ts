// Owns the proof that a sound vault survives harmless faults and is left as it was, and that an unsound vault is seen.
import { expect, test } from "vitest";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { openClosedVault, shown, TOKENS } from "../support/closed-vaults.ts";
import { startFaultProxy } from "../support/fault-proxy.js";
import { makeRecords, NAMESPACE } from "../support/records.ts";
import { faultVault } from "../support/vault-faults.ts";
import type { FaultRow } from "../support/vault-faults.ts";
import { closeAfterTest, logger, openClient, openVault, SOON_MS } from "../support/vaults.ts";

const faults = (address: string, security: ChannelSecurity | null = null): Promise<FaultRow[]> =>
  faultVault({ address, name: "kv", logger, security });

const broken = (rows: readonly FaultRow[]): FaultRow[] => rows.filter(({ ok }) => !ok);

test("a sound vault holds every row and is left as it was", async () => {
  const vault = await openVault();
  const others = makeRecords(4);
  await openClient(vault).put(NAMESPACE, others, SOON_MS);
  const rows = await faults(vault.address);
  expect(broken(rows)).toEqual([]);
  expect(rows.map(({ fault }) => fault).filter((fault) => fault !== "-")).toEqual(
    ["F9", "F10", "F11", "F29", "F26", "F8", "F36", "F30"], // in this order
  );
  expect(vault.stats()).toMatchObject({ records: others.length, reservedBytes: 0 });
  expect(vault.counters.get("refused_bad_record")).toBe(2);
});

test("a vault whose bytes are damaged on the way is found out", async () => {
  const vault = await openVault();
  const damage = { direction: "fetch", corruptEvery: 1 } as const;
  const proxy = closeAfterTest(await startFaultProxy({ target: vault.address, faults: damage }));
  const rows = await faults(proxy.address);
  expect(proxy.counts().corrupted).toBeGreaterThan(0);
  expect(broken(rows).length).toBeGreaterThan(0);
});

test("a client that may not flush drops its own records all the same", async () => {
  const vault = await openClosedVault();
  const rows = await faults(vault.address, shown(vault, TOKENS.write));
  expect(broken(rows)).toEqual([]);
  expect(rows.at(-1)).toMatchObject({ seen: "none is held", ok: true });
});
