// Owns the proof that with two copies a pool of real vaults loses nothing with any one of them: killed, hung, or empty.
import { expect, test, vi } from "vitest";
import type * as Again from "../../src/base/limits/again.ts";
import type * as Limits from "../../src/base/limits/pool.ts";
import {
  askFor,
  BLOCKS,
  emptyTheSecond,
  expectWhole,
  expectWholeAfter,
  openPool,
  openReader,
  recordsOf,
  VAULT_FAULTS,
} from "../support/pools.ts";
import { expectNoLeak } from "../support/scene.ts";
import { FakeEngine, hashesOf } from "../support/shim-client.ts";
import { openClient, SOON_MS, until } from "../support/vaults.ts";

// Owners keep their parts, however busy the machine is.
vi.mock("../../src/base/limits/pool.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  LOOKUP_GRACE_MS: 10_000,
}));
vi.mock("../../src/base/limits/again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

const LENGTH = BLOCKS + 5;
const COPIES = { redundancy: "copies:2", blocks: LENGTH } as const;

test("F71 two copies: each record lies on two vaults, and with one killed no block is missing", async () => {
  const pool = await openPool("copies", COPIES);
  const { counters } = pool.sidecar;
  const records = await recordsOf(pool.clients);
  expect(records.reduce((sum, count) => sum + count, 0)).toBe(2 * LENGTH);
  expect(counters.get("replicas_saved")).toBe(LENGTH);
  expect(counters.get("replicas_dropped")).toBe(0);
  expect(counters.get("replicas_sent_bytes")).toBe(counters.get("bytes_sent"));
  process.kill(pool.vaults[1]!.pid, "SIGKILL");
  // The first restore may be the one that detects the loss.
  expectWhole(pool, await askFor(pool));
  expect(counters.get("lookup_hits")).toBe(LENGTH);
  const reader = await openReader(pool);
  expectWhole(reader, await askFor(reader));
  await expectNoLeak(reader);
});

test.each(VAULT_FAULTS)(
  "F71 two copies: a vault that is $fault in mid-restore leaves the restore whole",
  async ({ fault, signal, stallMs }) => {
    const pool = await openPool(fault, { ...COPIES, stallMs });
    await expectWholeAfter(pool, signal, "blocks_failed_over");
  },
);

test("F72 two copies: a vault that came back empty is offered what it held, as owner and as second", async () => {
  const pool = await openPool("empty", COPIES);
  const before = await recordsOf(pool.clients);
  const held = await emptyTheSecond(pool);
  expectWhole(pool, await askFor(pool));
  await until(async () => (await held()) === before[1], "all that it held");
  // Counter of offers that the vault has answered.
  const offered = (): number => pool.sidecar.counters.get("copies_offered");
  await until(() => offered() === before[1], "all to be counted");
});

test("while a flush is on its way to all vaults, records still on the last vault are not offered to the first", async () => {
  const { vaults, clients, sidecar, blocks } = await openPool("halfway", COPIES);
  const admins = vaults.map((vault) => openClient(vault));
  await admins[0]!.flush(null, SOON_MS);
  const reader = await FakeEngine.start(sidecar.socketPath, {
    maxModelLen: 16 * LENGTH,
    engine: "between",
  });
  const view = await reader.done(reader.prefetch(hashesOf(blocks)));
  expect(view.placed.get(0)?.length).toBe(LENGTH);
  reader.release(view.plan);
  // Waits for several looks.
  await new Promise((resolve) => {
    setTimeout(resolve, 1000);
  });
  for (const admin of admins.slice(1)) await admin.flush(null, SOON_MS);
  expect(await recordsOf(clients)).toEqual([0, 0, 0]);
});
