// Owns a scene for restore tests: a vault behind a fault proxy, a sidecar, an engine, and the leak check.
import { expect } from "vitest";
import type { FaultProxy } from "./fault-proxy.js";
import { startFaultProxy } from "./fault-proxy.js";
import { inboxStatus } from "./native.ts";
import { FakeEngine } from "./shim-client.ts";
import type { Block, EngineShape } from "./shim-client.ts";
import { openSidecar } from "./sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "./sidecars.ts";
import { closeAfterTest, MIB, openClient, openVault, until } from "./vaults.ts";
import type { TestVault } from "./vaults.ts";

export interface Scene {
  vault: TestVault;
  proxy: FaultProxy;
  sidecar: TestSidecar;
  engine: FakeEngine;
}

/** An engine and its sidecar, with any vault. */
export type Saving = Pick<Scene, "sidecar" | "engine">;

/** Opens a vault behind a fault proxy, a sidecar and an engine. */
export async function openScene(
  options: TestSidecarOptions & { vaultBytes?: number } = {},
  shape: EngineShape = {},
): Promise<Scene> {
  const vault = await openVault({ maxBytes: options.vaultBytes ?? 64 * MIB });
  const proxy = closeAfterTest(await startFaultProxy({ target: vault.address }));
  const sidecar = await openSidecar({ vaults: { kv: openClient(proxy), ssm: null }, ...options });
  return { vault, proxy, sidecar, engine: await FakeEngine.start(sidecar.socketPath, shape) };
}

/** Saves blocks, as many at a time as there are credits. */
export async function saveAll(
  { engine, sidecar }: Saving,
  blocks: readonly Block[],
): Promise<void> {
  const { counters } = sidecar;
  const before = counters.get("blocks_saved");
  for (let at = 0; at < blocks.length;) {
    await until(() => engine.workers.every(({ credits }) => credits.length > 0), "credits");
    const count = Math.min(...engine.workers.map(({ credits }) => credits.length));
    engine.save(blocks.slice(at, at + count));
    at += count;
  }
  const isSaved = (): boolean =>
    counters.get("blocks_saved") === before + blocks.length * engine.world &&
    sidecar.status().saves.queuedBlocks === 0;
  await until(isSaved, "all saves");
}

/** Expects nothing on the restore side except idle blocks in the cache. */
export async function expectNoLeak({ sidecar, engine }: Saving): Promise<void> {
  await until(() => sidecar.status().engines[0]!.plans === 0, "plans to go");
  await until(() => sidecar.status().engines[0]!.fetches === 0, "fetches to end");
  // Polled, because credits for slots just freed may still be on their way.
  const isAccounted = (): boolean => {
    const { arena, retainedBlocks } = sidecar.status().engines[0]!;
    const credits = engine.workers.reduce((sum, worker) => sum + worker.credits.length, 0);
    return arena!.leasedSlots === credits + retainedBlocks * engine.world;
  };
  await until(isAccounted, "every leased slot to be a credit or a block that is kept");
  const { arena } = sidecar.status().engines[0]!;
  expect(arena!.freeSlots).toBe(arena!.touchedSlots - arena!.leasedSlots);
  expect(inboxStatus().records).toBe(0);
}
