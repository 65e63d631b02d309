// Owns the proof that several vaults of a class are one pool: each prompt lies on all and outlives the loss of one.
import { expect, test } from "vitest";
import { hasBit } from "../../src/base/block.ts";
import { PART_BLOCKS } from "../../src/base/limits/pool.ts";
import { askFor, openPool, recordsOf } from "../support/pools.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { PlanView } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const PAGE = 8192;
const BLOCKS = 197;
const LONG = { maxModelLen: 16 * BLOCKS };
const ALWAYS = { when: "always", waitMs: 20_000 } as const;

/** Returns the placed blocks of a plan's only group. */
const placedOf = (view: PlanView): number => view.placed.get(0)?.length ?? 0;
const statesOf = (sidecar: TestSidecar): string[] =>
  sidecar.status().vaults.kv.map(({ state }) => state);

test("a prompt lies on all vaults in parts of runs, and another engine's sidecar gets it back from them", async () => {
  const vaults = [await openVault(), await openVault(), await openVault()];
  const clients = vaults.map((vault) => openClient(vault));
  const first = await openSidecar({ vaults: { kv: clients, ssm: null }, ...ALWAYS });
  const engine = await FakeEngine.start(first.socketPath, LONG);
  const blocks = makeBlocks("pool", BLOCKS, PAGE);
  await saveAll({ engine, sidecar: first }, blocks);
  const records = await recordsOf(clients);
  expect(records.reduce((sum, count) => sum + count, 0)).toBe(BLOCKS);
  // Only the last part may be incomplete.
  for (const count of records) expect([0, BLOCKS % PART_BLOCKS]).toContain(count % PART_BLOCKS);
  for (const count of records) expect(count).toBeLessThanOrEqual(BLOCKS / 2);
  expect(records.every((count) => count > 0)).toBe(true);

  const others = vaults.toReversed().map((vault) => openClient(vault));
  const second = await openSidecar({ vaults: { kv: others, ssm: null }, ...ALWAYS });
  const reader = await FakeEngine.start(second.socketPath, LONG);
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expect([view.reason, placedOf(view)]).toEqual(["complete", BLOCKS]);
  for (const at of [0, 16, BLOCKS - 1]) {
    expect(reader.holds(view, at, blocks[at]!)).toBe(true);
  }
  expect(second.counters.get("lookup_hits")).toBe(BLOCKS);
  reader.release(view.plan);
  await expectNoLeak({ engine: reader, sidecar: second });
});

test("a vault that is killed costs its own blocks: the rest is found, and saved again all comes back", async () => {
  const pool = await openPool("killed", { blocks: BLOCKS });
  const { vaults, clients, sidecar, engine, blocks } = pool;
  const lost = (await clients[1]!.stats(SOON_MS)).records;
  process.kill(vaults[1]!.pid, "SIGKILL");

  const asked = async (): Promise<PlanView> => {
    const view = await askFor(pool);
    engine.release(view.plan);
    return view;
  };
  // The first restores may be the ones that detect the loss.
  await until(async () => {
    const found = sidecar.counters.get("lookup_hits");
    await asked();
    const isDown = statesOf(sidecar)[1] === "down";
    return isDown && sidecar.counters.get("lookup_hits") - found === BLOCKS - lost;
  }, "the vault to count as down, and everything else to be found");
  expect(statesOf(sidecar)).toEqual(["up", "down", "up"]);
  // The engine computes missing blocks, and saves those that no vault reported.
  const { held } = await asked();
  const missing = blocks.filter((_block, at) => !hasBit(held!, at));
  expect(missing).toHaveLength(lost);
  await saveAll({ engine, sidecar }, missing);
  const view = await asked();
  expect([view.reason, placedOf(view)]).toEqual(["complete", BLOCKS]);
  await expectNoLeak({ engine, sidecar });
});
