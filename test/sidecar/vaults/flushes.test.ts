// Owns the proof that a flush empties arenas, plans and saves, also of a sidecar that was away.
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { packKeys } from "../../../src/base/block.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Saving, Scene } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { openSidecar, openStack, testDirectory } from "../../support/sidecars.ts";
import { logger, MIB, openClient, openVault, SOON_MS, until } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  // Small windows, so that a fetch of a few MiB takes several on any machine.
  FETCH_WINDOW_BYTES: 2 ** 20,
  WATCH_PAUSE_MS: 20,
  FLUSH_CONFIRM_MS: 500,
}));

const PAGE = 8192;
const [GONE, KEPT] = [2 ** 48 - 5, 6];

/** Restores blocks and releases them, so that they stay in the arena. */
async function keepCopies({ sidecar, engine }: Saving, blocks: readonly Block[]): Promise<void> {
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  engine.release(view.plan);
  const kept = (): number => sidecar.status().engines[0]!.retainedBlocks;
  await until(() => kept() === blocks.length, "the copies");
}

/** Waits until the vault waits for this sidecar when it flushes. */
async function watched(scene: Pick<Scene, "vault">): Promise<void> {
  const admin = openClient(scene.vault);
  const isThere = async (): Promise<boolean> =>
    (await admin.flush(Buffer.alloc(32, 7), SOON_MS)).sidecars.some(({ confirmed }) => confirmed);
  await until(isThere, "the sidecar to watch");
}

test("F60 copies in the arena go with a flush, and the vault is told how many", async () => {
  const scene = await openScene();
  const { engine, sidecar, vault } = scene;
  const blocks = makeBlocks("a", 12, PAGE);
  await saveAll(scene, blocks);
  await keepCopies(scene, blocks);
  await watched(scene);
  const { records, sidecars } = await openClient(vault).flush(null, SOON_MS);
  expect(records).toBe(12);
  expect(sidecars).toEqual([
    {
      name: expect.stringContaining(sidecar.socketPath) as string,
      confirmed: true,
      quietMs: 0,
      blocks: 12,
      bytes: 12 * PAGE,
      saves: 0,
    },
  ]);
  expect(sidecar.status().engines[0]!.retainedBlocks).toBe(0);
  await expectNoLeak(scene);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect([view.placed.size, view.why]).toEqual([0, "flushed"]);
  expect(sidecar.counters.get("flushed_blocks")).toBe(12);
  // Blocks computed again are stored again.
  await saveAll(scene, blocks);
  await keepCopies(scene, blocks);
});

test("a flush takes only its namespace, class and model", async () => {
  const { sidecar, kv } = await openStack();
  const engine = await FakeEngine.start(sidecar.socketPath);
  const scene = { sidecar, engine, vault: kv };
  const blocks = makeBlocks("a", 4, PAGE);
  await saveAll(scene, blocks);
  await keepCopies(scene, blocks);
  await watched(scene);
  const admin = openClient(kv);
  const kept = (): number => sidecar.status().engines[0]!.retainedBlocks;
  await admin.flush(null, SOON_MS, "ssm");
  await admin.flush(Buffer.alloc(32, 9), SOON_MS);
  await admin.flush(null, SOON_MS, null, "another/model");
  expect(kept()).toBe(4);
  await admin.flush(null, SOON_MS, "kv", "test/model");
  expect(kept()).toBe(0);
  await saveAll(scene, blocks);
  await keepCopies(scene, blocks);
  await admin.flush(engine.namespace, SOON_MS);
  expect(kept()).toBe(0);
});

/** Saves blocks of two tenants into vault and arena: ones to flush, and ones to keep. */
async function twoTenants({ sidecar, engine }: Saving, count: number): Promise<[Block[], Block[]]> {
  const [gone, kept] = [makeBlocks("gone", count, PAGE), makeBlocks("kept", count, PAGE)];
  for (const [tenant, blocks] of [
    [GONE, gone],
    [KEPT, kept],
  ] as const) {
    engine.tenant = tenant;
    await saveAll({ sidecar, engine }, blocks);
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    engine.release(view.plan);
  }
  await until(() => sidecar.status().engines[0]!.retainedBlocks === 2 * count, "the copies");
  return [gone, kept];
}

/** Returns where a tenant's blocks come from, and why they do not. */
async function asked(
  { sidecar, engine }: Saving,
  tenant: number,
  blocks: readonly Block[],
): Promise<{ placed: number; why: string | null; local: number }> {
  const before = sidecar.counters.get("blocks_restored_local");
  engine.tenant = tenant;
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  engine.release(view.plan);
  const local = sidecar.counters.get("blocks_restored_local") - before;
  return { placed: view.placed.get(0)?.length ?? 0, why: view.why, local };
}

test("F70 a tenant's copies go with its flush, and another's stay", async () => {
  const scene = await openScene();
  const { vault, sidecar } = scene;
  const [gone, kept] = await twoTenants(scene, 6);
  await watched(scene);
  const admin = openClient(vault);
  await admin.flush(null, SOON_MS, "kv", "another/model", GONE);
  expect(sidecar.status().engines[0]!.retainedBlocks).toBe(12);
  const { records, sidecars } = await admin.flush(null, SOON_MS, "kv", "test/model", GONE);
  expect(records).toBe(6);
  expect(sidecars).toMatchObject([{ confirmed: true, blocks: 6, bytes: 6 * PAGE, saves: 0 }]);
  expect(await asked(scene, GONE, gone)).toEqual({ placed: 0, why: "flushed", local: 0 });
  expect(await asked(scene, KEPT, kept)).toEqual({ placed: 6, why: null, local: 6 });
  await expectNoLeak(scene);
});

test("F70 a tenant's saves that wait go with its flush, and another's are stored", async () => {
  const page = 64 * 4096;
  const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
  const { engine, proxy, sidecar, vault } = scene;
  await saveAll(scene, makeBlocks("first", 1, page));
  await watched(scene);
  proxy.set({ bytesPerSecond: 2 * MIB });
  const [gone, kept] = [makeBlocks("gone", 12, page), makeBlocks("kept", 12, page)];
  for (let at = 0; at < 12; at += 4) {
    engine.tenant = GONE;
    engine.save(gone.slice(at, at + 4));
    engine.tenant = KEPT;
    engine.save(kept.slice(at, at + 4));
  }
  await until(() => sidecar.status().saves.queuedBlocks === 24, "the saves to be under way");
  const admin = openClient(vault);
  await admin.flush(null, SOON_MS, null, null, GONE);
  proxy.set({});
  await until(() => sidecar.status().saves.queuedBlocks === 0, "the saves to end");
  const held = async (blocks: readonly Block[]): Promise<number[]> => [
    ...(await admin.lookup(engine.namespace, packKeys(hashesOf(blocks), 0, 0), SOON_MS)),
  ];
  expect([await held(gone), await held(kept)]).toEqual([
    [0, 0],
    [255, 15],
  ]);
  expect(sidecar.counters.get("dropped_flushed")).toBeGreaterThan(0);
  await expectNoLeak(scene);
});

test("F70 a sidecar that was away drops the blocks of a tenant's flush, and no more", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const [gone, kept] = await twoTenants({ sidecar, engine }, 6);
  const away = vi.spyOn(client.flushes, "receive").mockImplementation(() => {});
  await openClient(vault).flush(null, SOON_MS, null, null, GONE);
  expect(sidecar.status().engines[0]!.retainedBlocks).toBe(12);
  away.mockRestore();
  await client.hello(SOON_MS);
  expect(sidecar.status().engines[0]!.retainedBlocks).toBe(6);
  const scene = { sidecar, engine };
  expect(await asked(scene, GONE, gone)).toEqual({ placed: 0, why: "flushed", local: 0 });
  expect(await asked(scene, KEPT, kept)).toEqual({ placed: 6, why: null, local: 6 });
});

test("an open plan ends as flushed; blocks it was told of stay until its release, and no longer", async () => {
  const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
  const { engine, proxy, sidecar, vault } = scene;
  const blocks = makeBlocks("b", 20, 64 * 4096);
  await saveAll(scene, blocks);
  await watched(scene);
  proxy.set({ bytesPerSecond: 4 * MIB });
  const plan = engine.prefetch(hashesOf(blocks));
  await until(() => (engine.view(plan).placed.get(0)?.length ?? 0) > 0, "its first blocks");
  await openClient(vault).flush(null, SOON_MS);
  const view = await engine.done(plan);
  expect(view.reason).toBe("flushed");
  const told = view.placed.get(0)!.length;
  expect(told).toBeLessThan(20);
  expect(engine.holds(view, told - 1, blocks[told - 1]!)).toBe(true);
  proxy.set({});
  const again = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(again.placed.size).toBe(0);
  engine.release(again.plan);
  engine.release(plan);
  await expectNoLeak(scene);
  expect(sidecar.status().engines[0]!.retainedBlocks).toBe(0);
});

test.each([
  ["heard of", true],
  ["not heard of", false],
])("an answer from before a flush, %s, brings nothing back after it", async (_name, isHeard) => {
  const vault = await openVault();
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const scene = { sidecar, engine, vault };
  const blocks = makeBlocks("stale", 12, PAGE);
  await saveAll(scene, blocks);
  // Where the flush is announced, half of them lie in the arena as well.
  if (isHeard) await keepCopies(scene, blocks.slice(0, 6));
  await watched(scene);
  if (!isHeard) vi.spyOn(client.flushes, "receive").mockImplementation(() => {});
  let answered = (): void => {};
  const told = new Promise<void>((resolve) => (answered = resolve));
  let goOn = (): void => {};
  const gate = new Promise<void>((resolve) => (goOn = resolve));
  const ask = client.find.bind(client);
  vi.spyOn(client, "find").mockImplementationOnce(async (...question) => {
    const found = await ask(...question);
    answered();
    await gate;
    return found;
  });
  const plan = engine.prefetch(hashesOf(blocks));
  await told;
  await openClient(vault).flush(null, SOON_MS);
  if (isHeard) await until(() => sidecar.status().engines[0]!.retainedBlocks === 0, "the flush");
  goOn();
  const view = await engine.done(plan);
  expect([...view.held!]).toEqual([255, 15]);
  expect(view.placed.size).toBe(0);
  engine.release(plan);
  expect((await client.stats(SOON_MS)).records).toBe(0);
  await expectNoLeak(scene);
});

test("F61 saves that were handed over before a flush are not stored after it", async () => {
  const page = 64 * 4096;
  const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
  const { engine, proxy, sidecar, vault } = scene;
  await saveAll(scene, makeBlocks("first", 1, page));
  await watched(scene);
  proxy.set({ bytesPerSecond: 2 * MIB });
  const blocks = makeBlocks("c", 24, page);
  for (let at = 0; at < blocks.length; at += 4) engine.save(blocks.slice(at, at + 4));
  await until(() => sidecar.status().saves.queuedBlocks === 24, "the saves to be under way");
  const admin = openClient(vault);
  const { sidecars } = await admin.flush(null, SOON_MS);
  proxy.set({});
  await until(() => sidecar.status().saves.queuedBlocks === 0, "the saves to end");
  expect((await admin.stats(SOON_MS)).records).toBe(0);
  const { counters } = sidecar;
  // Some may have been stored before, and have gone with the flush.
  expect(counters.get("dropped_flushed") + counters.get("blocks_saved")).toBe(25);
  expect(counters.get("dropped_flushed")).toBeGreaterThan(0);
  expect(counters.get("dropped_flushed")).toBeGreaterThanOrEqual(sidecars[0]!.saves);
  await expectNoLeak(scene);
  await saveAll(scene, blocks);
});

test("F62 a sidecar that was away drops the missed flushes' blocks before it restores again, also from a vault restarted in between", async () => {
  for (const isRestarted of [false, true]) {
    const flushFile = join(testDirectory(), "flushes.json");
    let vault = await openVault({ flushFile });
    const port = Number(vault.address.split(":").at(-1));
    const client = openClient(vault);
    const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("d", 6, PAGE);
    await saveAll({ sidecar, engine }, blocks);
    await keepCopies({ sidecar, engine }, blocks);
    // Flush news is blocked while this spy is set.
    const away = vi.spyOn(client.flushes, "receive").mockImplementation(() => {});
    const admin = new VaultClient({ address: vault.address, name: "kv", logger });
    await admin.flush(null, SOON_MS);
    admin.close();
    expect(sidecar.status().engines[0]!.retainedBlocks).toBe(6);
    if (isRestarted) {
      await vault.close();
      vault = await openVault({ flushFile, port });
    }
    away.mockRestore();
    await until(
      () =>
        client.hello(SOON_MS).then(
          () => true,
          () => false,
        ),
      "the next contact",
    );
    expect(sidecar.status().engines[0]!.retainedBlocks).toBe(0);
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.placed.size).toBe(0);
    const keys = packKeys(hashesOf(blocks), 0, 0);
    expect([...(await client.lookup(engine.namespace, keys, SOON_MS))]).toEqual([0]);
    engine.close();
    await sidecar.close();
  }
});

test("a vault of which a sidecar knows more than it does itself has lost its memory of flushes: all goes", async () => {
  let vault = await openVault();
  const port = Number(vault.address.split(":").at(-1));
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  await watched({ vault });
  const blocks = makeBlocks("e", 6, PAGE);
  await saveAll({ sidecar, engine }, blocks);
  await keepCopies({ sidecar, engine }, blocks);
  await vault.close();
  vault = await openVault({ port });
  await until(() => sidecar.status().engines[0]!.retainedBlocks === 0, "the arena to be empty");
});
