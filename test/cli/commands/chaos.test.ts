// Owns the proof that `tierkv chaos` finds a sound vault sound and leaves it as it was, and names what an unsound one breaks.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { ChaosRow } from "../../../src/cli/chaos-vault.ts";
import { openClosedVault, secretFile, TOKENS } from "../../support/closed-vaults.ts";
import { runInside } from "../../support/command-line.ts";
import { startFaultProxy } from "../../support/fault-proxy.js";
import { makeRecords, NAMESPACE } from "../../support/records.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, openClient, openVault, SOON_MS } from "../../support/vaults.ts";

interface Result {
  ok: boolean;
  targets: { target: string; error: string | null; rows: ChaosRow[] }[];
}

async function chaos(
  address: string,
  more = "",
): Promise<{ exitCode: number | null; result: Result }> {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[cluster]\nrole = "inference"\nkv_cold = "${address}"\n${more}`);
  const { exitCode, stdout } = await runInside(["chaos", "--json", "--config", config]);
  return { exitCode, result: JSON.parse(stdout) as Result };
}

test("a sound vault holds every row and is left as it was", async () => {
  const vault = await openVault();
  const others = makeRecords(4);
  await openClient(vault).put(NAMESPACE, others, SOON_MS);
  const { exitCode, result } = await chaos(vault.address);
  const [{ rows } = { rows: [] }] = result.targets;
  expect(rows.filter(({ ok }) => !ok)).toEqual([]);
  expect(rows.map(({ fault }) => fault).filter((fault) => fault !== "-")).toEqual(
    ["F9", "F10", "F11", "F29", "F26", "F8", "F36", "F30"], // in this order
  );
  expect([exitCode, result.ok]).toEqual([0, true]);
  expect(vault.stats()).toMatchObject({ records: others.length, reservedBytes: 0 });
  expect(vault.counters.get("refused_bad_record")).toBe(2);
});

test("a vault whose bytes are damaged on the way is found out", async () => {
  const vault = await openVault();
  const faults = { direction: "fetch", corruptEvery: 1 } as const;
  const proxy = closeAfterTest(await startFaultProxy({ target: vault.address, faults }));
  const { exitCode, result } = await chaos(proxy.address);
  expect(proxy.counts().corrupted).toBeGreaterThan(0);
  expect([exitCode, result.ok]).toEqual([1, false]);
  const broken = result.targets[0]!.rows.filter(({ ok }) => !ok);
  expect(broken.length).toBeGreaterThan(0);
});

test("whoever may not flush drops its own records all the same", async () => {
  const vault = await openClosedVault();
  const [ca, token] = [secretFile(vault.caPem), secretFile(`${TOKENS.write}\n`)];
  const { exitCode, result } = await chaos(vault.address, `tls_ca = "${ca}"\ntoken = "${token}"\n`);
  const [{ rows } = { rows: [] }] = result.targets;
  expect(rows.filter(({ ok }) => !ok)).toEqual([]);
  expect(rows.at(-1)).toMatchObject({ seen: "none is held", ok: true });
  expect([exitCode, result.ok]).toEqual([0, true]);
});

test("a vault that is not there is named", async () => {
  const { exitCode, result } = await chaos("127.0.0.1:1");
  expect([exitCode, result.targets[0]!.error]).toEqual([1, expect.stringContaining("127.0.0.1:1")]);
});
