// Owns the proof that faults between vaults of a pool cost misses at most: partial reachability, one address for two, clocks, slowness.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { hasBit } from "../../src/base/block.ts";
import type { TestClient } from "../support/record-client.ts";
import { expectNoLeak, saveAll } from "../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import type { Block, PlanView } from "../support/shim-client.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { openRelay, relayTo } from "../support/tcp-relay.ts";
import { startVaultProcess } from "../support/vault-process.ts";
import { closeAfterTest, openClient, openVault, SOON_MS, until } from "../support/vaults.ts";

const BLOCKS = 197;
const LONG = { maxModelLen: 16 * BLOCKS };
const ALWAYS = { when: "always", waitMs: 20_000 } as const;

interface Host {
  sidecar: TestSidecar;
  clients: TestClient[];
  engine: FakeEngine;
  /** Restores a prompt; every block that comes must have the right bytes. */
  read(blocks: readonly Block[]): Promise<{ placed: number; view: PlanView }>;
}

async function hostOf(clients: TestClient[], limits: object = ALWAYS): Promise<Host> {
  await Promise.all(clients.map((client) => client.hello(SOON_MS)));
  const sidecar = await openSidecar({ vaults: { kv: clients, ssm: null }, ...limits });
  const engine = await FakeEngine.start(sidecar.socketPath, LONG);
  const read: Host["read"] = async (blocks) => {
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    const placed = view.placed.get(0)?.length ?? 0;
    const wrong = blocks.slice(0, placed).filter((block, at) => !engine.holds(view, at, block));
    expect(wrong).toEqual([]);
    engine.release(view.plan);
    return { placed, view };
  };
  return { sidecar, clients, engine, read };
}

const missingOf = (blocks: readonly Block[], { held }: PlanView): Block[] =>
  blocks.filter((_block, at) => !hasBit(held!, at));

test("F87 a vault that one machine reaches and another does not: misses for one, nothing for the other, and whole again", async () => {
  const vaults = [await openVault(), await openVault(), await openVault()];
  const relay = await openRelay(vaults[1]!);
  const near = await hostOf(vaults.map((vault) => openClient(vault)));
  const cut = openClient(relay);
  // The same vault to the ring, over another route.
  Object.defineProperty(cut, "address", { value: vaults[1]!.address });
  const far = await hostOf([openClient(vaults[0]!), cut, openClient(vaults[2]!)]);
  const blocks = makeBlocks("partitioned", BLOCKS, 8192);
  await saveAll(near, blocks);
  expect((await far.read(blocks)).placed).toBe(BLOCKS);
  const lost = (await near.clients[1]!.stats(SOON_MS)).records;

  await relay.close();
  await until(async () => {
    await cut.stats(SOON_MS).catch(() => {});
    return cut.isDown;
  }, "the one machine to give it up");
  // A fresh engine, so that its own cache cannot answer for the vault.
  const fresh = makeBlocks("meanwhile", BLOCKS, 8192);
  await saveAll(near, fresh);
  const kept = (await near.clients[1]!.stats(SOON_MS)).records - lost;
  const { view } = await far.read(fresh);
  expect(missingOf(fresh, view)).toHaveLength(kept);
  await saveAll(far, missingOf(fresh, view));
  expect((await far.read(fresh)).placed).toBe(BLOCKS);
  expect((await near.read(fresh)).placed).toBe(BLOCKS);
  await expectNoLeak(far);
});

test("F87 two vaults behind one address are one that forgets: misses at most, and the others serve on", async () => {
  const [a, b, ...others] = [await openVault(), await openVault(), await openVault()];
  const ways = [relayTo(a), relayTo(b)];
  let connections = 0;
  const server = createServer((socket) => ways[(connections += 1) % 2]!.adopt(socket));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest({ close: () => server.close() });
  const both = { address: `127.0.0.1:${(server.address() as AddressInfo).port}` };
  const host = await hostOf([both, ...others].map((vault) => openClient(vault)));
  const blocks = makeBlocks("twins", BLOCKS, 8192);
  const [worker] = host.engine.workers;
  for (let at = 0; at < BLOCKS;) {
    await until(() => worker!.credits.length > 0, "credits");
    const part = blocks.slice(at, at + worker!.credits.length);
    host.engine.save(part);
    at += part.length;
  }
  const other = openClient(others[0]);
  let own = 0;
  // Polled, because an offer is queued a moment later.
  await until(async () => {
    const isSaved = host.sidecar.status().saves.queuedBlocks === 0;
    own = (await other.stats(SOON_MS)).records;
    return isSaved && own > 0;
  }, "the saves to end");
  for (let turn = 0; turn < 3; turn += 1) {
    for (const way of ways) way.cut();
    const { view } = await host.read(blocks);
    expect(BLOCKS - missingOf(blocks, view).length).toBeGreaterThanOrEqual(own);
  }
  await expectNoLeak(host);
});

test("F87 vaults whose clocks are hours apart: flushed records go everywhere, and later ones stay", async () => {
  const hours = [-5, 0, 5];
  const vaults = await Promise.all(
    hours.map((off) => {
      const own = { dataDir: testDirectory(), clockMs: off * 3_600_000 };
      return startVaultProcess(0, "127.0.0.1", own);
    }),
  );
  const host = await hostOf(vaults.map((vault) => openClient(vault)));
  const records = async (): Promise<number[]> =>
    await Promise.all(host.clients.map(async (one) => (await one.stats(SOON_MS)).records));
  for (const name of ["first", "second"]) {
    const blocks = makeBlocks(name, BLOCKS, 8192);
    await saveAll(host, blocks);
    expect((await records()).reduce((sum, count) => sum + count, 0)).toBe(BLOCKS);
    expect((await host.read(blocks)).placed).toBe(BLOCKS);
    const flushes = await Promise.all(host.clients.map((one) => one.flush(null, SOON_MS)));
    expect(flushes.map(({ volatile }) => volatile)).toEqual([false, false, false]);
    expect(await records()).toEqual([0, 0, 0]);
    expect((await host.read(blocks)).placed).toBe(0);
  }
});

test("F87 a slow vault of a pool: a restore ends in time with the blocks before its own, and no vault counts as down", async () => {
  const vaults = [await openVault(), await openVault(), await openVault()];
  const near = await hostOf(vaults.map((vault) => openClient(vault)));
  const blocks = makeBlocks("slow", BLOCKS, 8192);
  await saveAll(near, blocks);

  const relay = relayTo(vaults[1]!, { bytesPerTick: 200 });
  const server = createServer((socket) => relay.adopt(socket));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closeAfterTest({ close: () => server.close() });
  const slow = openClient({ address: `127.0.0.1:${(server.address() as AddressInfo).port}` });
  Object.defineProperty(slow, "address", { value: vaults[1]!.address });
  const clients = [openClient(vaults[0]!), slow, openClient(vaults[2]!)];
  const far = await hostOf(clients, { when: "always", waitMs: 2_000 });
  const { placed, view } = await far.read(blocks);
  expect([placed < BLOCKS, view.reason]).not.toEqual([false, "complete"]);
  expect(far.clients.map(({ isDown }) => isDown)).toEqual([false, false, false]);
  await expectNoLeak(far);
});
