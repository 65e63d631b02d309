// Owns the proof that with parity a pool of real vaults loses nothing with any one of them, and never gives wrong bytes.
import { expect, test, vi } from "vitest";
import type * as Again from "../../src/base/limits/again.ts";
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
import type { Pool, PoolOptions } from "../support/pools.ts";
import { expectNoLeak } from "../support/scene.ts";
import { closeAfterTest, openClient, SOON_MS, until } from "../support/vaults.ts";

vi.mock("../../src/base/limits/again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
}));

/** Opens a pool whose parity records are all stored. */
async function open(name: string, options: PoolOptions = {}): Promise<Pool> {
  const pool = await openPool(name, { redundancy: "parity", ...options });
  const parity = BLOCKS / ((options.count ?? 3) < 5 ? 2 : 4);
  const { counters } = pool.sidecar;
  await until(() => counters.get("parity_saved") >= parity, "parity records");
  return pool;
}

test.each([
  { count: 3, width: 2 },
  { count: 4, width: 2 },
  { count: 5, width: 4 },
])(
  "F78 parity over $count vaults: one record more for $width, and with any one killed no block is missing",
  async ({ count, width }) => {
    const pool = await open(`parity-${count}`, { count });
    const { counters } = pool.sidecar;
    const records = await recordsOf(pool.clients);
    expect(records.reduce((sum, of) => sum + of, 0)).toBe(BLOCKS + BLOCKS / width);
    expect(counters.get("parity_incomplete")).toBe(0);
    process.kill(pool.vaults[1]!.pid, "SIGKILL");
    // The first restore may be the one that detects the loss.
    expectWhole(pool, await askFor(pool));
    expect(counters.get("lookup_hits")).toBe(BLOCKS);
    expect(counters.get("blocks_rebuilt")).toBeGreaterThan(0);
    const reader = await openReader(pool);
    expectWhole(reader, await askFor(reader));
    expect(reader.sidecar.counters.get("rebuilds_failed")).toBe(0);
    await expectNoLeak(reader);
  },
);

test.each(VAULT_FAULTS)(
  "F78 parity: a vault that is $fault in mid-restore leaves the restore whole",
  async ({ fault, signal, stallMs }) => {
    await expectWholeAfter(await open(fault, { stallMs }), signal, "blocks_rebuilt");
  },
);

test("F78 parity: two vaults lost are blocks missing, and no wrong bytes", async () => {
  const pool = await open("two");
  for (const { pid } of pool.vaults.slice(1)) process.kill(pid, "SIGKILL");
  const reader = await openReader(pool);
  const { engine, blocks } = reader;
  const view = await askFor(reader);
  const placed = view.placed.get(0)?.length ?? 0;
  expect(placed).toBeLessThan(16);
  expect(blocks.slice(0, placed).filter((block, at) => !engine.holds(view, at, block))).toEqual([]);
  engine.release(view.plan);
  await expectNoLeak(reader);
});

test("F78 parity: what is flushed while a vault is down is not brought back by what that one still holds", async () => {
  const pool = await open("gone");
  const { pid } = pool.vaults[1]!;
  process.kill(pid, "SIGSTOP");
  closeAfterTest({ close: () => process.kill(pid, "SIGCONT") });
  for (const at of [0, 2]) await openClient(pool.vaults[at]!).flush(null, SOON_MS);
  await until(() => pool.sidecar.counters.get("flushes") >= 2, "the flush to be heard of");
  process.kill(pid, "SIGCONT");
  const held = await recordsOf(pool.clients);
  expect([held[0], held[2]]).toEqual([0, 0]);
  expect(held[1]).toBeGreaterThan(0);
  const reader = await openReader(pool);
  const view = await askFor(reader);
  expect(reader.sidecar.counters.get("blocks_rebuilt")).toBe(0);
  // Only records of the paused vault may still be found, up to another vault's first block.
  expect(view.placed.get(0)?.length ?? 0).toBeLessThan(16);
});

test("F78 parity: a vault that came back empty is offered its lost records", async () => {
  const pool = await open("empty");
  const held = await emptyTheSecond(pool);
  expectWhole(pool, await askFor(pool));
  const rebuilt = pool.sidecar.counters.get("blocks_rebuilt");
  expect(rebuilt).toBeGreaterThan(0);
  await until(async () => (await held()) >= rebuilt, "all that it held of blocks");
});
