// Owns the proof that where a pool keeps parity an emptied vault leaves every block where it is looked for, and its parity, too.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Program } from "../../support/command-line.ts";
import { saveAll } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";
import type { TestVault } from "../../support/vaults.ts";
import { openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 197;
const OPTIONS = { when: "always", waitMs: 20_000, redundancy: "parity" } as const;
const LONG = { maxModelLen: 16 * BLOCKS };

test("F73 with parity an emptied vault is not missed, and after it the loss of one more is not either", async () => {
  const vaults = [await openVault(), await openVault(), await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...OPTIONS });
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const blocks = makeBlocks("moved", BLOCKS, PAGE);
  await saveAll({ engine, sidecar }, blocks);
  await until(() => sidecar.counters.get("parity_saved") >= 96, "parity records");
  const config = join(testDirectory(), "tierkv.toml");
  const list = JSON.stringify(vaults.map(({ address }) => address));
  writeFileSync(config, `[cluster]\nkv_cold = ${list}\nredundancy = "parity"\n`);
  const { address } = vaults[0]!;
  const args = ["vaults", "drain", address, "--config", config];
  const { exitCode, stdout } = await new Program(args).ended();
  expect([exitCode, stdout]).toEqual([0, expect.not.stringContaining("stayed")]);
  await vaults[0]!.close();

  const readFrom = async (left: readonly TestVault[], isWhole: boolean): Promise<number> => {
    const others = left.map((vault) => openClient(vault));
    const after = await openSidecar({ vaults: { kv: others, ssm: null }, ...OPTIONS });
    const reader = await FakeEngine.start(after.socketPath, LONG);
    const view = await reader.done(reader.prefetch(hashesOf(blocks)));
    const placed = view.placed.get(0)?.length ?? 0;
    expect(blocks.slice(0, placed).filter((block, at) => !reader.holds(view, at, block))).toEqual(
      [],
    );
    expect(after.counters.get("blocks_rebuilt") > 0).toBe(!isWhole);
    return placed;
  };
  expect(await readFrom(vaults.slice(1), true)).toBe(BLOCKS);
  await vaults[3]!.close();
  // Behind the last whole run some blocks have no parity.
  expect(await readFrom(vaults.slice(1), false)).toBeGreaterThanOrEqual(192);
});
