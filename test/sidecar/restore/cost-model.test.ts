// Decisions of a sidecar that knows link and engine: slow links compute, fast ones restore, a failing one restores a prefix.
import { describe, expect, test, vi } from "vitest";
import type * as Limits from "../../../src/base/limits/general.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import type { Scene } from "../../support/scene.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Block } from "../../support/shim-client.ts";
import {
  hashesOf,
  helloFrame,
  makeBlocks,
  makeGroup,
  ShimClient,
} from "../../support/shim-client.ts";
import { until } from "../../support/vaults.ts";

// Small windows, so that a fetch of a few MiB takes several on any machine.
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  FETCH_WINDOW_BYTES: 2 ** 20,
}));

const PAGE = 4096;
const BLOCK_TOKENS = 16;
const SLOW_BYTES_PER_S = 2_000;

/** Reports computing times to the sidecar; resolves when it has learned them. */
async function computes({ engine, sidecar }: Scene, msPerToken: number): Promise<void> {
  const steps = [64, 128, 256].map((tokens) => [
    tokens,
    (tokens * tokens) / 2,
    Math.round(tokens * msPerToken * 1000),
  ]);
  const name = `told_${msPerToken < 1 ? "fast" : "slow"}`;
  engine.workers[0]!.send({ t: "counts", counters: { [name]: 1 }, steps });
  await until(() => sidecar.counters.get(`shim_${name}`) > 0, "the steps to be heard");
}

/** Restores a block, so that the sidecar knows the link at its present rate. */
async function learnLink(scene: Scene, bytesPerSecond = SLOW_BYTES_PER_S): Promise<void> {
  const { engine, proxy } = scene;
  const blocks = makeBlocks("link", 1, PAGE);
  await saveAll(scene, blocks);
  proxy.set({ bytesPerSecond });
  const plan = engine.prefetch(hashesOf(blocks));
  expect((await engine.done(plan)).reason).toBe("complete");
  engine.release(plan);
}

async function explain({ sidecar }: Scene, req: string): Promise<Account[]> {
  const client = new ShimClient(sidecar.socketPath);
  client.send(helloFrame({ role: "status" }));
  client.send({ t: "explain", req, most: 8 });
  const reply = await client.wait("explain_reply");
  client.close();
  return reply["accounts"] as Account[];
}

async function restore(
  scene: Scene,
  blocks: readonly Block[],
): ReturnType<Scene["engine"]["done"]> {
  return await scene.engine.done(scene.engine.prefetch(hashesOf(blocks)));
}

describe("what is held", () => {
  test("is restored by an engine that computes slower than it comes", async () => {
    const scene = await openScene();
    const blocks = makeBlocks("a", 20, PAGE);
    await saveAll(scene, blocks);
    await computes(scene, 1000);
    const view = await restore(scene, blocks);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", 20]);
    const [account] = await explain(scene, "req");
    expect(account).toMatchObject({
      choice: "loaded",
      end: "complete",
      heldTokens: 320,
      miss: null,
    });
    expect(account!.predicted.recompute).toBeGreaterThan(300_000);
  });

  test("is forecast by what whole fetches of an idle engine took, not by what lay here", async () => {
    const scene = await openScene();
    const { engine, sidecar } = scene;
    const sets = ["a", "b"].map((name) => makeBlocks(name, 20, PAGE));
    for (const blocks of sets) await saveAll(scene, blocks);
    const takes = async (blocks: readonly Block[], tookMs: number): Promise<void> => {
      const { plan } = await restore(scene, blocks);
      engine.release(plan, { tokens: 320, load_us: 1000, took_us: tookMs * 1000 });
    };
    const seen = (): (number | null)[] =>
      sidecar.status().engines[0]!.forecast.map(({ seenMs }) => seenMs);
    const loads = async (count: number): Promise<void> => {
      await until(() => sidecar.status().ledger.restores === count, `${count} restores`);
    };
    await takes(sets[0]!, 400);
    await loads(1);
    // The first restore prepares memory.
    expect(seen().at(-1)).toBeNull();
    await takes(sets[1]!, 200);
    await loads(2);
    const first = seen().at(-1);
    expect(first).toBeGreaterThan(200);
    // These blocks lie in the arena now.
    await takes(sets[1]!, 10);
    await loads(3);
    expect(seen().at(-1)).toBe(first);
  });

  test("is forecast with what answers of an idle engine took beside look-up, load and computing", async () => {
    const scene = await openScene();
    const { engine, sidecar } = scene;
    const blocks = makeBlocks("a", 20, PAGE);
    await saveAll(scene, blocks);
    await computes(scene, 1000);
    const aside = (): number | null => sidecar.status().engines[0]!.forecast[0]!.asideMs;
    let asked = 0;
    const answers = async (tookMs: number, answeredMs: number, other = 0): Promise<void> => {
      const { plan } = await restore(scene, blocks);
      const took = tookMs === 0 ? {} : { took_us: tookMs * 1000 };
      engine.release(plan, { tokens: 320, load_us: 1000, ...took });
      const us = answeredMs * 1000;
      engine.scheduler.send({ t: "answered", req: "req", plan: plan + other, tokens: 321, us });
      // Answered behind what was sent before.
      engine.scheduler.send({ t: "ping", n: (asked += 1) });
      await engine.scheduler.wait("pong", asked);
    };
    // The first restore prepares memory.
    await answers(400, 90_000);
    expect(aside()).toBeNull();
    await answers(400, 60_000);
    const first = aside()!;
    // A token was computed, too.
    expect(first).toBeGreaterThan(0);
    expect(first).toBeLessThan(60_000 - 400);
    // Of a plan that others ran beside, and of another one than was released last.
    await answers(0, 90_000);
    await answers(400, 90_000, 1);
    expect(aside()).toBe(first);
    await answers(1_400, 62_000);
    expect(aside()! - first).toBeCloseTo(500, 3);
  });

  test("is computed where the link is too slow, and counted so; the scheduler hears it at once", async () => {
    const scene = await openScene();
    const blocks = makeBlocks("a", 20, PAGE);
    await saveAll(scene, blocks);
    await learnLink(scene);
    await computes(scene, 60);
    const view = await restore(scene, blocks);
    expect([view.reason, view.why, view.placed.size]).toEqual(["slower", "slow_link", 0]);
    expect(scene.sidecar.counters.get("decided_recomputed_slow_link")).toBe(1);
    const [, account] = await explain(scene, "");
    expect(account).toMatchObject({ why: "slow_link", heldTokens: 320, chosenTokens: 0 });
    expect(account!.predicted.fetch).toBeGreaterThan(account!.predicted.recompute!);
    scene.engine.release(view.plan);
    await expectNoLeak(scene);
  });

  test("is fetched over the slow link while the engine has no room for its request, and computed once it has", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const { engine, sidecar } = scene;
    const [link, blocks] = [makeBlocks("link", 8, 64 * PAGE), makeBlocks("big", 40, 64 * PAGE)];
    await saveAll(scene, [...link, ...blocks]);
    scene.proxy.set({ bytesPerSecond: 2_000_000 });
    const known = engine.prefetch(hashesOf(link));
    await engine.done(known);
    engine.release(known);
    await computes(scene, 1);
    const refused = engine.prefetchAhead(hashesOf(blocks));
    expect((await engine.done(refused)).why).toBe("slow_link");
    engine.release(refused);
    const plan = engine.prefetchAhead(hashesOf(blocks), 0, 0, { ahead: 3 });
    await until(() => engine.view(plan).placed.size > 0, "the first blocks");
    expect(sidecar.counters.get("decided_loaded_cheaper")).toBe(1);
    engine.askFor(plan);
    const view = await engine.done(plan);
    expect(view.reason).toBe("slower");
    expect(view.placed.get(0)!.length).toBeLessThan(40);
    expect((await explain(scene, "")).at(-1)).toMatchObject({ ahead: 3, why: "cheaper" });
    engine.release(plan);
    await expectNoLeak(scene);
  });

  test("is restored over the slow link where the configuration wants it", async () => {
    const scene = await openScene({ when: "always" });
    const blocks = makeBlocks("a", 2, PAGE);
    await saveAll(scene, blocks);
    await learnLink(scene, 10_000);
    await computes(scene, 0.001);
    const view = await restore(scene, blocks);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", 2]);
  });

  test("is handed over as far as it came when the link becomes too slow in mid-run", async () => {
    const scene = await openScene({}, { groups: [makeGroup({ layers: 64 })] });
    const blocks = makeBlocks("big", 40, 64 * PAGE);
    await saveAll(scene, blocks);
    await computes(scene, 15);
    scene.proxy.set({ bytesPerSecond: 4_000_000 });
    const plan = scene.engine.prefetch(hashesOf(blocks));
    await until(() => scene.engine.view(plan).placed.size > 0, "the first blocks");
    scene.proxy.set({ bytesPerSecond: SLOW_BYTES_PER_S });
    const view = await scene.engine.done(plan);
    const count = view.placed.get(0)!.length;
    expect(view.reason).toBe("slower");
    expect(count).toBeLessThan(40);
    for (let index = 0; index < count; index += 1) {
      expect(scene.engine.holds(view, index, blocks[index]!)).toBe(true);
    }
    scene.engine.release(plan);
    await expectNoLeak(scene);
  });
});

test("a block that could not come back in time is not sent, and is missed for that reason", async () => {
  const scene = await openScene();
  await learnLink(scene);
  await computes(scene, 0.1);
  const blocks = makeBlocks("useless", 4, PAGE);
  scene.engine.save(blocks);
  await until(() => scene.sidecar.counters.get("dropped_slow_link") === 4, "the drops");
  await computes(scene, 10_000);
  await restore(scene, blocks);
  expect((await explain(scene, "")).at(-1)).toMatchObject({ miss: "dropped_slow_link" });
  expect(scene.sidecar.counters.get("miss_dropped_slow_link")).toBe(1);
});

test("a block is sent over the slow link, too, where the configuration wants it back in any case", async () => {
  const scene = await openScene({ when: "always" });
  await learnLink(scene, 10_000);
  await computes(scene, 0.001);
  const blocks = makeBlocks("wanted", 2, PAGE);
  await saveAll(scene, blocks);
  expect(scene.sidecar.counters.get("dropped_slow_link")).toBe(0);
});

test("an engine hears below which length it need not ask", async () => {
  const scene = await openScene();
  await learnLink(scene);
  await restore(scene, makeBlocks("more", 1, PAGE));
  await computes(scene, 0.001);
  const frame = await scene.engine.scheduler.wait("pace");
  expect(frame["tokens_min"]).toBeGreaterThan(BLOCK_TOKENS);
});

test("blocks never seen here are missed as such", async () => {
  const scene = await openScene();
  const view = await restore(scene, makeBlocks("unknown", 3, PAGE));
  expect(view.why).toBe("never_stored");
  const [account] = await explain(scene, "request");
  expect(account).toMatchObject({ miss: "never_stored", heldTokens: 0, end: "end_of_hit" });
  expect(await explain(scene, "other")).toEqual([]);
});
