// Owns the proof of plans: blocks are shared, come prefix first, wait for room in order, and end when given up.
import { describe, expect, test, vi } from "vitest";
import { countBits } from "../../../src/base/block.ts";
import {
  FRAME_BYTES_MAX,
  PLAN_KEYS_MAX,
  RECLAIM_ANSWER_MS,
} from "../../../src/base/limits/general.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { sleep } from "../../../src/base/time.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import {
  FakeEngine,
  hashesOf,
  helloFrame,
  makeBlocks,
  makeGroup,
  ShimClient,
} from "../../support/shim-client.ts";
import type { TestSidecar } from "../../support/sidecars.ts";
import { MIB, SOON_MS, until } from "../../support/vaults.ts";

// Small windows, so that a fetch of a few MiB takes several on any machine.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  FETCH_WINDOW_BYTES: 2 ** 20,
}));

const PAGE = 8192;
const RECORD = PAGE + 192;

async function explain({ socketPath }: TestSidecar): Promise<Account[]> {
  const client = new ShimClient(socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req: "", most: 8 });
  const reply = await client.wait("explain_reply");
  client.close();
  return reply["accounts"] as Account[];
}

describe("sharing", () => {
  test("two plans that want the same blocks at once share one fetch and its slots", async () => {
    const scene = await openScene();
    const { engine, sidecar, vault, proxy } = scene;
    const blocks = makeBlocks("shared", 12, PAGE);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 30 });
    const plans = [0, 1, 2].map(() => engine.prefetch(hashesOf(blocks)));
    const views = await Promise.all(plans.map((plan) => engine.done(plan)));
    for (const view of views) {
      expect(view.reason).toBe("complete");
      expect(view.placed.get(0)).toEqual(views[0]!.placed.get(0));
    }
    expect(vault.counters.get("fetched")).toBe(12);
    expect(sidecar.counters.get("bytes_fetched")).toBe(12 * RECORD);
    expect(sidecar.counters.get("blocks_restored_vault")).toBe(12);
    expect(sidecar.counters.get("blocks_restored_local")).toBe(24);
    // Releasing the first plan takes no slot from the others.
    engine.release(plans[0]!);
    engine.release(plans[1]!);
    await until(() => sidecar.status().engines[0]!.plans === 1, "two plans to go");
    expect(sidecar.status().engines[0]!.retainedBlocks).toBe(0);
    expect(engine.holds(views[2]!, 11, blocks[11]!)).toBe(true);
    engine.release(plans[2]!);
    await expectNoLeak(scene);
    expect(sidecar.status().engines[0]!.retainedBlocks).toBe(12);
  });

  test("a plan that joined goes on when the one that started the fetch is aborted", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const { engine, proxy, vault } = scene;
    const page = 64 * 4096;
    const blocks = makeBlocks("joined", 10, page);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 60 });
    const first = engine.prefetch(hashesOf(blocks));
    const second = engine.prefetch(hashesOf(blocks));
    await until(() => engine.view(first).placed.size > 0, "the first blocks");
    engine.release(first);
    const view = await engine.done(second);
    expect(view.reason).toBe("complete");
    expect(vault.counters.get("fetched")).toBe(10);
    expect(engine.holds(view, 9, blocks[9]!)).toBe(true);
    engine.release(second);
    await expectNoLeak(scene);
  });

  test("placed frames come prefix first and without a gap, while later blocks still arrive", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const { engine, proxy } = scene;
    const blocks = makeBlocks("prefix", 20, 64 * 4096);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 20 });
    const view = await engine.done(engine.prefetch(hashesOf(blocks)));
    expect(view.reason).toBe("complete");
    const placed = engine.scheduler.got("placed");
    expect(placed.length).toBeGreaterThan(2);
    let next = 0;
    for (const frame of placed) {
      expect(frame["first"]).toBe(next);
      next += (frame["slots"] as Uint8Array).length / 4;
    }
    expect(next).toBe(20);
  });
});

describe("no room", () => {
  /** An arena of 64 slots, 48 of them for restores. */
  const SMALL = { arenaBytes: 16 * MIB };
  const BIG = { groups: [makeGroup({ layers: 64 })], maxModelLen: 16 * 20 };
  const page = 64 * 4096;

  test("blocks nobody uses give way, the least recently used first", async () => {
    const scene = await openScene(SMALL, BIG);
    const { engine, sidecar } = scene;
    const chains = ["a", "b", "c"].map((name) => makeBlocks(name, 20, page));
    for (const chain of chains) await saveAll(scene, chain);
    for (const chain of chains) {
      const view = await engine.done(engine.prefetch(hashesOf(chain)));
      expect(view.reason).toBe("complete");
      expect(engine.holds(view, 19, chain[19]!)).toBe(true);
      engine.release(view.plan);
    }
    await expectNoLeak(scene);
    const before = sidecar.counters.get("blocks_restored_vault");
    const last = await engine.done(engine.prefetch(hashesOf(chains[2]!)));
    expect(last.reason).toBe("complete");
    expect(sidecar.counters.get("blocks_restored_vault")).toBe(before);
  });

  test("a plan that is asked for and has no room asks the last of those that are not for its slots, and goes on when it lets go", async () => {
    const scene = await openScene(SMALL, BIG);
    const { engine, sidecar } = scene;
    const chains = ["a", "b", "c"].map((name) => makeBlocks(name, 20, page));
    for (const chain of chains) await saveAll(scene, chain);
    const other = await engine.done(engine.prefetchAhead(hashesOf(chains[1]!)));
    const first = engine.prefetchAhead(hashesOf(chains[0]!));
    await engine.done(first);
    const third = engine.prefetchAhead(hashesOf(chains[2]!));
    await until(() => engine.view(third).held !== null, "the look-up");
    await sleep(RECLAIM_ANSWER_MS * 2);
    expect(sidecar.counters.get("reclaims")).toBe(0);
    engine.askFor(third);
    const asked = await engine.scheduler.wait("reclaim");
    expect(asked["plan"]).toBe(first);
    expect(engine.view(third).reason).toBeNull();
    expect(engine.view(third).placed.size).toBe(0);
    // Slots of other plans stay untouched while it waits.
    expect(engine.holds(other, 0, chains[1]![0]!)).toBe(true);
    engine.release(first);
    const view = await engine.done(third);
    expect(view.reason).toBe("complete");
    expect(engine.holds(view, 19, chains[2]![19]!)).toBe(true);
    expect(engine.holds(other, 19, chains[1]![19]!)).toBe(true);
    for (const plan of [other.plan, third]) engine.release(plan);
    await expectNoLeak(scene);
    expect(sidecar.counters.get("reclaims")).toBeGreaterThan(0);
  });

  test("a plan that nobody asks for has no deadline, and is fetched when there is room", async () => {
    const scene = await openScene({ ...SMALL, waitMs: 200 }, BIG);
    const { engine, sidecar } = scene;
    const chains = ["a", "b", "c"].map((name) => makeBlocks(name, 20, page));
    for (const chain of chains) await saveAll(scene, chain);
    const first = engine.prefetchAhead(hashesOf(chains[0]!));
    expect((await engine.done(first)).reason).toBe("complete");
    const other = engine.prefetchAhead(hashesOf(chains[1]!));
    expect((await engine.done(other)).reason).toBe("complete");
    const third = engine.prefetchAhead(hashesOf(chains[2]!));
    await sleep(600);
    expect(engine.view(third).reason).toBeNull();
    engine.release(first);
    expect((await engine.done(third)).reason).toBe("complete");
    for (const plan of [other, third]) engine.release(plan);
    await expectNoLeak(scene);
    expect(sidecar.counters.get("reclaims")).toBe(0);
  });

  test("an engine hears of a plan that it waits for and that waits for room", async () => {
    const scene = await openScene({ ...SMALL, waitMs: 20_000 }, BIG);
    const { engine } = scene;
    const chains = ["a", "b", "c"].map((name) => makeBlocks(name, 20, page));
    for (const chain of chains) await saveAll(scene, chain);
    const holding = [chains[0]!, chains[1]!].map((chain) => engine.prefetch(hashesOf(chain)));
    for (const plan of holding) await engine.done(plan);
    const third = engine.prefetch(hashesOf(chains[2]!));
    const heard = (): number =>
      engine.scheduler.got("waits").filter(({ plan }) => plan === third).length;
    await until(() => heard() >= 2, "word of it");
    for (const plan of holding) engine.release(plan);
    expect((await engine.done(third)).reason).toBe("complete");
    engine.release(third);
    await expectNoLeak(scene);
  });

  test("F32 when nobody lets go the plan ends with no_slot in time", async () => {
    const scene = await openScene({ ...SMALL, waitMs: 3000 }, BIG);
    const { engine } = scene;
    const chains = ["a", "b", "c"].map((name) => makeBlocks(name, 20, page));
    for (const chain of chains) await saveAll(scene, chain);
    const holding = [chains[0]!, chains[1]!].map((chain) => engine.prefetch(hashesOf(chain)));
    for (const plan of holding) expect((await engine.done(plan)).reason).toBe("complete");
    const startMs = performance.now();
    const view = await engine.done(engine.prefetch(hashesOf(chains[2]!)));
    expect(view.reason).toBe("no_slot");
    expect(performance.now() - startMs).toBeLessThan(SOON_MS / 2);
    expect(view.placed.size).toBe(0);
    for (const plan of [...holding, view.plan]) engine.release(plan);
    await expectNoLeak(scene);
  });

  test("saves go on while restores hold all they may", async () => {
    const scene = await openScene(SMALL, BIG);
    const { engine } = scene;
    const blocks = makeBlocks("long", 60, page);
    await saveAll(scene, blocks);
    await engine.done(engine.prefetch(hashesOf(blocks)));
    await saveAll(scene, makeBlocks("more", 30, page));
  });
});

describe("plans", () => {
  test("an abort in the middle of a fetch stops the vault and frees the slots", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const { engine, proxy, sidecar } = scene;
    const blocks = makeBlocks("abort", 40, 64 * 4096);
    await saveAll(scene, blocks);
    proxy.set({ delayMs: 50 });
    const plan = engine.prefetch(hashesOf(blocks));
    await until(() => engine.view(plan).placed.size > 0, "the first block");
    engine.release(plan);
    await expectNoLeak(scene);
    const fetched = sidecar.counters.get("bytes_fetched");
    expect(fetched).toBeLessThan(40 * 64 * 4096);
    await new Promise((resolve) => {
      setTimeout(resolve, 200);
    });
    expect(sidecar.counters.get("bytes_fetched")).toBe(fetched);
    expect(engine.view(plan).reason).toBeNull();
  });

  test("an abort during the look-up, and a release of nothing, do no harm", async () => {
    const scene = await openScene();
    const { engine, proxy } = scene;
    proxy.set({ delayMs: 50 });
    const plan = engine.prefetch(hashesOf(makeBlocks("x", 3, PAGE)));
    engine.release(plan);
    engine.release(plan);
    engine.release(12345);
    await expectNoLeak(scene);
    expect(engine.scheduler.isClosed).toBe(false);
  });

  test("before the arena is mapped a plan is looked up and ends as not_ready", async () => {
    const scene = await openScene();
    const blocks = makeBlocks("early", 3, PAGE);
    await saveAll(scene, blocks);
    const scheduler = new ShimClient(scene.sidecar.socketPath);
    scheduler.send(helloFrame({ role: "scheduler", engine: "early" }));
    const { namespace } = scene.engine;
    const groups = [{ group: 0, class: "kv", hashes: hashesOf(blocks), from: 0 }];
    scheduler.send({ t: "prefetch", req: "r", plan: 1, groups });
    expect(await scheduler.wait("done")).toMatchObject({ reason: "not_ready" });
    expect(scheduler.got("held")).toEqual([]);
    scheduler.send({ t: "namespace", namespace, model: "m", parts: {} });
    scheduler.send({ t: "prefetch", req: "r", plan: 2, groups });
    expect(await scheduler.wait("done", 2)).toMatchObject({ plan: 2, reason: "not_ready" });
    const [{ held }] = scheduler.got("held")[0]!["groups"] as [{ held: Uint8Array }];
    expect(countBits(held, 3)).toBe(3);
  });

  test("of a prompt with more keys than a plan may have the beginning is restored", async () => {
    const scene = await openScene({}, { world: 2 });
    const { engine, sidecar } = scene;
    const blocks = makeBlocks("long", 3, PAGE, 2);
    await saveAll(scene, blocks);
    // 1.6 million tokens on two ranks in the largest possible frame.
    const rest = Buffer.alloc(((FRAME_BYTES_MAX - 65_536) / 32 - blocks.length) * 32, 7);
    const plan = engine.prefetch(Buffer.concat([hashesOf(blocks), rest]));
    const view = await engine.done(plan);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["end_of_hit", 6]);
    expect(countBits(Buffer.from(view.held!), PLAN_KEYS_MAX / 2)).toBe(3);
    expect(view.held).toHaveLength(PLAN_KEYS_MAX / 16);
    const [account] = await explain(sidecar);
    const asked = (PLAN_KEYS_MAX / 2) * 16;
    expect(account).toMatchObject({ askedTokens: asked, heldTokens: 48 });
    expect(account).toMatchObject({ beyondTokens: ((FRAME_BYTES_MAX - 65_536) / 32) * 16 - asked });
    expect(sidecar.counters.get("plans_cut")).toBe(1);
    engine.release(plan);
    await expectNoLeak(scene);
  });

  test("a plan number in use, and an unknown group, are refused", async () => {
    const { sidecar, engine, proxy } = await openScene();
    proxy.set({ delayMs: 100 });
    const groups = [{ group: 0, class: "kv", hashes: Buffer.alloc(32), from: 0 }];
    engine.scheduler.send({ t: "prefetch", req: "r", plan: 1, groups });
    engine.scheduler.send({ t: "prefetch", req: "r", plan: 1, groups });
    expect((await engine.scheduler.wait("refuse"))["message"]).toContain("plan = 1: it is in use");
    const other = await FakeEngine.start(sidecar.socketPath, { engine: "other" });
    other.prefetchGroups([{ ...groups[0], group: 7 }]);
    expect((await other.scheduler.wait("refuse"))["message"]).toContain("group 7 (kv)");
  });

  test("F32 200 plans at once all end, and nothing is left over", async () => {
    const scene = await openScene();
    const { engine } = scene;
    const chains = Array.from({ length: 10 }, (_, index) => makeBlocks(`chain ${index}`, 6, PAGE));
    for (const chain of chains) await saveAll(scene, chain);
    const plans = Array.from({ length: 200 }, (_, index) =>
      engine.prefetch(hashesOf(chains[index % 10]!)),
    );
    for (const [index, plan] of plans.entries()) {
      if (index % 3 === 0) engine.release(plan);
    }
    for (const [index, plan] of plans.entries()) {
      if (index % 3 === 0) continue;
      const view = await engine.done(plan);
      expect(view.reason).toBe("complete");
      expect(engine.holds(view, 5, chains[index % 10]![5]!)).toBe(true);
      engine.release(plan);
    }
    await expectNoLeak(scene);
  });
});
