// Owns the proof that shared memory stands before a pool's vaults: asked first, filled too, and never in their way.
import { expect, test } from "vitest";
import { recordsOf } from "../support/pools.ts";
import { damageAll, openShared, regionAddress } from "../support/regions.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import { openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 69;

interface Machine {
  sidecar: TestSidecar;
  engine: FakeEngine;
}

/** Opens a sidecar with a region and vaults behind it. */
async function machineOn(
  address: string,
  vaults: readonly { address: string }[],
): Promise<Machine> {
  const kv = [await openShared(address), ...vaults.map((vault) => openClient(vault))];
  await Promise.all(kv.map((client) => client.hello(SOON_MS)));
  const options = { when: "always", waitMs: 20_000 } as const;
  const sidecar = await openSidecar({ vaults: { kv, ssm: null }, ...options });
  const engine = await FakeEngine.start(sidecar.socketPath, { maxModelLen: 16 * BLOCKS });
  return { sidecar, engine };
}

/** Returns how many blocks came back, each byte for byte. */
async function restored({ engine, sidecar }: Machine, blocks: readonly Block[]): Promise<number> {
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  const count = view.placed.get(0)?.length ?? 0;
  for (let at = 0; at < count; at += 1) expect(engine.holds(view, at, blocks[at]!)).toBe(true);
  engine.release(view.plan);
  await expectNoLeak({ engine, sidecar });
  return count;
}

test("blocks that one sidecar saves lie in both, and another of the machine asks no vault for it", async () => {
  const address = regionAddress();
  const vaults = [await openVault(), await openVault()];
  const one = await machineOn(address, vaults);
  const blocks = makeBlocks("both", BLOCKS, PAGE);
  await saveAll(one, blocks);
  const near = await openShared(address);
  expect((await near.stats(SOON_MS)).records).toBe(BLOCKS);
  const inVaults = await recordsOf(vaults.map((vault) => openClient(vault)));
  expect(inVaults.reduce((sum, count) => sum + count, 0)).toBe(BLOCKS);
  const { counters } = one.sidecar;
  expect([counters.get("shared_saved"), counters.get("blocks_saved")]).toEqual([BLOCKS, BLOCKS]);

  const asked = (): number =>
    vaults.reduce((sum, { counters: of }) => sum + of.get("lookup_keys"), 0);
  let other = one;
  // Retried, because a region slower than expected is not awaited.
  await until(async () => {
    other = await machineOn(address, vaults);
    const before = asked();
    expect(await restored(other, blocks)).toBe(BLOCKS);
    return asked() === before;
  }, "a restore that asks no vault");
  expect(other.sidecar.counters.get("blocks_restored_shared")).toBe(BLOCKS);
  // Another engine of the saving sidecar asks no vault either, although it has its own arena.
  let engines = 0;
  await until(async () => {
    const shape = { engine: `neighbour ${(engines += 1)}`, maxModelLen: 16 * BLOCKS };
    const engine = await FakeEngine.start(one.sidecar.socketPath, shape);
    const before = asked();
    expect(await restored({ engine, sidecar: one.sidecar }, blocks)).toBe(BLOCKS);
    engine.close();
    return asked() === before;
  }, "a second engine's restore that asks no vault");
  expect(other.sidecar.status().vaults.kv.map(({ tier, share }) => [tier, share > 0])).toEqual([
    ["shared", false],
    ["vault", true],
    ["vault", true],
  ]);
});

test("another machine gets it from the vaults, half of it from its own region", async () => {
  const vaults = [await openVault(), await openVault()];
  const one = await machineOn(regionAddress(), vaults);
  const far = await machineOn(regionAddress(), vaults);
  const blocks = makeBlocks("far", BLOCKS, PAGE);
  await saveAll(far, blocks.slice(0, 32));
  await saveAll(one, blocks.slice(32));
  expect(await restored(far, blocks)).toBe(BLOCKS);
  const { counters } = far.sidecar;
  expect(counters.get("blocks_restored_shared")).toBe(32);
  expect(counters.get("blocks_restored_vault")).toBe(BLOCKS - 32);
});

test("blocks damaged in the region come from the vaults", async () => {
  const address = regionAddress();
  const vaults = [await openVault()];
  const one = await machineOn(address, vaults);
  const blocks = makeBlocks("damaged", BLOCKS, PAGE);
  await saveAll(one, blocks);
  damageAll(address);
  const other = await machineOn(address, vaults);
  expect(await restored(other, blocks)).toBe(BLOCKS);
  expect(other.sidecar.counters.get("bad_records")).toBeGreaterThan(0);
});

test("with its vaults dead a machine goes on with its region, and their misses are counted", async () => {
  const address = regionAddress();
  const vaults = [await startVaultProcess(), await startVaultProcess()];
  const one = await machineOn(address, vaults);
  const early = makeBlocks("early", BLOCKS, PAGE);
  await saveAll(one, early);
  for (const { pid } of vaults) process.kill(pid, "SIGKILL");
  const isDown = (): boolean =>
    one.sidecar
      .status()
      .vaults.kv.every(({ tier, state }) => (tier === "shared") === (state === "up"));
  await until(isDown, "the vaults to be missed");
  const late = makeBlocks("late", BLOCKS, PAGE);
  const { counters } = one.sidecar;
  for (const block of late) {
    await until(() => one.engine.workers[0]!.credits.length > 0, "credits");
    one.engine.save([block]);
  }
  await until(() => counters.get("shared_saved") === 2 * BLOCKS, "the saves");
  expect(counters.get("dropped_vault_down")).toBe(BLOCKS);
  for (const blocks of [early, late]) expect(await restored(one, blocks)).toBe(BLOCKS);
});
