// Owns the proof that where saves pile up the least useful are shed first, and restores are answered.
import { expect, test, vi } from "vitest";
import type * as Limits from "../../src/base/limits/general.ts";
import { openFakeVault } from "../support/fake-vault.ts";
import { lanePeer, onlyLookups } from "../support/lanes.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { openSidecar } from "../support/sidecars.ts";
import { openClient, until } from "../support/vaults.ts";

const PAGE = 8192;

vi.mock("../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  SAVE_QUEUE_BYTES_MAX: 8 * 8192,
  // Off, because the queue would otherwise grow by the engines' slots.
  SAVE_AHEAD_BYTES_MAX: -Infinity,
  SAVE_BATCH_ITEMS: 1,
  STORE_TIMEOUT_MS: 600_000,
}));

test("F32 a full queue sheds saves, the deepest first, by reason; a restore is answered beside it", async () => {
  const vault = await openFakeVault({}, lanePeer(onlyLookups(0)));
  const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const count = (name: string): number => sidecar.counters.get(`dropped_${name}`);
  const deep = makeBlocks("deep", 24, PAGE);
  // Two blocks are on their way, six wait.
  engine.save(deep.slice(8, 16));
  await until(() => sidecar.status().saves.queuedBlocks === 8, "a full queue");
  engine.save(deep.slice(16));
  await until(() => count("queue_full") === 8, "deeper ones to be turned away");
  expect(count("shed")).toBe(0);
  engine.save(makeBlocks("shallow", 4, PAGE));
  await until(() => count("shed") === 4, "the deepest to make room");
  expect(sidecar.status().saves.queuedBlocks).toBe(8);
  const plan = engine.prefetch(hashesOf(deep.slice(0, 4)));
  await until(() => engine.view(plan).reason !== null, "the restore to be answered");
  expect(sidecar.status().saves.queuedBlocks, "while nothing moves").toBe(8);
});
