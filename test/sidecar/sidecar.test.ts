// Owns the proof of the main path: blocks saved by one engine return to it byte for byte, without leftovers.
import { describe, expect, test } from "vitest";
import { countBits } from "../../src/base/block.ts";
import { inboxStatus, outboxStatus } from "../support/native.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../support/shim-client.ts";
import { openStack } from "../support/sidecars.ts";
import type { TestSidecar } from "../support/sidecars.ts";
import { until } from "../support/vaults.ts";

const PAGE = 8192;

export async function saved(sidecar: TestSidecar, count: number): Promise<void> {
  const { counters } = sidecar;
  const ended = (): number => counters.get("blocks_saved") + counters.get("saves_present");
  await until(() => ended() >= count, `${count} saved blocks`);
}

describe("save and restore", () => {
  test("blocks come back byte for byte from the vault", async () => {
    const { sidecar, kv } = await openStack();
    const writer = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 10, PAGE);
    writer.save(blocks);
    await saved(sidecar, 10);
    expect(kv.counters.get("stored")).toBe(10);
    writer.close();

    const reader = await FakeEngine.start(sidecar.socketPath, { engine: "engine-2" });
    const view = await reader.done(reader.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    expect(countBits(view.held!, 10)).toBe(10);
    for (const [index, block] of blocks.entries()) {
      expect(reader.holds(view, index, block)).toBe(true);
    }
    expect(sidecar.counters.get("blocks_restored_vault")).toBe(10);
    expect(sidecar.counters.get("bytes_restored")).toBe(10 * PAGE);
    expect(sidecar.counters.get("bytes_fetched")).toBe(10 * (PAGE + 192));
    expect(sidecar.counters.get("bytes_sent")).toBe(10 * (PAGE + 192));
    expect(sidecar.counters.get("bytes_saved")).toBe(10 * PAGE);
  });

  test("slots, records and inboxes are all given back", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const [worker] = engine.workers;
    const most = await creditsSettled(worker!.credits);
    const blocks = makeBlocks("chain", 12, PAGE);
    engine.save(blocks);
    await saved(sidecar, 12);
    const plan = engine.prefetch(hashesOf(blocks));
    await engine.done(plan);
    engine.release(plan);
    await until(() => worker!.credits.length === most, "credits to be granted again");
    await until(() => sidecar.status().engines[0]!.plans === 0, "the plan to go");
    const isTouched = (): boolean => {
      const { touchedSlots, slotCount } = sidecar.status().engines[0]!.arena!;
      return touchedSlots === slotCount;
    };
    await until(isTouched, "all of the arena");
    const [status] = sidecar.status().engines;
    expect(status!.retainedBlocks).toBe(12);
    // Leased slots: the credits, and the blocks that stay for the next plan.
    expect(status!.arena!.leasedSlots).toBe(most + 12);
    expect(status!.arena!.freeSlots).toBe(status!.arena!.slotCount - most - 12);
    expect(inboxStatus()).toEqual({ records: 0, bytes: 0 });
    expect(outboxStatus().records).toBe(0);
    expect(sidecar.status().saves).toEqual({ queuedBlocks: 0, queuedBytes: 0 });
  });

  test("a second plan is served from local memory, without the vault", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 6, PAGE);
    engine.save(blocks);
    await saved(sidecar, 6);
    const first = await engine.done(engine.prefetch(hashesOf(blocks)));
    engine.release(first.plan);
    await kv.close();
    const second = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(second.reason).toBe("complete");
    expect(second.placed.get(0)).toEqual(first.placed.get(0));
    expect(sidecar.counters.get("blocks_restored_local")).toBe(6);
    const local = (plan: number): number[] =>
      engine.scheduler
        .got("placed")
        .filter((frame) => frame["plan"] === plan)
        .map((frame) => frame["local"] as number);
    expect(local(first.plan).every((count) => count === 0)).toBe(true);
    expect(local(second.plan)).toEqual([6]);
  });

  test("only blocks from the asked index on are fetched, those before are looked up", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 8, PAGE);
    engine.save(blocks);
    await saved(sidecar, 8);
    const view = await engine.done(engine.prefetch(hashesOf(blocks), 5));
    expect(countBits(view.held!, 8)).toBe(8);
    expect(view.placed.get(0)).toHaveLength(3);
    expect(engine.scheduler.got("placed")[0]!["first"]).toBe(5);
    expect(engine.holds(view, 0, blocks[5]!)).toBe(true);
  });

  test("a hole ends the hit, and blocks behind it are not fetched", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 9, PAGE);
    engine.save(blocks.filter((_, index) => index !== 4));
    await saved(sidecar, 8);
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("end_of_hit");
    expect(countBits(view.held!, 9)).toBe(8);
    expect(view.placed.get(0)).toHaveLength(4);
    expect(sidecar.counters.get("bytes_fetched")).toBe(4 * (PAGE + 192));
  });

  test("nothing held: the plan ends at once without a hit", async () => {
    const { sidecar } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const view = await engine.done(engine.prefetch(hashesOf(makeBlocks("new", 5, PAGE))));
    expect(view.reason).toBe("end_of_hit");
    expect(view.placed.size).toBe(0);
  });

  test("a block that the vault has is not stored twice", async () => {
    const { sidecar, kv } = await openStack();
    const engine = await FakeEngine.start(sidecar.socketPath);
    const blocks = makeBlocks("chain", 3, PAGE);
    engine.save(blocks);
    await saved(sidecar, 3);
    engine.save(blocks);
    await saved(sidecar, 6);
    expect(sidecar.counters.get("saves_present")).toBe(3);
    expect(kv.counters.get("stored")).toBe(3);
  });

  test("attention blocks go to the kv vault, states to the ssm vault, and both come back", async () => {
    const { sidecar, kv, ssm } = await openStack();
    const groups = [makeGroup(), makeGroup({ group: 1, class: "ssm", tokens: 64, layers: 1 })];
    const engine = await FakeEngine.start(sidecar.socketPath, { groups });
    const state = makeBlocks("state", 1, groups[1]!["layer_bytes"] as number);
    const blocks = makeBlocks("chain", 4, PAGE);
    engine.save(blocks);
    engine.save(state, 1);
    await saved(sidecar, 5);
    expect(kv.counters.get("stored")).toBe(4);
    expect(ssm.counters.get("stored")).toBe(1);
    const plan = engine.prefetchGroups([
      { group: 1, class: "ssm", hashes: hashesOf(state), from: 0 },
      { group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 },
    ]);
    const view = await engine.done(plan);
    expect(view.reason).toBe("complete");
    expect(engine.holds(view, 0, state[0]!, 1)).toBe(true);
    expect(engine.holds(view, 3, blocks[3]!)).toBe(true);
  });
});

/** Returns the credits of a worker once no more come. */
async function creditsSettled(credits: readonly unknown[]): Promise<number> {
  let last = -1;
  await until(async () => {
    const before = last;
    last = credits.length;
    await new Promise((resolve) => {
      setTimeout(resolve, 60);
    });
    return before === credits.length;
  }, "credits to settle");
  return last;
}
